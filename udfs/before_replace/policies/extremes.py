"""`max` and `min`: the version with the greatest or the least value of a field wins.

A version without such a value ranks lowest, so it wins only if no version has a value.
"""

import numpy as np
from numpy.typing import NDArray

from udfs.before_replace.policy import Formats, PolicyKind, PolicyOptions, Versions
from udfs.keys.sequence import NO_VALUE, ranks_of, sequence_bytes


def rank_by_greatest(versions: Versions, options: PolicyOptions, formats: Formats) -> NDArray[np.int64]:
    """Return the rank of each version's value; 0 if it has none."""
    fields = formats.field_numbers([options.column or ""])
    values = sequence_bytes(versions.tuples, versions.format_indexes, fields)
    ranks = ranks_of(values)
    ranks[[value is None or value.startswith(NO_VALUE) for value in values.to_pylist()]] = 0
    return ranks


def rank_by_least(versions: Versions, options: PolicyOptions, formats: Formats) -> NDArray[np.int64]:
    """Return the rank of each version's value, so that the least value wins; 0 if it has none."""
    ranks = rank_by_greatest(versions, options, formats)
    return np.where(ranks == 0, 0, ranks.max(initial=0) + 1 - ranks)


MAX = PolicyKind(
    label=lambda options: f"max({options.column})",
    rank=rank_by_greatest,
)
MIN = PolicyKind(
    label=lambda options: f"min({options.column})",
    rank=rank_by_least,
)

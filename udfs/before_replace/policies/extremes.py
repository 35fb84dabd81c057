"""`max` and `min`: the version with the greatest or the least value of a field wins; one without a value never does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from udfs.before_replace.policy import Formats, PolicyKind, PolicyOptions, Versions
from udfs.keys.sequence import NO_VALUE, ranks_of, sequence_bytes


def greatest(versions: Versions, options: PolicyOptions, formats: Formats) -> NDArray[np.int64]:
    """Return the rank of each version's value; 0 if it has none."""
    places = formats.places([options.column or ""])
    values = sequence_bytes(versions.tuples, versions.formats, places)
    ranks = ranks_of(values)
    ranks[[value is None or value.startswith(NO_VALUE) for value in values.to_pylist()]] = 0
    return ranks


def least(versions: Versions, options: PolicyOptions, formats: Formats) -> NDArray[np.int64]:
    """Return the rank of each version's value, the least value highest; 0 if it has none."""
    ranks = greatest(versions, options, formats)
    return np.where(ranks == 0, 0, ranks.max(initial=0) + 1 - ranks)


MAX = PolicyKind(
    label=lambda options: f"max({options.column})",
    rank=greatest,
)
MIN = PolicyKind(
    label=lambda options: f"min({options.column})",
    rank=least,
)

"""`first_write_wins`: the version that was inserted first wins; an unknown time counts as the earliest."""

import numpy as np
from numpy.typing import NDArray

from udfs.before_replace.policy import Formats, PolicyKind, PolicyOptions, Versions
from udfs.versions.kernels.lives import NO_TIME

_RANK_OF_UNKNOWN_TIME = 2**63 - 1


def rank(versions: Versions, options: PolicyOptions, formats: Formats) -> NDArray[np.int64]:  # noqa: ARG001
    """Return the negated time of each tuple's insertion, so that the earliest time has the greatest rank."""
    return np.where(versions.created == NO_TIME, _RANK_OF_UNKNOWN_TIME, -versions.created)


POLICY = PolicyKind(label=lambda _: "created", rank=rank)

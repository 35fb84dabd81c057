"""`source_priority`: the version of the replicaset that comes first in a list wins; the others come last."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from udfs.before_replace.policy import Formats, PolicyKind, PolicyOptions, Versions


def rank(versions: Versions, options: PolicyOptions, formats: Formats) -> NDArray[np.int64]:  # noqa: ARG001
    """Return the place of each version's replicaset, counted from the end of the list."""
    count = len(options.priority)
    places = {uuid: count - i for i, uuid in reversed(list(enumerate(options.priority)))}
    by_id = np.array([places.get(uuid, 0) for uuid in versions.uuids], np.int64)
    return by_id[versions.replicasets]


POLICY = PolicyKind(
    "source_priority",
    "priority",
    "uuids of replicasets, or names of sources that name theirs, the first wins",
    takes_deleted=True,
    label=lambda _: "priority",
    rank=rank,
)

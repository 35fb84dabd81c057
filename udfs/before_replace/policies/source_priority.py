"""`source_priority`: the version of the replicaset listed first wins; replicasets outside the list come last."""

import numpy as np
from numpy.typing import NDArray

from udfs.before_replace.policy import Formats, PolicyKind, PolicyOptions, Versions


def rank(versions: Versions, options: PolicyOptions, formats: Formats) -> NDArray[np.int64]:  # noqa: ARG001
    """Return the rank of each version's replicaset in the list, counted from the end; 0 if it is not listed."""
    count = len(options.priority)
    ranks = {uuid: count - i for i, uuid in reversed(list(enumerate(options.priority)))}
    by_id = np.array([ranks.get(uuid, 0) for uuid in versions.uuid_by_id], np.int64)
    return by_id[versions.replicaset_ids]


POLICY = PolicyKind(
    label=lambda _: "priority",
    rank=rank,
)

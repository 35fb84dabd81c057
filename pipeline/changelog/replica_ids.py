"""Finds the replica id of each row of `_changelog`, in the ids of its replicaset.

A row has its instance's global id, and its replica id as its source wrote it. An instance that was expelled and came
back can have had several replica ids. Each of them counts its own lsns. So a row's global id alone does not say to
which component of a vclock its lsn belongs.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.state import ReplicasetState

NO_REPLICA_ID = 0
"""The replica id of rows whose instance has none."""


def replica_ids_in_replicaset(rows: pa.Table, replicaset: ReplicasetState) -> NDArray[np.int64]:
    """Return the replica id of each row, in the ids of its replicaset; `NO_REPLICA_ID` if its instance has none."""
    ids_by_instance: dict[int, list[int]] = {}
    for entry in replicaset.applier_map:
        ids_by_instance.setdefault(entry.global_id, []).append(entry.local_id)
    global_ids = pc.fill_null(rows["global_id"], -1).to_numpy()
    found = np.full(rows.num_rows, NO_REPLICA_ID, np.int64)
    for global_id, ids in ids_by_instance.items():
        own = global_ids == global_id
        found[own] = ids[-1]
        if len(set(ids)) > 1 and own.any():
            _set_ids_of_returned_instance(found, rows, own, ids, replicaset.id_translations)
    return found


def _set_ids_of_returned_instance(
    replica_ids: NDArray[np.int64],
    rows: pa.Table,
    is_own: NDArray[np.bool_],
    instance_ids: list[int],
    translations: Mapping[str, Mapping[int, int]],
) -> None:
    """Set `replica_ids` for the rows of one instance that has had several replica ids.

    A row's id is the one in its source's log, which `translations` maps to the replicaset's id.
    """
    sources, written = (
        pc.fill_null(rows["source"], ""),
        pc.fill_null(rows["replica_id"], NO_REPLICA_ID).to_numpy(),
    )
    for source in pc.unique(sources.filter(pa.array(is_own))).to_pylist():
        is_source = is_own & pc.equal(sources, source).to_numpy()
        for replica_id in np.unique(written[is_source]).tolist():
            translated = translations.get(source, {}).get(replica_id, replica_id)
            # Rows before the translation began have the id itself.
            known = [number for number in (translated, replica_id) if number in instance_ids]
            if known:
                replica_ids[is_source & (written == replica_id)] = known[0]


def lsns_of_ids(replica_ids: NDArray[np.int64], vclock: Mapping[int, int]) -> NDArray[np.int64]:
    """Return the vclock's lsn of each replica id; 0 for an id that the vclock does not have."""
    lsns = np.zeros(max([int(replica_ids.max(initial=0)), *vclock]) + 1, np.int64)
    lsns[list(vclock)] = list(vclock.values())
    found: NDArray[np.int64] = lsns[replica_ids]
    return found

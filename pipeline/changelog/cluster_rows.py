"""Returns the aggregator's own changes of `_cluster` as rows of `_changelog`, as if an instance logged them.

A row that a source wrote to its space `_cluster` becomes a NOP. In its place the aggregator changes its own table
`_cluster`, and logs this change as a row of `_changelog` with the aggregator's global id and its next lsn; its
`group_id` is that of the space `_cluster`. The table `_cluster` is written before the other tables of the batch. If
the batch does not finish, the changes of `_cluster` stay, and the next batch writes the rows that `_changelog` lacks.
`_cluster` has only the last change of each instance. For an earlier change that was replaced before `_changelog` got
it, a NOP is written, so that each lsn of the aggregator has a row.

Pure.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.iproto import GROUP_CLUSTER, SystemSpace
from schemas.states import RowState
from udfs.remap.cluster_replace import OWN_REPLICASET_ID, OWN_REPLICASET_UUID, Member

CLUSTER = "_cluster"
"""The name of the space `_cluster`. Its rows come from no file: `file` has this name, and `position` the lsn."""


def cluster_rows(
    changes: Sequence[Member], last_lsn: int, aggregator: Member, epoch: int, now: datetime
) -> list[dict[str, Any]]:
    """Return the rows of `_changelog` for changes of `_cluster`."""
    by_lsn = {member.lsn: member for member in changes}
    return [
        _changelog_row(lsn, by_lsn.get(lsn), aggregator, epoch, now)
        for lsn in range(last_lsn + 1, max(by_lsn, default=last_lsn) + 1)
    ]


def member_tuple(member: Member) -> bytes:
    """Return a row of `_cluster` as a tuple: the ids and uuids of the instance, then the lsn of its last change."""
    fields = [member.global_id, member.uuid, member.local_id, member.replicaset_id, member.lsn]
    result: bytes = msgpack.packb(fields)
    return result


def _changelog_row(
    lsn: int, member: Member | None, aggregator: Member, epoch: int, now: datetime
) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "replicaset_id": OWN_REPLICASET_ID,
        "source": OWN_REPLICASET_UUID,
        "segment": 0,
        "global_id": aggregator.global_id,
        "state": RowState.COMMITTED,
        "file": CLUSTER,
        "position": lsn,
        "row": 0,
        "instance_uuid": aggregator.uuid,
        "type": "NOP" if member is None else "REPLACE",
        "group_id": GROUP_CLUSTER,
        "lsn": lsn,
        "tsn": lsn,
        "timestamp": now,
        "space_id": int(SystemSpace.CLUSTER),
        "space": None if member is None else CLUSTER,
        "tuple": None if member is None else member_tuple(member),
    }


def registrations_as_nops(rows: pa.RecordBatch, is_registration: NDArray[np.bool_]) -> Mapping[str, pa.Array]:
    """Return the columns, by name, that differ when each row of a source's `_cluster` becomes a NOP.

    The NOP keeps the lsn, so that the vclock advances, and the space id, which shows why it is a NOP. The aggregator
    makes the change itself (`cluster_rows`).
    """
    mask = pa.array(is_registration)
    bodies = ("key", "tuple", "operations", "body")
    return {
        "type": pc.if_else(mask, pa.scalar("NOP"), rows.column("type")),
        **{name: pc.if_else(mask, pa.scalar(None, pa.binary()), rows.column(name)) for name in bodies},
    }

"""`_cluster`: the persisted mapping of instance uuids to global ids, and how it is changed.

What becomes of a row is decided by `udfs.remap.cluster_replace`, outside of the database. So a change is
compare-and-set: the table is read at a version, and written as the next one or not at all; where another writer was
faster, all is read and decided again. So ids stay dense and unique even where the writer lock is bypassed. The table is
small and is written whole. It is never rolled back with an unfinished batch: an id that was given stays given.

The table's property `aggregator.allocation` records how ids are given; another one is refused.
Not here: replica ids over time (`warehouse.applier_map`).
"""

from __future__ import annotations

import random
import time
import uuid as uuids
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, cast, get_args

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from schemas.errors import WarehouseError
from udfs.remap.cluster_replace import Allocation, Cluster, ClusterChange, Incoming, Member, replace_all
from warehouse.read import rows_of
from warehouse.warehouse import Warehouse
from warehouse.write import MARK

TABLE = "_cluster"
ALLOCATION = "aggregator.allocation"
"""The table property that records the allocation."""

ATTEMPTS = 100
PAUSE_SECONDS = 1.0
"""At most so long a writer that was refused waits, so that writers do not meet again in step."""

COLUMNS = ("global_id", "uuid", "local_id", "replicaset_id", "replicaset_uuid", "lsn")

_ROW = pa.schema(
    [
        ("global_id", pa.int64()),
        ("uuid", pa.string()),
        ("local_id", pa.int32()),
        ("replicaset_id", pa.int32()),
        ("lsn", pa.int64()),
        ("replicaset_uuid", pa.string()),
        ("first_seen", pa.timestamp("us", tz="UTC")),
        ("expelled_at", pa.timestamp("us", tz="UTC")),
    ]
)

_AT_ONCE = CommitProperties(custom_metadata={"userMetadata": MARK}, max_commit_retries=0)
"""Where another commit has come in between, there is none of ours."""


def load(warehouse: Warehouse) -> Cluster:
    """Return the table as it stands."""
    return _cluster(warehouse.opened(TABLE))


def _cluster(table: DeltaTable, held: Iterable[dict[str, Any]] | None = None) -> Cluster:
    rows = rows_of(table) if held is None else held
    told = ({n: row[n] for n in COLUMNS} | {"expelled": row["expelled_at"] is not None} for row in rows)
    return cluster_of(told, _recorded(table) or "counter")


def _recorded(table: DeltaTable) -> Allocation | None:
    return allocation_of(table.metadata().configuration.get(ALLOCATION))


def cluster_of(rows: Iterable[dict[str, Any]], allocation: Allocation) -> Cluster:
    """Return the table from its rows: dicts of `COLUMNS` and `expelled`."""
    members = sorted((Member(**row) for row in rows), key=lambda member: member.lsn)
    return Cluster(allocation, {member.key: member for member in members})


def recorded(warehouse: Warehouse) -> Allocation | None:
    """Return the allocation that the table's property records, None before the first start."""
    return _recorded(warehouse.opened(TABLE))


def allocation_of(recorded_: str | None) -> Allocation | None:
    """Return the allocation of a property's value.

    Raises
    ------
    WarehouseError
        If it is none.

    """
    if recorded_ is not None and recorded_ not in get_args(Allocation):
        raise WarehouseError(
            f"the property {ALLOCATION} is {recorded_!r}",
            table=TABLE,
            advice=f"set it to one of {', '.join(get_args(Allocation))}, the one that gave the ids",
        )
    return cast("Allocation | None", recorded_)


def start(warehouse: Warehouse, allocation: Allocation, now: datetime) -> Cluster:
    """Record how ids are given, and return the table, which a counter begins with the aggregator's own row.

    Parameters
    ----------
    warehouse : Warehouse
        With its system tables.
    allocation : {'counter', 'preserve'}
        As configured.
    now : datetime

    Raises
    ------
    WarehouseError
        If ids are given in another way already.

    """
    for attempt in range(ATTEMPTS):
        table = warehouse.opened(TABLE)
        found = _recorded(table)
        # Tables from before the property was there: only a counter gave ids then.
        if found is None and rows_of(table, ["global_id"]):
            found = "counter"
        if found is not None and found != allocation:
            raise WarehouseError(
                f"global ids were given by {found!r}, the configuration says {allocation!r}",
                table=TABLE,
                advice=f"set cluster.allocation to {found}, or take a new warehouse: ids that are given stay",
            )
        if _recorded(table) == allocation:
            return allocate(warehouse, (), now) if allocation == "counter" else _cluster(table)
        try:
            table.alter.set_table_properties(
                {ALLOCATION: allocation}, raise_if_not_exists=False, commit_properties=_AT_ONCE
            )
        except CommitFailedError:
            _pause(attempt)
    raise WarehouseError(f"the allocation could not be recorded in {ATTEMPTS} attempts", advice="start again")


def allocate(warehouse: Warehouse, rows: Sequence[Incoming], now: datetime) -> Cluster:
    """Add instances in the order in which sources name them, as one commit, and return the table.

    Parameters
    ----------
    warehouse : Warehouse
    rows : sequence of Incoming
    now : datetime
        Becomes `first_seen` and `expelled_at`.

    Raises
    ------
    WarehouseError
        If other writers won `ATTEMPTS` times in a row.

    """
    own_uuid = str(uuids.uuid4())
    for attempt in range(ATTEMPTS):
        table = warehouse.opened(TABLE)
        held = rows_of(table)
        before = _cluster(table, held)
        after, changes = replace_all(before, rows, own_uuid)
        if not changes:
            return before
        if _written(table, held, changes, now):
            return after
        _pause(attempt)
    raise WarehouseError(f"no global id could be given in {ATTEMPTS} attempts", advice="start again")


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, min(PAUSE_SECONDS, 0.05 * 2**attempt)))


def _written(
    table: DeltaTable, held: Iterable[dict[str, Any]], changes: Sequence[ClusterChange], now: datetime
) -> bool:
    """Write changed rows as the next version of an open table; return False where that version exists already."""
    rows = {row["uuid"] or row["replicaset_uuid"]: row for row in held}
    for change in changes:
        known = rows.pop(change.key, {"first_seen": now, "expelled_at": None})
        expelled_at = (known["expelled_at"] or now) if change.row.expelled else None
        told = {name: getattr(change.row, name) for name in COLUMNS}
        row = {**told, "first_seen": known["first_seen"], "expelled_at": expelled_at}
        rows[row["uuid"] or row["replicaset_uuid"]] = row
    try:
        whole = pa.Table.from_pylist(list(rows.values()), schema=_ROW)
        write_deltalake(table, whole, mode="overwrite", commit_properties=_AT_ONCE)
    except CommitFailedError:
        return False
    return True

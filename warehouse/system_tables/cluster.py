"""`_cluster`: the stored mapping of instance uuids to global ids, and its changes.

`udfs.remap.cluster_replace` decides what a change does to the rows, in this process. A change is a compare-and-set: the
table is read at one version and written as the next; if another writer has committed in between, both steps are
repeated. So ids stay dense and unique even if somebody bypasses the writer lock. The table is small, and always written
whole. It is not rolled back with an unfinished batch: an id, once assigned, stays assigned.

The table's property `aggregator.allocation` records how ids are assigned; a start with another setting is refused.
Not here: replica ids over time (`warehouse.system_tables.applier_map`).
"""

import random
import time
import uuid as uuids
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, cast, get_args

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from schemas.errors import WarehouseError
from udfs.remap.cluster_replace import (
    Allocation,
    Cluster,
    ClusterChange,
    IncomingMember,
    Member,
    apply_incoming,
)
from warehouse.delta.commit_actions import USER_METADATA
from warehouse.delta.data_files import append_to
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.read import rows_of
from warehouse.delta.write import arrow_rows
from warehouse.system_tables.table_differences import change_since_own
from warehouse.warehouse import Warehouse

TABLE = "_cluster"
ALLOCATION_PROPERTY = "aggregator.allocation"
"""The table's property that records the rule by which global ids are assigned."""

COMMIT_ATTEMPTS = 100
LONGEST_PAUSE_SECONDS = 1.0
"""The longest random wait before a refused commit is repeated, so that two writers do not collide again."""

COLUMNS = ("global_id", "uuid", "local_id", "replicaset_id", "replicaset_uuid", "lsn")
"""The columns that are fields of `Member`; `local_id` is the replica id."""

_NO_RETRIES = CommitProperties(custom_metadata={"userMetadata": USER_METADATA}, max_commit_retries=0)
"""The commit fails if another one came first, and is not repeated on top of it."""


def load(warehouse: Warehouse) -> Cluster:
    """Read the instances and their global ids from the table."""
    return cluster_in(warehouse.opened(TABLE))


def require_own_rows(warehouse: Warehouse) -> None:
    """Raise ForeignChangeError if somebody else has changed the table: its ids are not those that were assigned."""
    changed = change_since_own(warehouse.location, TABLE)
    if changed is not None:
        raise changed.error()


def cluster_in(table: DeltaTable, rows: Iterable[dict[str, Any]] | None = None) -> Cluster:
    """Return the instances and global ids in an open table; `rows` are the table's rows if the caller has read them."""
    rows = rows_of(table) if rows is None else rows
    members = ({n: row[n] for n in COLUMNS} | {"expelled": row["expelled_at"] is not None} for row in rows)
    return cluster_of(members, _allocation_in(table) or "counter")


def _allocation_in(table: DeltaTable) -> Allocation | None:
    return checked_allocation(table.metadata().configuration.get(ALLOCATION_PROPERTY))


def cluster_of(rows: Iterable[dict[str, Any]], allocation: Allocation) -> Cluster:
    """Return the mapping that rows of the table describe: dicts with the keys `COLUMNS` and `expelled`."""
    members = sorted((Member(**row) for row in rows), key=lambda member: member.lsn)
    return Cluster(allocation, {member.key: member for member in members})


def recorded_allocation(warehouse: Warehouse) -> Allocation | None:
    """Return the rule for assigning global ids that the table's property records; None before the first start."""
    return _allocation_in(warehouse.opened(TABLE))


def checked_allocation(value: str | None) -> Allocation | None:
    """Check a value of the property `ALLOCATION_PROPERTY`, None if it is not set, and return it."""
    if value is not None and value not in get_args(Allocation):
        raise WarehouseError(
            f"the property {ALLOCATION_PROPERTY} is {value!r}",
            table=TABLE,
            advice=f"set it to the one of {', '.join(get_args(Allocation))} by which the ids were assigned",
        )
    return cast("Allocation | None", value)


def record_allocation(warehouse: Warehouse, allocation: Allocation, now: datetime) -> Cluster:
    """Record the configured allocation in the table's property, and return the mapping.

    The aggregator is a member of the mapping itself. With `counter`, its row is added at the first start.

    Args:
        allocation: `counter` counts global ids up over all replicasets (`counter` or `preserve`). With `preserve` an
            instance keeps its replica id or, if that is taken, gets the lowest free number above Tarantool's.

    Raises:
        WarehouseError: If the table records another allocation.
    """
    for attempt in range(COMMIT_ATTEMPTS):
        table = warehouse.opened(TABLE)
        found = _allocation_in(table)
        if found is not None and found != allocation:
            raise WarehouseError(
                f"global ids were assigned by {found!r}, the configuration says {allocation!r}",
                table=TABLE,
                advice=f"set cluster.allocation to {found}, or start a new warehouse: assigned ids never change",
            )
        if _allocation_in(table) == allocation:
            return allocate(warehouse, (), now) if allocation == "counter" else cluster_in(table)
        try:
            table.alter.set_table_properties(
                {ALLOCATION_PROPERTY: allocation}, raise_if_not_exists=False, commit_properties=_NO_RETRIES
            )
        except CommitFailedError:
            _pause_before_retry(attempt)
    raise WarehouseError(
        f"the allocation could not be recorded in {COMMIT_ATTEMPTS} attempts", advice="start again"
    )


def allocate(warehouse: Warehouse, rows: Sequence[IncomingMember], now: datetime) -> Cluster:
    """Assign global ids to instances, in the order of `rows` and in one commit, and return the new mapping.

    Args:
        now: Becomes `first_seen` of a new instance, and `expelled_at` of an expelled one.

    Raises:
        WarehouseError: If other writers committed first, `COMMIT_ATTEMPTS` times in a row.
        ForeignChangeError: If somebody else has changed the table.
    """
    own_uuid = str(uuids.uuid4())
    for attempt in range(COMMIT_ATTEMPTS):
        table = warehouse.opened(TABLE)
        stored = rows_of(table)
        before = cluster_in(table, stored)
        after, changes = apply_incoming(before, rows, own_uuid)
        if not changes:
            return before
        require_own_rows(warehouse)
        if _commit_changes(warehouse.location, table, stored, changes, now):
            return after
        _pause_before_retry(attempt)
    raise WarehouseError(
        f"no global id could be assigned in {COMMIT_ATTEMPTS} attempts", advice="start again"
    )


def _pause_before_retry(attempt: int) -> None:
    time.sleep(random.uniform(0, min(LONGEST_PAUSE_SECONDS, 0.05 * 2**attempt)))


def _commit_changes(
    location: WarehouseLocation,
    table: DeltaTable,
    stored: Iterable[dict[str, Any]],
    changes: Sequence[ClusterChange],
    now: datetime,
) -> bool:
    """Write changed rows as the next version of an open table; return False if that version exists already."""
    rows = {row["uuid"] or row["replicaset_uuid"]: row for row in stored}
    for change in changes:
        known = rows.pop(change.key, {"first_seen": now, "expelled_at": None})
        expelled_at = (known["expelled_at"] or now) if change.row.expelled else None
        values = {name: getattr(change.row, name) for name in COLUMNS}
        row = {**values, "first_seen": known["first_seen"], "expelled_at": expelled_at}
        rows[row["uuid"] or row["replicaset_uuid"]] = row
    try:
        append_to(table, location, TABLE, arrow_rows(TABLE, rows.values()), _NO_RETRIES, replaces=True)
    except CommitFailedError:
        return False
    return True

"""The operator's changes of a RID: promote, demote and connect under the writer lock, disconnect at any time."""

from collections.abc import Sequence
from contextlib import ExitStack

from schemas.errors import RidStateError
from udfs.rid import operations
from udfs.rid.comparison import Verdict
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY_ULID
from warehouse.copies.generations import ComparedRid, compare_warehouses, read_compared_rid
from warehouse.copies.rid import RidChange, RidTable, new_ulid
from warehouse.copies.standbys import DISCONNECT, record_connection
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import EPOCHS, last_epoch
from warehouse.lock.lock import WriterLock

UNNAMED_COPIES = "outside"
"""Represents copies that no RID names, in the column `peer` of the row that records an operator's `disconnect`."""


def promote(location: WarehouseLocation, *, abandon_sync: bool = False) -> RidChange:
    """Make a warehouse the primary.

    Raises:
        LockError: If a writer has the lock.
        RidStateError: If a sync is unfinished, and is not abandoned.
    """
    with WriterLock(location, "jobs/rid.py promote"):
        table = RidTable(location)
        epoch = last_epoch(location)
        last = table.last()

        def change(node: Node) -> Node:
            node = operations.unlock(operations.lock(node))
            if abandon_sync and node.rid.incoming != EMPTY_ULID:
                # A sync into an empty location that has copied no epoch has changed nothing.
                node = operations.abandon_sync(node, new_ulid(), changed=epoch != last.epoch)
            return operations.promote(node, new_ulid(), unconnected=_may_have_copies(table))

        return table.update("promote", epoch, change)


def demote(location: WarehouseLocation) -> RidChange:
    """Make a warehouse a secondary.

    Raises:
        LockError: If a writer has the lock.
        RidStateError: If it has no RID.
    """
    with WriterLock(location, "jobs/rid.py demote") as lock:
        table = RidTable(location)
        if not table.last().number:
            raise _no_rid_error(location)

        # After this, a sleeping writer cannot commit an epoch when it wakes.
        from warehouse.delta.fence import (
            take_writer_number,
        )  # imports PySpark, which other commands of RIDs do without

        fence = take_writer_number(location, lock.check) if location.has(EPOCHS) else None

        def change(node: Node) -> Node:
            return operations.demote(operations.unlock(operations.lock(node)))

        changed = table.update("demote", last_epoch(location), change)
        epochs = location.open(EPOCHS)
        if fence is not None and epochs is not None:
            fence.check(EPOCHS, epochs)
        return changed


def record_disconnected(location: WarehouseLocation) -> RidChange:
    """Record that copies of a warehouse exist, or will exist, that no job keeps up to date.

    The next epoch of a primary begins a new generation. A secondary is recorded as disconnected from its primary: it
    lacks later epochs until the next copy. A writer may be running.

    Raises:
        RidStateError: If it has no RID.
    """
    table = RidTable(location)
    last = table.last()
    if not last.number:
        raise _no_rid_error(location)
    mark = new_ulid()
    return table.update(
        DISCONNECT,
        last_epoch(location),
        lambda node: operations.lose_connection(node, mark, was_primary=not node.rid.primary),
        peer=UNNAMED_COPIES,
    )


def record_connected(locations: Sequence[WarehouseLocation]) -> list[RidChange]:
    """Check that these warehouses are equal, and record it, and that no other copies exist.

    Raises:
        LockError: If a writer has the lock of one of them.
        RidStateError: Two of them differ, one is in a sync, or not exactly one is primary.
    """
    with ExitStack() as stack:
        for location in locations:
            if not RidTable(location).last().number:
                raise _no_rid_error(location)
            stack.enter_context(WriterLock(location, "jobs/rid.py connect"))
        sides = [read_compared_rid(location) for location in locations]
        for side in sides:
            _require_same(sides[0], side)
        primaries = [side.name for side in sides if side.node.rid.primary]
        if len(primaries) != 1:
            named = ", ".join(primaries) or "none"
            raise RidStateError(
                f"exactly one of the warehouses must be primary, not {named}", advice="promote or demote"
            )
        roots = [location.root for location in locations]
        return [
            record_connection(RidTable(location), [root for root in roots if root != location.root])
            for location in locations
        ]


def _require_same(first: ComparedRid, other: ComparedRid) -> None:
    found = compare_warehouses(first, other)
    if (
        found.verdict is not Verdict.SAME
        or first.epoch != other.epoch
        or other.node.rid.incoming != EMPTY_ULID
    ):
        raise RidStateError(
            "the two warehouses differ; nothing was changed",
            first=first.name,
            other=other.name,
            advice=f"`aggregator rid compare {first.name} {other.name}`, then sync",
        )


def _no_rid_error(location: WarehouseLocation) -> RidStateError:
    return RidStateError("the warehouse has no RID", warehouse=location.root, advice="check its address")


def _may_have_copies(table: RidTable) -> bool:
    return any(change.peer is not None for change in table.history())

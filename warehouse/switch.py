"""Promoting and demoting a warehouse: its RID changed under its writer lock."""

from __future__ import annotations

from schemas.errors import RidStateError
from udfs.rid import operations
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY
from warehouse.lock import WriterLock
from warehouse.newest_epoch import EPOCHS, last_epoch
from warehouse.place import Place
from warehouse.rid import RidChange, RidTable, fresh


def promote(place: Place, *, abandon_sync: bool = False) -> RidChange:
    """Make a warehouse the primary.

    Parameters
    ----------
    place : Place
    abandon_sync : bool
        Whether to abandon a sync into it that has not ended.

    Raises
    ------
    LockError
        While it is written.
    RidStateError
        In the middle of a sync that is not given up.

    """
    with WriterLock(place, "jobs/rid.py promote"):
        table = RidTable(place)
        epoch = last_epoch(place)
        last = table.last()

        def change(node: Node) -> Node:
            node = operations.unlock(operations.lock(node))
            if abandon_sync and node.rid.incoming != EMPTY:
                # A sync into an empty place that has brought no epoch has brought nothing.
                node = operations.abandon_sync(node, fresh(), changed=epoch != last.epoch)
            return operations.promote(node, fresh(), unconnected=_copied(table))

        return table.update("promote", epoch, change)


def demote(place: Place) -> RidChange:
    """Make a warehouse a secondary.

    Raises
    ------
    LockError
        While it is written.
    RidStateError
        Where it has no RID.

    """
    with WriterLock(place, "jobs/rid.py demote") as lock:
        table = RidTable(place)
        if not table.last().number:
            raise RidStateError(
                "there is no RID", warehouse=place.root, advice="check the address of the warehouse"
            )

        # From here on no writer that sleeps commits an epoch any more.
        from warehouse.fence import take_number  # imports PySpark, which other commands of RIDs do without

        fence = take_number(place, lock.check) if place.has(EPOCHS) else None

        def change(node: Node) -> Node:
            return operations.demote(operations.unlock(operations.lock(node)))

        changed = table.update("demote", last_epoch(place), change)
        epochs = place.open(EPOCHS)
        if fence is not None and epochs is not None:
            fence.check(EPOCHS, epochs)
        return changed


def _copied(table: RidTable) -> bool:
    """Whether another place holds, or may hold, a copy: none of them is ever connected."""
    return any(change.peer is not None for change in table.history())

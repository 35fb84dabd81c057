"""The writer lock of a primary: the lock, the writer's number, and the check that the RID allows writing.

The first writer makes a warehouse without a RID a primary: so RIDs need no set-up, and a later copy has a generation to
begin with. A warehouse with a RID is written only if it is a primary. The lock of a killed writer becomes free by
itself (`warehouse.lock.lock`); the RID still says locked, which shows that the writer crashed.
Not here: the RID's rules (`udfs.rid`), and copying (`warehouse.copies`).
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING

from schemas.errors import LockError, RidStateError
from udfs.rid import operations
from udfs.rid.operations import Node
from warehouse.copies.rid import RidChange, RidTable, new_ulid
from warehouse.copies.standbys import Standbys, set_missing_mark
from warehouse.delta.fence import take_writer_number
from warehouse.delta.location import WarehouseLocation, has_known_scheme, location_of
from warehouse.delta.newest_epoch import last_epoch
from warehouse.lock.lock import WriterLock

if TYPE_CHECKING:
    from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)


class PrimaryLock(WriterLock):
    """The writer lock of a warehouse whose RID allows writing.

    On entry the writer takes a number (`warehouse.delta.fence`), and the warehouse's open tables get its fence.

    Args:
        purpose: Shown to a process that finds the lock taken.
        standbys: Copies that this writer keeps connected.

    Raises:
        LockError: On entry, if another writer has the lock; from `check`, if it was lost.
        RidStateError: On entry, if the warehouse is not a primary, or `Standbys.refuse_newer` raises. Nothing is
            written then.
    """

    def __init__(self, warehouse: Warehouse, purpose: str, standbys: Standbys | None = None) -> None:
        super().__init__(warehouse, purpose)
        self._warehouse: Warehouse = warehouse
        self._standbys = standbys
        self._rid: RidTable | None = None
        self._renewed_mark: tuple[int, int] | None = (
            None  # (epoch, number of the RID's row) of the last renewal
        )
        if has_known_scheme(warehouse.root):
            self._rid = RidTable(location_of(warehouse.root))
        else:
            log.warning(
                "%s: a warehouse there has no RID, and cannot be compared with a copy", warehouse.root
            )

    def __enter__(self) -> PrimaryLock:
        super().__enter__()
        try:
            require_primary(self._warehouse)
            if self._standbys is not None:
                self._standbys.refuse_newer()
            self._warehouse.open_tables.fence = take_writer_number(self._warehouse.location, self.check_held)
            self._warehouse.open_tables.before_epoch = self.before_epoch
            self._lock_as_primary()
        except BaseException:
            if self._standbys is not None:
                self._standbys.abandon()
            super().__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close_standbys(error)
            if self._rid is not None and self._is_held():
                self._rid.update("unlock", last_epoch(self._rid.location), operations.unlock)
        finally:
            if self._warehouse.open_tables.fence is not None:
                self._warehouse.open_tables.fence.end()
            super().__exit__(kind, error, trace)

    def check(self) -> None:
        """Raise LockError if this process does not have the lock any more. Called before each commit.

        If the mark is set, the first call in a batch replaces the ULID of the next generation, so that the time in the
        ULID is the time of the generation's first data.
        """
        super().check()
        if self._rid is None or self._rid.last().node.next_head is None:
            return
        epoch, last = last_epoch(self._rid.location), self._rid.last()
        if (epoch, last.number) != self._renewed_mark:
            mark = new_ulid()
            change = self._rid.update("renew", epoch, lambda node: operations.renew_mark(node, mark))
            self._renewed_mark = (epoch, change.number)

    def before_epoch(self) -> None:
        """Check the lock, and copy the newest epoch to the connected standbys. Called before each new epoch."""
        self.check_held()
        if self._standbys is not None:
            self._standbys.before_epoch()
        self.check()

    def _close_standbys(self, error: BaseException | None) -> None:
        if self._standbys is None:
            return
        if error is None and self._is_held():
            self._standbys.close()
        else:
            self._standbys.abandon()

    def _is_held(self) -> bool:
        try:
            self.check_held()
        except LockError as error:
            log.error("%s", error)
            return False
        return True

    def _lock_as_primary(self) -> None:
        if self._rid is None:
            return
        # Checked again after the number was taken: a demotion takes one, too, so it comes before or is refused.
        require_primary(self._warehouse)
        epoch = last_epoch(self._rid.location)
        before = self._rid.last()
        crashed = before.node.rid.crashed_primary
        now = self._rid.update("lock", epoch, lambda node: _promote_and_lock(node, before))
        if now.node.rid.crashed_primary and not crashed:
            log.warning("the last writer of %s was killed; its lock is taken over", self._rid.location.root)
        set_missing_mark(self._rid)
        if self._standbys is not None:
            self._standbys.connect_all()


def require_primary(warehouse: Warehouse | WarehouseLocation) -> None:
    """Raise RidStateError if the warehouse has a RID and is not a primary."""
    if not has_known_scheme(warehouse.root):
        return
    last = RidTable(location_of(warehouse.root)).last()
    if last.number and not last.node.rid.primary:
        raise RidStateError(
            "the warehouse is not primary; nothing was written",
            warehouse=warehouse.root,
            rid=last.node.rid,
            advice=f"write to the primary, or `aggregator rid promote {warehouse.root}`",
        )


def _promote_and_lock(node: Node, before: RidChange) -> Node:
    """Return the node with the RID locked; a node without a RID (`before`) also becomes a primary."""
    if not before.number:
        node = operations.promote(node, new_ulid(), unconnected=False)
    return operations.lock(node)

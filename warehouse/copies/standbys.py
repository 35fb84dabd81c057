"""Keeps copies of a primary connected: each epoch is copied to them before the next one is committed.

    start: refuse if a standby is newer → set the mark → connect each standby → when all are connected, remove the mark
    epoch → copy it to each connected standby → if this fails: the standby is lost, set the mark → next epoch

The mark in the primary's RID (its replication id, docs/rid.md) says that copies may exist that are not connected. The
primary's writer has the writer lock of each connected standby, so a standby can be promoted only after that writer has
ended, or has lost the standby's lock. A standby that fails never stops the writer: it is called lost, and is tried
again later. For a standby that is far behind, a thread copies data files first; only the last step, which also updates
the standby's RID, is done between two epochs. `warehouse.copies` copies a warehouse, `udfs.rid` has the rules.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake.exceptions import DeltaError

from schemas.errors import AggregatorError, LockError, RidStateError, SyncError
from udfs.rid import operations
from udfs.rid.comparison import Verdict
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY_ULID, Rid
from warehouse.copies.generations import ComparedRid, compare_warehouses, read_compared_rid
from warehouse.copies.rid import SYNC_END, RidChange, RidTable, new_ulid
from warehouse.copies.sync import SyncOptions, copy_ahead, copy_new_epochs, require_syncable, sync_locked
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import NO_EPOCH, last_epoch
from warehouse.lock.lock import WriterLock, local_folder

log = logging.getLogger(__name__)

CONNECT, LOSE_PEER, DISCONNECT = "connect", "lose_peer", "disconnect"

COPY_EVENTS = (LOSE_PEER, DISCONNECT, "copy", SYNC_END)
"""Events after which another location may have data of the head (the newest generation, see `warehouse.copies.rid`)."""

NAME_SEPARATOR = ", "
"""Separates the names of several standbys in one row of `_rid`."""

RETRY_SECONDS = 60.0
FIRST_WAIT_SECONDS = 2.0
"""How long the first `ConnectedStandby.connect` waits for the thread that copies ahead."""

STANDBY_FAILURES = (AggregatorError, OSError, DeltaError, pa.ArrowException, ValueError)
"""Errors that are raised if a standby cannot be reached, read or written; the standby is then lost."""


@dataclass(frozen=True)
class StandbyState:
    """Whether a standby is connected to its primary now, and its last epoch."""

    root: str
    is_connected: bool = False
    """Whether the standby has every epoch up to `epoch`, and gets each new one before the next is committed."""
    epoch: int = NO_EPOCH
    """The last epoch copied to it; `NO_EPOCH` if none is known."""
    reason: str | None = None
    """Why it is not connected."""


class ConnectedStandby:
    """One standby of a primary, as the primary's writer sees it: its state, its lock, and the versions copied to it."""

    def __init__(self, source: WarehouseLocation, location: WarehouseLocation) -> None:
        self.source, self.location = source, location
        self.state = StandbyState(location.root, reason="not tried yet")
        self.retry_at = 0.0
        self._lock: WriterLock | None = None
        self._copy_thread: _CopyAheadThread | None = None
        self._copied_versions: Mapping[str, int] = {}

    @property
    def is_copying(self) -> bool:
        """Whether a thread copies data files to the standby."""
        return self._copy_thread is not None and self._copy_thread.is_alive()

    def connect(self) -> bool:
        """Copy what the standby lacks, and return whether it is connected now: False while a thread still copies.

        Raises one of `STANDBY_FAILURES` if the standby cannot be reached, read or written.
        """
        wait_seconds = 0.0
        if self._lock is None:
            self._take_lock()
            wait_seconds = FIRST_WAIT_SECONDS
        ours, theirs = read_compared_rid(self.source), read_compared_rid(self.location)
        require_syncable(compare_warehouses(ours, theirs), ours, theirs, None)
        rid = theirs.node.rid
        if rid == Rid() and self._was_connected():
            raise SyncError(
                "the location is empty, and was a connected copy before: is its disk mounted?",
                file=self.location.root,
                advice="bring it back, or make a new copy by `aggregator rid sync`",
            )
        is_same_generation = rid.head == ours.node.rid.head and rid.incoming == EMPTY_ULID
        if not is_same_generation:
            if self._copy_thread is None:
                self._copy_thread = _CopyAheadThread(self.source, self.location, self.check_lock)
                self._copy_thread.start()
            if not self._copy_thread.ends_within(wait_seconds):
                self.state = StandbyState(
                    self.location.root, epoch=theirs.epoch or 0, reason="it is being copied"
                )
                return False
            self._copy_thread = None
            is_complete = rid.head != EMPTY_ULID and rid.incoming == EMPTY_ULID
            how = SyncOptions(check_all=False, known_versions={} if is_complete else None)
            sync_locked(self.source, self.location, self.check_lock, how)
        RidTable(self.location).update(
            CONNECT, last_epoch(self.location), _lock_and_connect, peer=self.source.root
        )
        self.copy_new_epochs()
        return True

    def _was_connected(self) -> bool:
        history = RidTable(self.source).history()
        return any(c.event == CONNECT and self.location.root in _standby_names(c) for c in history)

    def copy_new_epochs(self) -> None:
        """Copy new epochs to the connected standby; raise one of `STANDBY_FAILURES` if that fails."""
        done = copy_new_epochs(self.source, self.location, self.check_lock, self._copied_versions)
        self._copied_versions = done.tables.versions
        self.state = StandbyState(self.location.root, True, done.tables.epoch)

    def release(self, reason: str) -> None:
        """Stop copying to the standby, release its lock, and store why it is not connected."""
        self.state = StandbyState(self.location.root, epoch=self.state.epoch, reason=reason)
        self._copied_versions = {}
        lock, self._lock = self._lock, None
        if self._copy_thread is not None:
            self._copy_thread.stop()
            self._copy_thread = None
        if lock is None:
            return
        try:
            lock.check_held()
            table = RidTable(self.location)
            if table.last().number:
                table.update("unlock", last_epoch(self.location), _unlock)
        except STANDBY_FAILURES as error:
            log.debug("the RID of %s still says locked: %s", self.location.root, error)
        finally:
            lock.__exit__(None, None, None)

    def _take_lock(self) -> None:
        if local_folder(self.location.root) is not None and not self.location.has_folder_or_parent():
            raise SyncError("neither the folder nor its parent exists", file=self.location.root)
        lock = WriterLock(self.location, f"the job of {self.source.root}, which keeps this copy connected")
        lock.__enter__()
        self._lock = lock

    def check_lock(self) -> None:
        """Raise LockError if this writer does not have the standby's lock any more."""
        if self._lock is None:
            raise LockError("the standby's lock was released", warehouse=self.location.root)
        self._lock.check_held()


class _CopyAheadThread(threading.Thread):
    """A thread that copies data files to a standby until little is left (`warehouse.copies.sync.copy_ahead`)."""

    def __init__(
        self, source: WarehouseLocation, target: WarehouseLocation, check_lock: Callable[[], None]
    ) -> None:
        super().__init__(name="copy-ahead", daemon=True)
        self._source, self._target, self._check_lock = source, target, check_lock
        self._stopped = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            copy_ahead(self._source, self._target, self._raise_if_stopped)
        except BaseException as error:  # raised again in the writer's thread
            self._error = error

    def stop(self) -> None:
        """Stop the copy after its current file, and wait for the thread to end."""
        self._stopped.set()
        self.join()

    def ends_within(self, seconds: float) -> bool:
        """Wait at most some seconds, and return whether the copy has ended; raise the error that ended it."""
        self.join(seconds)
        if self.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def _raise_if_stopped(self) -> None:
        if self._stopped.is_set():
            raise LockError("the copy was stopped", warehouse=self._target.root)
        self._check_lock()


class Standbys:
    """All standbys of a primary, which its writer keeps connected.

    Args:
        retry_seconds: How long after a failure a standby is tried again.
        now: Returns seconds of a clock that never goes back.
    """

    def __init__(
        self,
        source: WarehouseLocation,
        standbys: Sequence[WarehouseLocation],
        *,
        retry_seconds: float = RETRY_SECONDS,
        waits: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._rid = source, RidTable(source)
        self._standbys = [ConnectedStandby(source, location) for location in standbys]
        self._retry_seconds, self._waits, self._now = retry_seconds, waits, now
        self._is_mark_removed = False

    def states(self) -> list[StandbyState]:
        """Return the state of each standby; may be called from any thread."""
        return [standby.state for standby in self._standbys]

    def refuse_newer(self) -> None:
        """Compare this warehouse with the standbys that can be reached, and raise if it must not be written.

        Raises:
            RidStateError: A standby is newer, is a primary itself, or is not a copy of this warehouse.
        """
        ours = read_compared_rid(self._source)
        for standby in self._standbys:
            try:
                theirs = read_compared_rid(standby.location)
            except STANDBY_FAILURES as error:
                log.warning("standby %s cannot be compared: %s", standby.location.root, error)
            else:
                _refuse_newer(ours, theirs)

    def connect_all(self) -> None:
        """Set the mark, since no standby is connected yet, and connect the standbys that can be reached."""
        if self._standbys:
            self._is_mark_removed = False
            if self._rid.last().node.next_head is None:
                self._set_mark(self._standby_roots())
            self.copy_and_reconnect()

    def before_epoch(self) -> None:
        """Copy the newest epoch to each connected standby; disconnect one that fails. Called before each new epoch."""
        connected = [standby for standby in self._standbys if standby.state.is_connected]
        if not connected:
            return
        epoch = last_epoch(self._source)
        for standby in connected:
            try:
                standby.check_lock()
                if standby.state.epoch < epoch:
                    standby.copy_new_epochs()
            except STANDBY_FAILURES as error:
                self._disconnect(standby, error)

    def copy_and_reconnect(self) -> None:
        """Copy the newest epoch to the connected standbys, and try others that are due. Called between epochs."""
        self.before_epoch()
        for standby in self._standbys:
            if standby.state.is_connected or (standby.retry_at > self._now() and not standby.is_copying):
                continue
            try:
                if standby.connect():
                    log.info(
                        "standby %s is connected, at epoch %d", standby.location.root, standby.state.epoch
                    )
            except STANDBY_FAILURES as error:
                self._disconnect(standby, error)
        self._remove_mark_if_connected()

    def has_retry_due(self) -> bool:
        """Whether a standby that is not connected is due to be tried again."""
        return any(
            not standby.state.is_connected and standby.retry_at <= self._now() for standby in self._standbys
        )

    def close(self) -> None:
        """Copy the newest epoch, set the mark, and release all locks."""
        self.before_epoch()
        while self._waits and any(standby.is_copying for standby in self._standbys):
            time.sleep(0.05)
            self.copy_and_reconnect()
        if self._is_mark_removed:
            self._set_mark(self._standby_roots())
        for standby in self._standbys:
            standby.release("its primary's job has ended")

    def abandon(self) -> None:
        """Release all locks without copying: the writer has failed, or lost its own lock."""
        for standby in self._standbys:
            standby.release("its primary's job has failed")

    def _disconnect(self, standby: ConnectedStandby, error: Exception) -> None:
        """Disconnect a standby that failed, until it is tried again after `retry_seconds`."""
        if standby.state.is_connected:
            self._set_mark([standby.location.root])
        log.warning("standby %s is not connected: %s", standby.location.root, error)
        standby.release(str(error))
        standby.retry_at = self._now() + self._retry_seconds

    def _standby_roots(self) -> list[str]:
        return [standby.location.root for standby in self._standbys]

    def _set_mark(self, lost_roots: Sequence[str]) -> None:
        """Set the mark in the primary's RID, since the standbys in these folders are not connected."""
        self._is_mark_removed = False
        record_lost_standbys(self._rid, lost_roots)

    def _remove_mark_if_connected(self) -> None:
        """Remove the mark if all standbys are connected and no other copy of this generation exists."""
        if (
            self._is_mark_removed
            or not self._standbys
            or not all(standby.state.is_connected for standby in self._standbys)
        ):
            return
        try:
            for standby in self._standbys:
                standby.check_lock()
        except LockError:
            return  # the next epoch finds it
        roots = self._standby_roots()
        others = other_copies(self._rid.history(), roots)
        if others:
            log.debug("the next data begin a new generation: %s may have this one", ", ".join(others))
            return
        record_connection(self._rid, roots)
        self._is_mark_removed = True


def _lock_and_connect(node: Node) -> Node:
    return node if node.rid.primary else operations.clear_mark(operations.lock(node))


def _unlock(node: Node) -> Node:
    return node if node.rid.primary else operations.unlock(node)


def _refuse_newer(ours: ComparedRid, theirs: ComparedRid) -> None:
    """Raise RidStateError if a standby (theirs) is newer than the warehouse (ours), a primary, or not its copy."""
    if theirs.node.rid == Rid():
        return
    found = compare_warehouses(ours, theirs)
    where = {"warehouse": ours.name, "standby": theirs.name}
    if found.verdict is Verdict.UNRELATED:
        advice = "name a copy of this warehouse, or an empty location, under `standby.peers`"
        raise RidStateError(
            "the standby is not a copy of this warehouse; nothing was written", **where, advice=advice
        )
    if found.target == "a":
        advice = (
            f"`aggregator rid demote {ours.name}`, then `aggregator rid sync --from {theirs.name} --to {ours.name}`, "
            "and write to the one that shall be primary"
        )
        raise RidStateError(
            "the standby is newer than this warehouse; nothing was written", **where, advice=advice
        )
    if theirs.node.rid.primary:
        advice = f"`aggregator rid compare {ours.name} {theirs.name}`, then demote one of them"
        state = (
            "split brain: the standby was written, too"
            if found.verdict is Verdict.SPLIT_BRAIN
            else "the standby is a primary, too"
        )
        raise RidStateError(f"{state}; nothing was written", **where, advice=advice)


def record_lost_standbys(table: RidTable, lost: Sequence[str]) -> RidChange:
    """Set the mark of a primary that has lost standbys: its next data begin a new generation."""
    mark = new_ulid()
    return table.update(
        LOSE_PEER,
        last_epoch(table.location),
        lambda node: operations.lose_connection(node, mark, was_primary=False),
        peer=NAME_SEPARATOR.join(lost),
    )


def record_connection(table: RidTable, others: Sequence[str]) -> RidChange:
    """Remove the mark of a warehouse, and `crashed_primary` from its RID, since all copies are connected and equal."""
    epoch = last_epoch(table.location)

    def change(node: Node) -> Node:
        return operations.settle_crash(operations.clear_mark(node))

    return table.update(CONNECT, epoch, change, peer=NAME_SEPARATOR.join(others), is_always_written=True)


def set_missing_mark(table: RidTable) -> None:
    """Set the mark if the last writer was killed with connected standbys, so that it could not set the mark."""
    ends = [c for c in table.history() if c.event in (CONNECT, LOSE_PEER)]
    if ends and ends[-1].event == CONNECT and ends[-1].node.rid.primary:
        record_lost_standbys(table, _standby_names(ends[-1]))


def other_copies(history: Sequence[RidChange], standbys: Sequence[str]) -> list[str]:
    """Return the copies of the head, made since its last `connect` event, that are not among the standbys."""
    head = history[-1].node.rid.head if history else EMPTY_ULID
    found: list[str] = []
    for change in history:
        if change.node.rid.head != head:
            continue
        if change.event == CONNECT:
            found = []
        elif change.event in COPY_EVENTS:
            found += [name for name in _standby_names(change) if name not in (*standbys, *found)]
    return found


def _standby_names(change: RidChange) -> list[str]:
    return [] if change.peer is None else change.peer.split(NAME_SEPARATOR)

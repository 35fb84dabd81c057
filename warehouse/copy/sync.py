"""Copies a warehouse: from which epoch, in which order, and what the RIDs of both sides say meanwhile.

    mark the source → announce the sync in the target's RID → remove discarded branches from the target, `_epochs` first
        → bring data files and logs, `_epochs` last → check all of it → the target's RID: complete

The mark ends the source's generation with the cut that is copied: what it writes from then on, also while the copy
runs, is the next one. Until its RID is complete the target is neither promoted nor copied from. Killed anywhere, it
opens at an epoch that both sides had or at one that the source had, and a new sync continues where this one ended.

`lost_after` names the epochs of a target that its source does not have: a copy over the target would lose them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from ulid import ULID

from schemas.errors import RidStateError, SyncError
from udfs.rid import operations
from udfs.rid.comparison import Comparison, Verdict
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY, Rid
from warehouse.copy import files
from warehouse.copy.table import TableCopy, Work, bring, check, missing_files, plan_table, truncate
from warehouse.generations import ComparedRid, common_epoch, compare_warehouses, side_of
from warehouse.lock import WriterLock
from warehouse.newest_epoch import (
    BEFORE_THE_FIRST,
    EPOCHS,
    TableVersions,
    last_epoch,
    named_tables,
    newest_versions,
)
from warehouse.place import Place
from warehouse.read import rows_of
from warehouse.rid import SYNC_END, SYNC_START, RidTable, new_ulid


@dataclass(frozen=True)
class Lost:
    """The epochs of one warehouse after a point.

    Parameters
    ----------
    after : int
        The last epoch that is not lost, `BEFORE_THE_FIRST` where all are.
    epochs, rows : int
        How many, and how many rows of the logs they settled.
    first, last : datetime or None
        When they were committed.
    tables : tuple of str
        The tables that they wrote, sorted.

    """

    after: int
    epochs: int
    rows: int
    first: datetime | None
    last: datetime | None
    tables: tuple[str, ...]

    def __str__(self) -> str:
        if not self.epochs:
            return f"no epoch after {self.after}: nothing would be lost"
        whole = self.after == BEFORE_THE_FIRST
        since = "all of it" if whole else f"epochs {self.after + 1} to {self.after + self.epochs}"
        return (
            f"lost would be {since}: {self.rows} rows of the logs, committed {self.first} to {self.last}, "
            f"in {len(self.tables)} tables: {', '.join(self.tables)}"
        )


def lost_after(place: Place, epoch: int) -> Lost:
    """Return the epochs of a warehouse after one of them, with their rows."""
    table = place.open(EPOCHS)
    if table is None:
        return Lost(epoch, 0, 0, None, None, ())
    columns = ["epoch", "rows", "committed_at", "versions"]
    rows = sorted(rows_of(table, columns), key=lambda row: int(row["epoch"]))
    kept = [row for row in rows if row["epoch"] <= epoch]
    given_up = [row for row in rows if row["epoch"] > epoch]
    before = dict(kept[-1]["versions"]) if kept else {}
    after = dict(given_up[-1]["versions"]) if given_up else {}
    changed = sorted(name for name, version in after.items() if before.get(name) != version)
    times = [row["committed_at"] for row in given_up if row["committed_at"] is not None]
    return Lost(
        epoch,
        # Maintenance may have removed rows of old epochs: they are lost all the same.
        int(given_up[-1]["epoch"]) - epoch if given_up else 0,
        sum(row["rows"] or 0 for row in given_up),
        min(times, default=None),
        max(times, default=None),
        tuple(changed),
    )


AHEAD_BYTES = 64 << 20
"""So little is copied between two epochs."""


@dataclass(frozen=True)
class Synced:
    """What a sync did.

    Parameters
    ----------
    cut : TableVersions
        What the target opens at.
    node : Node
        The target's RID.
    bytes : int
        Copied.
    rows : int
        In all tables of the target.

    """

    cut: TableVersions
    node: Node
    bytes: int
    rows: int


@dataclass(frozen=True)
class SyncOptions:
    """How a sync is done.

    Parameters
    ----------
    discard : Rid or None
        The target's RID, where its branch of a split brain is to be given up.
    check_all : bool
        Whether files that both sides have are compared by content, too.
    held : mapping of str to int, or None
        For a target that an earlier copy has left whole: what its logs name is there, and only what comes now is
        checked; of these tables, at these versions, nothing is looked at. None: all is checked.
    threads : int
        How many data files are copied at a time.
    planned, copied : callable
        Called with the number of bytes to copy, and with each piece that is done.

    """

    discard: Rid | None = None
    check_all: bool = True
    held: Mapping[str, int] | None = None
    threads: int = 4
    planned: Callable[[int], None] = lambda _bytes: None
    copied: Callable[[int], None] = lambda _bytes: None


def sync(source: Place, target: Place, options: SyncOptions | None = None) -> Synced:
    """Copy a warehouse onto another place, or bring the copy there up to date.

    Raises
    ------
    RidStateError
        Where the RIDs do not allow it: the target is newer, unrelated, a primary, or was written by itself and is not
        to be discarded; the source holds nothing whole.
    LockError
        While the target is written.
    SyncError
        Where a table cannot be copied, or is not the source's afterwards.

    """
    how = options or SyncOptions()
    if source.root == target.root:
        raise SyncError("source and target are one place", file=source.root, advice="name two")
    with WriterLock(target, "jobs/rid.py sync") as lock:
        return sync_locked(source, target, lock.check, how)


def sync_locked(source: Place, target: Place, check_lock: Callable[[], None], how: SyncOptions) -> Synced:
    """Do what `sync` does, where the caller has the target's writer lock.

    Parameters
    ----------
    source, target : Place
    check_lock : callable
        Raises where the lock is lost.
    how : SyncOptions

    """
    ours, theirs = side_of(source), side_of(target)
    found = compare_warehouses(ours, theirs)
    allow(found, ours, theirs, how.discard)
    known = common_epoch(ours, theirs, found.common) if found.verdict is Verdict.SPLIT_BRAIN else None
    source_rid, target_rid = RidTable(source), RidTable(target)
    cut, given = _separate(source_rid, target)
    _start(source_rid, target_rid, given, found, known)
    files.reached("start")
    copied, rows = _copy(source, target, cut, how, check_lock)
    check_lock()
    end = partial(_ended, mark=new_ulid())
    done = target_rid.update(SYNC_END, cut.epoch, end, peer=source.root)
    files.reached("end")
    if given.rid.crashed_primary:
        source_rid.update("settle_crash", last_epoch(source), operations.settle_crash)
    return Synced(cut, done.node, copied, rows)


def extend(
    source: Place,
    target: Place,
    check_lock: Callable[[], None],
    held: Mapping[str, int] | None = None,
) -> Synced:
    """Bring new epochs to a connected target, without a mark on the source.

    The source's writer calls it between two of its commits of epochs, and has the target's writer lock. The target
    goes from one epoch of the source to the next, so that it is readable meanwhile. Its RID changes only where the
    source has begun a generation.

    Parameters
    ----------
    source, target : Place
    check_lock : callable
        Raises where the target's lock is lost.
    held : mapping of str to int, optional
        Table versions that the caller has copied since it has the lock: these tables are not looked at again.

    Raises
    ------
    RidStateError
        The target is not connected: it is a primary, in a sync, or has another generation than the source had.
    SyncError
        A table cannot be copied.

    """
    source_rid, target_rid = RidTable(source), RidTable(target)
    cut = newest_versions(source)
    given = source_rid.last().at(cut.epoch).node
    node, epoch = target_rid.last().node, last_epoch(target)
    if not _is_connected(given.rid, node, epoch, cut.epoch):
        raise RidStateError(
            "the peer is not connected", warehouse=target.root, rid=node.rid, advice="compare the two"
        )
    begins = node.rid.head != given.rid.head
    if begins:
        target_rid.update(
            SYNC_START,
            epoch,
            lambda n: operations.start_sync(operations.lock(n, is_readable=False), given),
            peer=source.root,
            moves_epoch=True,
        )
        files.reached("start")
    copied, rows = _copy(source, target, cut, SyncOptions(check_all=False, held=held or {}), check_lock)
    if begins:
        check_lock()
        node = target_rid.update(SYNC_END, cut.epoch, _extended, peer=source.root).node
    files.reached("end")
    return Synced(cut, node, copied, rows)


def copy_ahead(source: Place, target: Place, check_lock: Callable[[], None]) -> None:
    """Copy data files that a target lacks until little is left, without its logs and its RID.

    A reader of the target does not see them; a sync finds them there. The source may be written meanwhile.

    Parameters
    ----------
    source, target : Place
    check_lock : callable
        Raises where the target's writer lock is lost.

    """
    files.clear_unfinished(target)
    copied = AHEAD_BYTES
    while copied >= AHEAD_BYTES:
        copied = 0
        for table, version in newest_versions(source).versions.items():
            for path in missing_files(source, target, table, version):
                check_lock()
                copied += files.copy(source, target, table, *path.split("/"))


def _is_connected(source: Rid, target: Node, epoch: int, newest: int) -> bool:
    """Whether a target can be brought from its epoch to the newest one without a comparison of its content."""
    rid = target.rid
    is_of_us = rid.base == source.base and rid.head in (source.head, source.old1)
    return is_of_us and rid.incoming == EMPTY and not rid.primary and target.next is None and epoch <= newest


def _extended(node: Node) -> Node:
    return operations.connect_all(operations.lock(operations.complete_sync(node)))


def allow(found: Comparison, ours: ComparedRid, theirs: ComparedRid, discard: Rid | None) -> None:
    """Raise unless the RIDs allow a sync.

    Raises
    ------
    RidStateError

    """
    rid = theirs.node.rid
    where = {"warehouse": theirs.name, "rid": rid}
    if ours.node.rid == Rid():
        advice = "promote it, or run the job once"
        raise RidStateError("the source has no RID", warehouse=ours.name, advice=advice)
    if found.verdict is Verdict.UNRELATED:
        raise RidStateError(
            "the target is no copy of the source",
            **where,
            advice="sync into an empty place; remove the target first",
        )
    if found.target == "a":
        raise RidStateError("the target is newer than the source", **where, advice="sync the other way")
    if rid.primary:
        raise RidStateError("the target is a primary", **where, advice="demote it first")
    if found.verdict is not Verdict.SPLIT_BRAIN:
        return
    if discard is None:
        raise RidStateError(
            "split brain: the target has data of its own, which a sync would lose; nothing was changed",
            **where,
            advice="give its RID as --discard-target to give them up",
        )
    if (discard.generations, discard.base) != (rid.generations, rid.base):
        raise RidStateError(
            f"--discard-target names {discard.head}, the target is at {rid.head}",
            **where,
            advice="look at it again",
        )


def _separate(ours: RidTable, target: Place) -> tuple[TableVersions, Node]:
    """Set the mark on the source, and return the cut with which its generation ends."""
    mark = new_ulid()
    while True:
        cut = newest_versions(ours.place)
        change = ours.update("copy", cut.epoch, lambda n: operations.separate(n, mark), peer=target.root)
        if change.epoch == cut.epoch:
            return cut, change.node


def _start(ours: RidTable, theirs: RidTable, given: Node, found: Comparison, known: int | None) -> None:
    """Record in the target's RID that a sync begins; after a split brain, remove the target's own generations.

    Parameters
    ----------
    ours, theirs : RidTable
        The source's, and the target's.
    given : Node
        The source's node.
    found : Comparison
    known : int or None
        After a split brain, the last epoch that both have.

    """
    last = theirs.last()
    discards = found.verdict is Verdict.SPLIT_BRAIN
    if discards:
        epoch = BEFORE_THE_FIRST if known is None else known
    else:
        # Epochs that an earlier attempt has brought are not yet those of its head.
        epoch = last.epoch if last.node.rid.incoming != EMPTY else last_epoch(theirs.place)

    def change(node: Node) -> Node:
        if discards:
            node = operations.drop_generations_after(node, found.common or EMPTY)
        return operations.start_sync(operations.lock(node, is_readable=False), given)

    theirs.update(SYNC_START, epoch, change, peer=ours.place.root, moves_epoch=True)


def _ended(node: Node, mark: ULID) -> Node:
    return operations.unlock(operations.separate(operations.complete_sync(node), mark))


def _copy(
    source: Place, target: Place, cut: TableVersions, how: SyncOptions, check_lock: Callable[[], None]
) -> tuple[int, int]:
    """Copy all tables of a cut, check them, and return the bytes copied and the rows that are there."""
    files.clear_unfinished(target)
    trusts = how.held is not None
    changed = {t: v for t, v in cut.versions.items() if not trusts or (how.held or {}).get(t) != v}
    order = sorted(changed, key=lambda name: (name == EPOCHS, name))
    plans = [
        plan_table(source, target, t, cut.versions[t], check_all=how.check_all, trusts_target=trusts)
        for t in order
    ]
    how.planned(sum(plan.bytes for plan in plans))
    discarded = sorted((named_tables(target) | files.noted(target)) - cut.versions.keys())
    if discarded:
        # Once `_epochs` is cut back, nothing else tells a discarded branch's tables from those of others.
        files.note(target, discarded)
    _transfer(source, target, plans, discarded, how, check_lock)
    files.clear_unfinished(target)
    rows = sum(check(source, target, plan, only_copied=trusts) for plan in plans if plan.bytes or not trusts)
    if last_epoch(target) != cut.epoch:
        raise SyncError(
            f"the copy is at epoch {last_epoch(target)} instead of {cut.epoch}", advice="sync again"
        )
    files.remove(target, files.DISCARDED)
    files.reached("check")
    return sum(plan.bytes for plan in plans), rows


def _transfer(
    source: Place,
    target: Place,
    plans: Sequence[TableCopy],
    discarded: Sequence[str],
    how: SyncOptions,
    check_lock: Callable[[], None],
) -> None:
    """Bring all tables; `_epochs`, the last of them, is the first from which a discarded branch is taken.

    Files are changed without a fence: so the lock is looked at before each.
    """

    def copied(size: int) -> None:
        how.copied(size)
        check_lock()

    for plan in reversed(plans):
        check_lock()
        truncate(target, plan)
    for name in discarded:
        check_lock()
        files.remove_folder(target, name)
        files.reached(f"drop {name}")
    with ThreadPoolExecutor(how.threads) as pool:

        def work(one: Callable[[str], None], names: list[str]) -> None:
            for _ in pool.map(one, names):
                pass

        side_by_side: Work = work
        for plan in plans:
            check_lock()
            bring(source, target, plan, copied, side_by_side)

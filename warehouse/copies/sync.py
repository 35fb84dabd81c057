"""Copies a warehouse to another location, and records the copy in the RIDs of both.

    mark the source → record the start in the target's RID → remove discarded branches from the target, `_epochs` first
        → copy data files and logs, `_epochs` last → check everything → record the end in the target's RID

The mark in the source's RID (`warehouse.copies.rid`) is the id of the next generation. It ends the source's generation
with the consistent snapshot that is copied: later epochs, also those committed during the copy, belong to the next
generation. Until the end is recorded, the target cannot be promoted or copied from. After a kill at any step, the
target can be read at an epoch that the source has, or had in common with the target, and a new sync continues where
this one ended.

`lost_epochs_after` describes the epochs that only the target has, and that a copy over the target would lose.
"""

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
from udfs.rid.value import EMPTY_ULID, Rid
from warehouse.copies import files
from warehouse.copies.generations import ComparedRid, common_epoch, compare_warehouses, read_compared_rid
from warehouse.copies.rid import SYNC_END, SYNC_START, RidTable, new_ulid
from warehouse.copies.table import (
    TableCopyPlan,
    check_copy,
    copy_files,
    missing_files,
    plan_table,
    truncate_log,
)
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import (
    EPOCHS,
    NO_EPOCH,
    TableVersions,
    last_epoch,
    named_tables,
    newest_versions,
)
from warehouse.delta.read import rows_of
from warehouse.lock.lock import WriterLock


@dataclass(frozen=True)
class LostEpochs:
    """The epochs of a warehouse after a given one, which a copy over the warehouse would lose."""

    after_epoch: int
    """The last epoch that is not lost; `NO_EPOCH` if all are."""
    epoch_count: int
    row_count: int
    """The number of lost epochs, and of the rows of logs that they read."""
    first_commit: datetime | None
    last_commit: datetime | None
    """When the first and the last lost epoch were committed."""
    tables: tuple[str, ...]
    """The tables that the lost epochs changed, sorted."""

    def __str__(self) -> str:
        if not self.epoch_count:
            return f"no epoch after {self.after_epoch}: nothing would be lost"
        whole = self.after_epoch == NO_EPOCH
        since = (
            "all of it"
            if whole
            else f"epochs {self.after_epoch + 1} to {self.after_epoch + self.epoch_count}"
        )
        return (
            f"lost would be {since}: {self.row_count} rows of the logs, "
            f"committed {self.first_commit} to {self.last_commit}, "
            f"in {len(self.tables)} tables: {', '.join(self.tables)}"
        )


def lost_epochs_after(location: WarehouseLocation, epoch: int) -> LostEpochs:
    """Describe the epochs of a warehouse after a given one, which a copy over the warehouse would lose."""
    table = location.open(EPOCHS)
    if table is None:
        return LostEpochs(epoch, 0, 0, None, None, ())
    columns = ["epoch", "rows", "committed_at", "versions"]
    rows = sorted(rows_of(table, columns), key=lambda row: int(row["epoch"]))
    kept = [row for row in rows if row["epoch"] <= epoch]
    lost = [row for row in rows if row["epoch"] > epoch]
    before = dict(kept[-1]["versions"]) if kept else {}
    after = dict(lost[-1]["versions"]) if lost else {}
    changed = sorted(name for name, version in after.items() if before.get(name) != version)
    times = [row["committed_at"] for row in lost if row["committed_at"] is not None]
    return LostEpochs(
        epoch,
        # Not the number of rows: maintenance may have removed some of old epochs.
        int(lost[-1]["epoch"]) - epoch if lost else 0,
        sum(row["rows"] or 0 for row in lost),
        min(times, default=None),
        max(times, default=None),
        tuple(changed),
    )


LAST_ROUND_BYTES = 64 << 20
"""`copy_ahead` ends after a round that copies fewer bytes; the rest is copied between two epochs."""


@dataclass(frozen=True)
class SyncResult:
    """The state of the target after a sync, and what was copied."""

    tables: TableVersions
    """The versions that the target has now."""
    node: Node
    """The target's RID."""
    copied_bytes: int
    checked_rows: int
    """How many bytes were copied, and how many rows were checked."""


@dataclass(frozen=True)
class SyncOptions:
    """Options of a sync."""

    discard_rid: Rid | None = None
    """The target's RID, to confirm that its branch of a split brain may be discarded."""
    check_all: bool = True
    """Whether files that both sides have are compared by content, too."""
    known_versions: Mapping[str, int] | None = None
    """None: all tables of the target are copied and checked. Otherwise an earlier copy has left the target complete:
    tables that the mapping has with their current version are skipped, and only copied files are checked."""
    threads: int = 4
    """How many data files are copied at a time."""
    on_planned: Callable[[int], None] = lambda _bytes: None
    on_copied: Callable[[int], None] = lambda _bytes: None
    """Called once with the number of bytes to copy, and with the size of each copied file, in bytes."""


def sync(
    source: WarehouseLocation, target: WarehouseLocation, options: SyncOptions | None = None
) -> SyncResult:
    """Copy a warehouse to another location, or bring the copy there up to date.

    Raises:
        RidStateError: If the RIDs do not allow it: the target is newer, unrelated, a primary, or has data of its own
            that may not be discarded; or the source is not complete.
        LockError: If a writer has the target's lock.
        SyncError: If a table cannot be copied, or the copy differs from the source.
    """
    options = options or SyncOptions()
    if source.root == target.root:
        raise SyncError(
            "source and target are the same location", file=source.root, advice="name two locations"
        )
    with WriterLock(target, "jobs/rid.py sync") as lock:
        return sync_locked(source, target, lock.check, options)


def sync_locked(
    source: WarehouseLocation, target: WarehouseLocation, check_lock: Callable[[], None], options: SyncOptions
) -> SyncResult:
    """Do the work of `sync` for a caller that has the target's writer lock."""
    ours, theirs = read_compared_rid(source), read_compared_rid(target)
    found = compare_warehouses(ours, theirs)
    require_syncable(found, ours, theirs, options.discard_rid)
    last_common_epoch = (
        common_epoch(ours, theirs, found.common) if found.verdict is Verdict.SPLIT_BRAIN else None
    )
    source_rid, target_rid = RidTable(source), RidTable(target)
    tables, source_node = _mark_source(source_rid, target)
    _record_start(source_rid, target_rid, source_node, found, last_common_epoch)
    files.log_step_done("start")
    copied, rows = _copy_tables(source, target, tables, options, check_lock)
    check_lock()
    end = partial(_end_sync, mark=new_ulid())
    done = target_rid.update(SYNC_END, tables.epoch, end, peer=source.root)
    files.log_step_done("end")
    if source_node.rid.crashed_primary:
        source_rid.update("settle_crash", last_epoch(source), operations.settle_crash)
    return SyncResult(tables, done.node, copied, rows)


def copy_new_epochs(
    source: WarehouseLocation,
    target: WarehouseLocation,
    check_lock: Callable[[], None],
    known_versions: Mapping[str, int] | None = None,
) -> SyncResult:
    """Copy to a connected target the epochs that it lacks, without setting the mark in the source's RID.

    Called by the source's writer between two commits of epochs; it also has the target's writer lock. The target can be
    read all the time. Its RID changes only if the source has begun a new generation.

    Raises:
        RidStateError: The target is not connected: it is a primary, in a sync, or its generation is not one of the
            source's last two.
        SyncError: A table cannot be copied.
    """
    source_rid, target_rid = RidTable(source), RidTable(target)
    tables = newest_versions(source)
    source_node = source_rid.last().at(tables.epoch).node
    node, epoch = target_rid.last().node, last_epoch(target)
    if not _is_connected(source_node.rid, node, epoch, tables.epoch):
        raise RidStateError(
            "the standby is not connected", warehouse=target.root, rid=node.rid, advice="compare the two"
        )
    is_new_generation = node.rid.head != source_node.rid.head
    if is_new_generation:
        target_rid.update(
            SYNC_START,
            epoch,
            lambda n: operations.start_sync(operations.lock(n, is_readable=False), source_node),
            peer=source.root,
            may_lower_epoch=True,
        )
        files.log_step_done("start")
    copied, rows = _copy_tables(
        source, target, tables, SyncOptions(check_all=False, known_versions=known_versions or {}), check_lock
    )
    if is_new_generation:
        check_lock()
        node = target_rid.update(SYNC_END, tables.epoch, _end_copied_generation, peer=source.root).node
    files.log_step_done("end")
    return SyncResult(tables, node, copied, rows)


def copy_ahead(source: WarehouseLocation, target: WarehouseLocation, check_lock: Callable[[], None]) -> None:
    """Copy missing data files to a target until little is left; its logs and its RID do not change.

    Readers of the target do not see these files; the next sync uses them. The source may be written meanwhile.
    """
    files.remove_unfinished_files(target)
    copied = LAST_ROUND_BYTES
    while copied >= LAST_ROUND_BYTES:
        copied = 0
        for table, version in newest_versions(source).versions.items():
            for path in missing_files(source, target, table, version):
                check_lock()
                copied += files.copy(source, target, table, *path.split("/"))


def _is_connected(source: Rid, target: Node, target_epoch: int, source_epoch: int) -> bool:
    """Whether a target has what the source had at `target_epoch`, so that only later epochs must be copied."""
    rid = target.rid
    is_known = rid.base == source.base and rid.head in (source.head, source.old1)
    return (
        is_known
        and rid.incoming == EMPTY_ULID
        and not rid.primary
        and target.next_head is None
        and target_epoch <= source_epoch
    )


def _end_copied_generation(node: Node) -> Node:
    return operations.clear_mark(operations.lock(operations.complete_sync(node)))


def require_syncable(
    comparison: Comparison, ours: ComparedRid, theirs: ComparedRid, discard_rid: Rid | None
) -> None:
    """Raise RidStateError unless the RIDs of source (ours) and target (theirs) allow a sync."""
    rid = theirs.node.rid
    where = {"warehouse": theirs.name, "rid": rid}
    if ours.node.rid == Rid():
        advice = "promote it, or run the job once"
        raise RidStateError("the source has no RID", warehouse=ours.name, advice=advice)
    if comparison.verdict is Verdict.UNRELATED:
        raise RidStateError(
            "the target is not a copy of the source",
            **where,
            advice="sync into an empty location, or remove the target first",
        )
    if comparison.target == "a":
        raise RidStateError("the target is newer than the source", **where, advice="sync the other way")
    if rid.primary:
        raise RidStateError("the target is a primary", **where, advice="demote it first")
    if comparison.verdict is not Verdict.SPLIT_BRAIN:
        return
    if discard_rid is None:
        raise RidStateError(
            "split brain: the target has data of its own, which a sync would lose; nothing was changed",
            **where,
            advice="give its RID as --discard-target to discard them",
        )
    if (discard_rid.generations, discard_rid.base) != (rid.generations, rid.base):
        raise RidStateError(
            f"--discard-target names {discard_rid.head}, the target is at {rid.head}",
            **where,
            advice="look at it again",
        )


def _mark_source(source_rid: RidTable, target: WarehouseLocation) -> tuple[TableVersions, Node]:
    """Set the mark in the source's RID; return (the table versions at its generation's end, its RID and mark)."""
    mark = new_ulid()
    while True:
        tables = newest_versions(source_rid.location)
        change = source_rid.update(
            "copy", tables.epoch, lambda n: operations.mark_unconnected_copy(n, mark), peer=target.root
        )
        if change.epoch == tables.epoch:
            return tables, change.node


def _record_start(
    source_rid: RidTable,
    target_rid: RidTable,
    source_node: Node,
    comparison: Comparison,
    last_common_epoch: int | None,
) -> None:
    """Record in the target's RID that a sync begins; after a split brain, also drop the target's own generations."""
    last = target_rid.last()
    discards = comparison.verdict is Verdict.SPLIT_BRAIN
    if discards:
        epoch = NO_EPOCH if last_common_epoch is None else last_common_epoch
    else:
        # Epochs that an unfinished sync has copied do not belong to the target's head yet.
        epoch = last.epoch if last.node.rid.incoming != EMPTY_ULID else last_epoch(target_rid.location)

    def change(node: Node) -> Node:
        if discards:
            node = operations.drop_generations_after(node, comparison.common or EMPTY_ULID)
        return operations.start_sync(operations.lock(node, is_readable=False), source_node)

    target_rid.update(SYNC_START, epoch, change, peer=source_rid.location.root, may_lower_epoch=True)


def _end_sync(node: Node, mark: ULID) -> Node:
    return operations.unlock(operations.mark_unconnected_copy(operations.complete_sync(node), mark))


def _copy_tables(
    source: WarehouseLocation,
    target: WarehouseLocation,
    tables: TableVersions,
    options: SyncOptions,
    check_lock: Callable[[], None],
) -> tuple[int, int]:
    """Copy tables at given versions and check them; return (number of bytes copied, number of rows checked)."""
    files.remove_unfinished_files(target)
    trusts_target = options.known_versions is not None
    changed = {
        t: v
        for t, v in tables.versions.items()
        if not trusts_target or (options.known_versions or {}).get(t) != v
    }
    order = sorted(changed, key=lambda name: (name == EPOCHS, name))
    plans = [
        plan_table(
            source, target, t, tables.versions[t], check_all=options.check_all, trusts_target=trusts_target
        )
        for t in order
    ]
    options.on_planned(sum(plan.total_bytes for plan in plans))
    discarded = sorted(
        (named_tables(target) | files.recorded_discarded_table_names(target)) - tables.versions.keys()
    )
    if discarded:
        # Once `_epochs` is truncated, only this note names the tables that a discarded branch has created.
        files.record_discarded_table_names(target, discarded)
    _apply_plans(source, target, plans, discarded, options, check_lock)
    files.remove_unfinished_files(target)
    checked = [plan for plan in plans if plan.total_bytes or not trusts_target]
    rows = sum(check_copy(source, target, plan, only_copied=trusts_target) for plan in checked)
    if last_epoch(target) != tables.epoch:
        raise SyncError(
            f"the copy is at epoch {last_epoch(target)} instead of {tables.epoch}", advice="sync again"
        )
    files.remove(target, files.DISCARDED_FILE)
    files.log_step_done("check")
    return sum(plan.total_bytes for plan in plans), rows


def _apply_plans(
    source: WarehouseLocation,
    target: WarehouseLocation,
    plans: Sequence[TableCopyPlan],
    discarded: Sequence[str],
    options: SyncOptions,
    check_lock: Callable[[], None],
) -> None:
    """Remove discarded branches and tables from the target, then copy all tables.

    `_epochs`, the last of the plans, is truncated first and copied last. The fence does not protect these changes of
    files, so the lock is checked before each of them.
    """

    def on_copied(file_bytes: int) -> None:
        options.on_copied(file_bytes)
        check_lock()

    for plan in reversed(plans):
        check_lock()
        truncate_log(target, plan)
    for name in discarded:
        check_lock()
        files.remove_folder(target, name)
        files.log_step_done(f"drop {name}")
    with ThreadPoolExecutor(options.threads) as pool:

        def map_paths(copy_one: Callable[[str], None], paths: list[str]) -> None:
            for _ in pool.map(copy_one, paths):
                pass

        for plan in plans:
            check_lock()
            copy_files(source, target, plan, on_copied, map_paths)

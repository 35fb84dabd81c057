"""Plans which old rows of each table are removed, and which stay and why; then removes them.

Planning writes nothing. Rows are removed before the epoch that commits this; if the process ends between, the next
start rolls the tables back. `_epochs` itself comes last, in one commit of its own. A second run removes nothing.

A tombstone is a deleted version in `_versions`. It is removed when it is older than its retention time and no later row
can need it. A deletion may take part in the choice between versions of several replicasets (`deletes: all`), now or
under a later policy. So a key is removed from `_versions` as a whole, and only if

- no replicaset has a tuple under it, or an unfit version;
- every replicaset was read to a time after the deletion plus the retention time of tombstones, so that no row that can
  still come is older than the deletion, even if clocks differ;
- its policy lets the later of two versions win, or does not compare deletions at all. Under other policies a deletion
  may win against any later row, so it stays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from config.deployment import Config
from config.policies import Policy
from config.retention import Retention
from pipeline.lookup.files import BaseFiles
from pipeline.lookup.key_search import KeySearch
from pipeline.lookup.lookup import find_versions
from pipeline.lookup.requests import BaseRequest
from pipeline.lookup.versions import MERGED, STATE_NAMES, times_of
from pipeline.lookup.versions_table import VERSIONS
from pipeline.plan.spaces.tables import current_table_plan
from pipeline.retention.changelog import changelog_removal
from pipeline.retention.progress import ReadProgress, SourceProgress, read_progress
from pipeline.retention.removal import (
    Removal,
    read_columns,
    removal_of_marked_rows,
    remove_rows,
    without_nulls,
)
from pipeline.state import State
from pipeline.write.system_rows import append_rows
from schemas.errors import UnsupportedError
from schemas.names import replicaset_label, table_of_exact_tuples
from schemas.policies import LAST_WRITE_WINS
from schemas.states import ConflictKind
from udfs.buffers import as_array
from udfs.keys.grouping import group
from udfs.versions.kernels.lives import DELETED, NO_TIME, NONE, PRESENT, UNFIT
from warehouse.delta.commits import OpenTables
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.delta.table_files import OpenFile, TableFile, open_file
from warehouse.system_tables.maintenance import RETENTION, first_readable_epoch

KEYS_AT_ONCE = 200_000

_READ_COLUMNS = ("space", "key", "state", "timestamp", "epoch")


@dataclass(frozen=True)
class TombstoneLimits:
    """A deletion is old enough if `epoch` or an earlier one has read it, and if its timestamp is before `time`."""

    epoch: int
    time: datetime


def tombstone_removal(
    tables: OpenTables, state: State, config: Config, limits: TombstoneLimits
) -> tuple[Removal, list[str]]:
    """Return the rows of `_versions` to remove, and texts: why other old deletions stay."""
    files = tables.files(VERSIONS)
    row_numbers = [_row_numbers(tables, file) for file in files]
    gone = [np.zeros(len(numbers) and int(numbers[-1]) + 1, np.bool_) for numbers in row_numbers]
    stay_reasons, search = [], KeySearch()
    for space in _spaces_with_deletions(tables, files):
        rows = _rows_of_space(tables, files, space)
        removable = _is_removable(tables, state, files, space, rows, limits, search)
        if removable.any() and not _lets_later_rows_win(state, config, space):
            stay_reasons.append(
                f"deleted keys of {space} stay: its policy may prefer a deletion to any later row"
            )
            continue
        numbers, indices = rows["file"].to_numpy()[removable], rows["index"].to_numpy()[removable]
        for number in np.unique(numbers):
            gone[number][indices[numbers == number]] = True
    masks = (pa.array(one[numbers]) for one, numbers in zip(gone, row_numbers, strict=True))
    return removal_of_marked_rows(VERSIONS, zip(files, masks, strict=True)), stay_reasons


def _row_numbers(tables: OpenTables, file: TableFile) -> NDArray[np.int64]:
    with open_file(tables.location, VERSIONS, file) as opened:
        return opened.row_numbers()


def _spaces_with_deletions(tables: OpenTables, files: Sequence[TableFile]) -> list[str]:
    found: set[str] = set()
    for file in files:
        rows = read_columns(tables, VERSIONS, file, ["space", "state"])
        absent = pc.is_in(rows["state"], pa.array([STATE_NAMES[DELETED], STATE_NAMES[NONE]]))
        found.update(pc.unique(rows["space"].filter(absent)).to_pylist())
    return sorted(found)


def _rows_of_space(tables: OpenTables, files: Sequence[TableFile], space: str) -> pa.Table:
    """Return a space's rows of `_versions`, with the columns `file` (an index in `files`) and `index` (physical)."""
    parts = [part for number, file in enumerate(files) for part in _rows_in_file(tables, file, number, space)]
    return pa.concat_tables(parts).combine_chunks()


def _rows_in_file(tables: OpenTables, file: TableFile, file_number: int, space: str) -> Iterator[pa.Table]:
    with open_file(tables.location, VERSIONS, file) as opened:
        for group in opened.read_row_groups(_READ_COLUMNS, _groups_with_space(opened, space)):
            own = pc.indices_nonzero(pc.equal(group.rows["space"], space))
            found = group.rows.take(own).drop_columns(["space"])
            found = found.append_column("file", pa.repeat(pa.scalar(file_number, pa.int32()), len(own)))
            yield found.append_column("index", pa.array(group.numbers[own.to_numpy()]))


def _groups_with_space(file: OpenFile, space: str) -> list[int]:
    column = file.footer.schema.names.index("space")
    known = [
        file.footer.row_group(number).column(column).statistics
        for number in range(file.footer.num_row_groups)
    ]
    return [
        number
        for number, one in enumerate(known)
        if one is None or not one.has_min_max or one.min <= space <= one.max
    ]


def _is_removable(
    tables: OpenTables,
    state: State,
    files: Sequence[TableFile],
    space: str,
    rows: pa.Table,
    limits: TombstoneLimits,
    search: KeySearch,
) -> NDArray[np.bool_]:
    """Return for each row whether its key is deleted in all replicasets, and each deletion is old enough."""
    keys = as_array(rows["key"])
    groups = group(np.zeros(len(keys), np.int32), keys)
    codes = as_array(rows["state"]).dictionary_encode()
    names = codes.dictionary.to_pylist()
    numbers = codes.indices.to_numpy(zero_copy_only=False)
    is_deleted = np.array([name == STATE_NAMES[DELETED] for name in names], np.bool_)[numbers]
    is_absent = is_deleted | np.array([name == STATE_NAMES[NONE] for name in names], np.bool_)[numbers]
    times = times_of(rows["timestamp"])
    before = int(limits.time.timestamp() * 1_000_000)
    is_young = rows["epoch"].to_numpy() > limits.epoch
    is_young |= is_deleted & ((times >= before) | (times == NO_TIME))
    may_go = np.zeros(len(groups), np.bool_)
    may_go[groups.group_numbers[is_absent]] = True
    may_go[groups.group_numbers[is_young]] = False
    chosen = np.flatnonzero(may_go)
    name = table_of_exact_tuples(state.versions, space)
    own = (name, tables.files(name)) if name in state.versions else ("", ())
    base = BaseFiles(tables.location, {0: own}, files, (space,))
    for begin in range(0, len(chosen), KEYS_AT_ONCE):
        some = keys.take(pa.array(groups.first_rows[chosen[begin : begin + KEYS_AT_ONCE]]))
        found = find_versions([BaseRequest(0, some, {}, False, True)], base, search).base_versions
        lives = np.isin(found["state"].to_numpy(), (PRESENT, UNFIT, MERGED))
        alive = groups.find(np.zeros(found.num_rows, np.int32), as_array(found["key"]))
        may_go[alive[lives & (alive >= 0)]] = False
    return may_go[groups.group_numbers]


def _lets_later_rows_win(state: State, config: Config, table: str) -> bool:
    try:
        plan = current_table_plan(state, config, table)
    except UnsupportedError:
        plan = None
    policies = config.policies
    if plan is not None:
        return _policy_lets_later_win(plan.policy)
    # No replicaset defines the table any more: it may become the table of a space with any of the policies.
    return all(map(_policy_lets_later_win, (policies.default, *map(policies.of, policies.spaces))))


def _policy_lets_later_win(policy: Policy) -> bool:
    by_time = policy.policy == LAST_WRITE_WINS and not policy.sequence
    return policy.deletes == "own" or by_time


MAX_REASONS = 10


@dataclass(frozen=True)
class Cleaning:
    """The rows to remove from all tables, and why other old rows stay."""

    removals: Sequence[Removal]
    """Removals from all tables but `_epochs`."""
    epochs_removal: Removal
    stay_reasons: Sequence[str]
    """Texts for the report: which old rows stay, and why."""

    def count_texts(self) -> list[str]:
        """Return, for each table with rows to remove, a text with their number."""
        found = [one for one in (*self.removals, self.epochs_removal) if one.row_count]
        return [f"{one.row_count} rows of {one.table}" for one in found]


def plan_cleaning(
    tables: OpenTables,
    state: State,
    config: Config,
    retention: Retention,
    sources: SourceProgress,
    keep_days: int,
    now: datetime | None = None,
) -> Cleaning:
    """Return the rows to remove; writes nothing.

    Args:
        keep_days: The minimum number of days for which epochs stay readable, even if `retention.epochs` is less.
    """
    progress = read_progress(tables, state, retention, sources, now or datetime.now(UTC))
    removals: list[Removal] = []
    stay_reasons: list[str] = []
    if retention.changelog is not None:
        found, reasons = changelog_removal(tables, state, sources, progress, retention.changelog)
        removals.append(found)
        stay_reasons += reasons
    if retention.tombstones is not None:
        limits, reasons = _tombstone_limits(state, sources, progress, retention.tombstones)
        stay_reasons += reasons
        if limits is not None:
            found, reasons = tombstone_removal(tables, state, config, limits)
            removals.append(found)
            stay_reasons += reasons
    if retention.conflicts is not None:
        removals.append(_conflicts_removal(tables, progress, retention.conflicts))
    days = retention.epochs
    epochs = Removal(EPOCHS) if days is None else _epochs_removal(tables, progress, max(days, keep_days))
    stay_reasons += _texts_about_waiting_rows(tables, progress.now - timedelta(days=retention.pending))
    return Cleaning([one for one in removals if one.files], epochs, stay_reasons)


def _tombstone_limits(
    state: State, sources: SourceProgress, progress: ReadProgress, days: int
) -> tuple[TombstoneLimits | None, list[str]]:
    """Return which deletions are old enough (None if no deletion is), and texts: why others stay."""
    epoch = progress.old_epoch(days)
    if epoch is None:
        return None, []
    labels = {one.id: replicaset_label(uuid, one.last_source) for uuid, one in state.replicasets.items()}
    reasons = [f"source {name}: {why}" for name, why in sources.unread_reasons.items()]
    reasons += [
        f"replicaset {labels[n]}: a divergence is open" for n in sorted(progress.diverged & labels.keys())
    ]
    missing = sorted(progress.active - progress.read_times.keys())
    reasons += [f"replicaset {labels[number]}: no row of its log was read" for number in missing]
    low = progress.read_until()
    if reasons or low is None:
        return None, [f"deleted keys stay: {reason}" for reason in reasons]
    limit = low - timedelta(days=days)
    slow = [n for n in sorted(progress.active) if progress.read_times[n] < progress.now - timedelta(days=1)]
    stay_reasons = [
        f"deleted keys from {limit:%Y-%m-%d %H:%M} UTC on stay: replicaset {labels[n]} was read up to "
        f"{progress.read_times[n]:%Y-%m-%d %H:%M} UTC"
        for n in slow
        if progress.read_times[n] == low
    ]
    return TombstoneLimits(epoch, limit), stay_reasons


def _conflicts_removal(tables: OpenTables, progress: ReadProgress, days: int) -> Removal:
    until = progress.old_epoch(days)
    files = []
    for file in [] if until is None else tables.files_between("_conflicts", "epoch", 0, until):
        rows = read_columns(tables, "_conflicts", file, ["epoch", "kind"])
        is_old = pc.less_equal(rows["epoch"], until)
        is_secondary = pc.fill_null(pc.equal(rows["kind"], ConflictKind.SECONDARY), False)
        files.append((file, without_nulls(pc.and_(is_old, pc.invert(is_secondary)))))
    return removal_of_marked_rows("_conflicts", files)


def _epochs_removal(tables: OpenTables, progress: ReadProgress, days: int) -> Removal:
    """Return the epochs to remove: those before the one that was the newest `days` days ago.

    The last epoch of each stream stays: Spark may repeat its batch, and its offset has the replicasets' leaders.
    """
    committed = {int(row["epoch"]): row["committed_at"] for row in progress.epochs}
    if not committed:
        return Removal(EPOCHS)
    first = first_readable_epoch(committed, progress.now - timedelta(days=days))
    lasts = {row["query_id"]: row["epoch"] for row in progress.epochs if row["has_offset"]}
    stays = pa.array(sorted(set(lasts.values())), pa.int64())
    files = []
    for file in tables.files_between(EPOCHS, "epoch", 0, first - 1):
        rows = read_columns(tables, EPOCHS, file, ["epoch"])
        is_last = pc.is_in(rows["epoch"], stays)
        files.append((file, without_nulls(pc.and_(pc.less(rows["epoch"], first), pc.invert(is_last)))))
    return removal_of_marked_rows(EPOCHS, files)


def _texts_about_waiting_rows(tables: OpenTables, until: datetime) -> list[str]:
    """Return texts about rows of `_pending` with timestamps before a time; these rows stay."""
    parts = []
    for file in tables.files("_pending"):
        rows = read_columns(tables, "_pending", file, ["replicaset_id", "reason", "timestamp"])
        parts.append(rows.filter(pc.less(rows["timestamp"], pa.scalar(until))))
    if not sum(part.num_rows for part in parts):
        return []
    whole = pa.concat_tables(parts, promote_options="default").group_by(["replicaset_id", "reason"])
    found = whole.aggregate([("timestamp", "min"), ([], "count_all")]).sort_by("timestamp_min").to_pylist()
    return [
        f"{row['count_all']} rows of replicaset {row['replicaset_id']} wait since "
        f"{row['timestamp_min']:%Y-%m-%d %H:%M} UTC: {row['reason']}"
        for row in found[:MAX_REASONS]
    ] + (
        [f"rows wait for {len(found) - MAX_REASONS} more reasons, see _pending"]
        if len(found) > MAX_REASONS
        else []
    )


def clean(tables: OpenTables, cleaning: Cleaning, epoch: int) -> dict[str, int]:
    """Remove rows from all tables but `_epochs`, record this in `_retention`, and return the tables' new versions."""
    versions = {one.table: remove_rows(tables, one) for one in cleaning.removals}
    now = {"epoch": epoch, "cleaned_at": datetime.now(UTC)}
    rows = [
        {**now, "table": one.table, **instance}
        for one in cleaning.removals
        for instance in (one.last_lsns_by_instance or [{"rows": one.row_count}])
    ]
    if rows:
        versions[RETENTION] = append_rows(tables, RETENTION, rows)
    return versions


def clean_epochs(tables: OpenTables, cleaning: Cleaning) -> None:
    """Remove old epochs from `_epochs`, in one commit."""
    if cleaning.epochs_removal.files:
        remove_rows(tables, cleaning.epochs_removal)

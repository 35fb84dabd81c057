"""Everything whose time is over: what goes of each table, what stays all the same and why, and taking it out.

Planning writes nothing. The tables lose their rows before the epoch that says so; a process that ends before it leaves
what the next start rolls back. `_epochs` itself comes last, in one commit of its own. Done twice, the second time
finds nothing.

A tombstone is a deleted key of `_versions`; it goes when it is older than its lifetime and no later row can need it. A
deletion takes part in the choice against versions of other replicasets (`deletes: all`), now or under a policy that is
tried later. So a key goes as a whole, and only where

- no replicaset has a tuple of it, nor one that is not known;
- every replicaset was read beyond the deletion by the lifetime of tombstones, so that no row that may come is older, or
  nearly as old that clocks could hide it;
- its policy lets the later of two versions win, or does not ask deletions at all. Under others a deletion may win
  against any later row, and stays.
"""

from __future__ import annotations

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
from pipeline.commit.epoch import append_rows
from pipeline.plan.tables import current_table_plan
from pipeline.reduce.base import BaseRequest
from pipeline.reduce.versions import MERGED, STATE_NAMES, times_of
from pipeline.retention.changelog import changelog_removal
from pipeline.retention.progress import ReadProgress, progress_of
from pipeline.retention.removal import Removal, columns_of, mask_of, removal_of, take_out
from pipeline.retention.sources import SourceProgress
from pipeline.state import State
from pipeline.write.lookup import VERSIONS, BaseFiles, FileCache, find_versions
from schemas.errors import UnsupportedError
from schemas.names import table_of_exact_tuples
from schemas.policies import LAST_WRITE_WINS
from schemas.states import ConflictKind
from udfs.buffers import as_array
from udfs.keys.grouping import group
from udfs.versions.kernels.lives import DELETED, NO_TIME, NONE, PRESENT, UNFIT
from warehouse.commits import OpenTables, TableFile
from warehouse.data_files import opened, read_groups
from warehouse.kept_epochs import first_kept
from warehouse.newest_epoch import EPOCHS
from warehouse.removed_changes import TABLE as RETENTION

KEYS_AT_ONCE = 200_000
"""So many keys are looked up at a time."""

_COLUMNS = ("space", "key", "state", "timestamp", "epoch")


@dataclass(frozen=True)
class TombstoneLimits:
    """Up to which epoch, and before which time of the log, a deletion must lie to go."""

    epoch: int
    time: datetime


def tombstone_removal(
    tables: OpenTables, state: State, config: Config, limits: TombstoneLimits
) -> tuple[Removal, list[str]]:
    """Return which entries of `_versions` go, and what stays although its time is over.

    Parameters
    ----------
    tables : OpenTables
    state : State
    config : Config
        With the policies that are in force.
    limits : TombstoneLimits

    """
    files = tables.files(VERSIONS)
    gone = [
        np.zeros(file.rows if file.rows is not None else _count(tables, file), np.bool_) for file in files
    ]
    held, cache = [], FileCache()
    for space in _spaces(tables, files):
        entries = _entries_of(tables, files, space)
        dead = _dead(tables, state, files, space, entries, limits, cache)
        if dead.any() and not _may_forget(state, config, space):
            held.append(f"deleted keys of {space} stay: its policy may prefer a deletion to any later row")
            continue
        numbers, places = entries["file"].to_numpy()[dead], entries["place"].to_numpy()[dead]
        for number in np.unique(numbers):
            gone[number][places[numbers == number]] = True
    return removal_of(VERSIONS, zip(files, (pa.array(one) for one in gone), strict=True)), held


def _count(tables: OpenTables, file: TableFile) -> int:
    with opened(tables.place, VERSIONS, file.path) as parquet:
        return int(parquet.metadata.num_rows)


def _spaces(tables: OpenTables, files: Sequence[TableFile]) -> list[str]:
    """Return the spaces whose `_versions` entries include deletions."""
    found: set[str] = set()
    for file in files:
        rows = columns_of(tables, VERSIONS, file, ["space", "state"])
        absent = pc.is_in(rows["state"], pa.array([STATE_NAMES[DELETED], STATE_NAMES[NONE]]))
        found.update(pc.unique(rows["space"].filter(absent)).to_pylist())
    return sorted(found)


def _entries_of(tables: OpenTables, files: Sequence[TableFile], space: str) -> pa.Table:
    """Return the entries of a space, each with the number of its file and its place there."""
    parts = [part for number, file in enumerate(files) for part in _entries_in(tables, file, number, space)]
    return pa.concat_tables(parts).combine_chunks()


def _entries_in(tables: OpenTables, file: TableFile, number: int, space: str) -> Iterator[pa.Table]:
    with opened(tables.place, VERSIONS, file.path) as parquet:
        column, start = parquet.metadata.schema.names.index("space"), 0
        for place in range(parquet.num_row_groups):
            about = parquet.metadata.row_group(place)
            known = about.column(column).statistics
            if known is None or not known.has_min_max or known.min <= space <= known.max:
                rows = read_groups(parquet, [place], _COLUMNS)
                own = pc.indices_nonzero(pc.equal(rows["space"], space)).cast(pa.int64())
                found = rows.take(own).drop_columns(["space"])
                found = found.append_column("file", pa.repeat(pa.scalar(number, pa.int32()), len(own)))
                yield found.append_column("place", pc.add(own, start))
            start += about.num_rows


def _dead(
    tables: OpenTables,
    state: State,
    files: Sequence[TableFile],
    space: str,
    entries: pa.Table,
    limits: TombstoneLimits,
    cache: FileCache,
) -> NDArray[np.bool_]:
    """Return which entries are of keys that are deleted everywhere, long enough ago."""
    keys = as_array(entries["key"])
    groups = group(np.zeros(len(keys), np.int32), keys)
    codes = as_array(entries["state"]).dictionary_encode()
    names = codes.dictionary.to_pylist()
    numbers = codes.indices.to_numpy(zero_copy_only=False)
    is_deleted = np.array([name == STATE_NAMES[DELETED] for name in names], np.bool_)[numbers]
    is_absent = is_deleted | np.array([name == STATE_NAMES[NONE] for name in names], np.bool_)[numbers]
    times = times_of(entries["timestamp"])
    before = int(limits.time.timestamp() * 1_000_000)
    is_young = entries["epoch"].to_numpy() > limits.epoch
    is_young |= is_deleted & ((times >= before) | (times == NO_TIME))
    may_go = np.zeros(len(groups), np.bool_)
    may_go[groups.ids[is_absent]] = True
    may_go[groups.ids[is_young]] = False
    chosen = np.flatnonzero(may_go)
    name = table_of_exact_tuples(state.versions, space)
    own = (name, tables.files(name)) if name in state.versions else ("", ())
    base = BaseFiles(tables.place, {0: own}, files, (space,))
    for begin in range(0, len(chosen), KEYS_AT_ONCE):
        some = keys.take(pa.array(groups.firsts[chosen[begin : begin + KEYS_AT_ONCE]]))
        found = find_versions([BaseRequest(0, some, {}, False, True)], base, cache).entries
        lives = np.isin(found["state"].to_numpy(), (PRESENT, UNFIT, MERGED))
        alive = groups.find(np.zeros(found.num_rows, np.int32), as_array(found["key"]))
        may_go[alive[lives & (alive >= 0)]] = False
    return may_go[groups.ids]


def _may_forget(state: State, config: Config, table: str) -> bool:
    """Whether no policy of a table's spaces may prefer a deletion to a row that is later."""
    try:
        plan = current_table_plan(state, config, table)
    except UnsupportedError:
        plan = None
    policies = config.policies
    if plan is not None:
        return _lets_later_win(plan.policy)
    # No replicaset defines it any more: it may come back as any of the spaces.
    return all(map(_lets_later_win, (policies.default, *map(policies.of, policies.spaces))))


def _lets_later_win(policy: Policy) -> bool:
    by_time = policy.policy == LAST_WRITE_WINS and not policy.sequence
    return policy.deletes == "own" or by_time


NAMED = 10
"""So many reasons for which rows wait are named."""


@dataclass(frozen=True)
class Cleaning:
    """What goes, and what stays although its time is over.

    Parameters
    ----------
    removals : sequence of Removal
        Of tables that an epoch names.
    epochs : Removal
        Of `_epochs`.
    held : sequence of str
        What stays, and why.

    """

    removals: Sequence[Removal]
    epochs: Removal
    held: Sequence[str]

    def counts(self) -> list[str]:
        """Return what goes of each table, as text."""
        found = [one for one in (*self.removals, self.epochs) if one.rows]
        return [f"{one.rows} rows of {one.table}" for one in found]


def cleaning_of(
    tables: OpenTables,
    state: State,
    config: Config,
    retention: Retention,
    sources: SourceProgress,
    keep_days: int,
    now: datetime | None = None,
) -> Cleaning:
    """Return what goes; nothing is written.

    Parameters
    ----------
    tables : OpenTables
    state : State
    config : Config
        With the policies that are in force.
    retention : Retention
    sources : SourceProgress
    keep_days : int
        Epochs of so many days stay readable, whatever their own lifetime.
    now : datetime, optional

    """
    progress = progress_of(tables, state, retention, sources, now or datetime.now(UTC))
    removals: list[Removal] = []
    held: list[str] = []
    if retention.changelog is not None:
        found, reasons = changelog_removal(tables, state, sources, progress, retention.changelog)
        removals.append(found)
        held += reasons
    if retention.tombstones is not None:
        limits, reasons = _limits(state, sources, progress, retention.tombstones)
        held += reasons
        if limits is not None:
            found, reasons = tombstone_removal(tables, state, config, limits)
            removals.append(found)
            held += reasons
    if retention.conflicts is not None:
        removals.append(_conflicts(tables, progress, retention.conflicts))
    days = retention.epochs
    epochs = Removal(EPOCHS) if days is None else _epochs(tables, progress, max(days, keep_days))
    held += _waiting(tables, progress.now - timedelta(days=retention.pending))
    return Cleaning([one for one in removals if one.files], epochs, held)


def _limits(
    state: State, sources: SourceProgress, progress: ReadProgress, days: int
) -> tuple[TombstoneLimits | None, list[str]]:
    """Return which deletions are old enough; None, with the reasons, where a row that is older may still come."""
    epoch = progress.old_epoch(days)
    if epoch is None:
        return None, []
    uuids = {one.id: uuid for uuid, one in state.replicasets.items()}
    reasons = [f"source {name}: {why}" for name, why in sources.unread.items()]
    reasons += [
        f"replicaset {uuids[n]}: a divergence is open" for n in sorted(progress.diverged & uuids.keys())
    ]
    missing = sorted(progress.counted - progress.times.keys())
    reasons += [f"replicaset {uuids[number]}: no row of its log was read" for number in missing]
    low = progress.read_until()
    if reasons or low is None:
        return None, [f"deleted keys stay: {reason}" for reason in reasons]
    limit = low - timedelta(days=days)
    slow = [n for n in sorted(progress.counted) if progress.times[n] < progress.now - timedelta(days=1)]
    told = [
        f"deleted keys from {limit:%Y-%m-%d %H:%M} UTC on stay: replicaset {uuids[n]} was read up to "
        f"{progress.times[n]:%Y-%m-%d %H:%M} UTC"
        for n in slow
        if progress.times[n] == low
    ]
    return TombstoneLimits(epoch, limit), told


def _conflicts(tables: OpenTables, progress: ReadProgress, days: int) -> Removal:
    """Return the decisions that go. Rows of a secondary index stay: validation names a pair that is there only once."""
    until = progress.old_epoch(days)
    files = []
    for file in [] if until is None else tables.files_between("_conflicts", "epoch", 0, until):
        rows = columns_of(tables, "_conflicts", file, ["epoch", "kind"])
        is_old = pc.less_equal(rows["epoch"], until)
        is_secondary = pc.fill_null(pc.equal(rows["kind"], ConflictKind.SECONDARY), False)
        files.append((file, mask_of(pc.and_(is_old, pc.invert(is_secondary)))))
    return removal_of("_conflicts", files)


def _epochs(tables: OpenTables, progress: ReadProgress, days: int) -> Removal:
    """Return the epochs that go: those before the one that was the newest so many days ago.

    The last one of each stream stays: Spark may repeat its batch, and it says who led which replicaset.
    """
    committed = {int(row["epoch"]): row["committed_at"] for row in progress.epochs}
    if not committed:
        return Removal(EPOCHS)
    first = first_kept(committed, progress.now - timedelta(days=days))
    lasts = {row["query_id"]: row["epoch"] for row in progress.epochs if row["has_offset"]}
    stays = pa.array(sorted(set(lasts.values())), pa.int64())
    files = []
    for file in tables.files_between(EPOCHS, "epoch", 0, first - 1):
        rows = columns_of(tables, EPOCHS, file, ["epoch"])
        is_last = pc.is_in(rows["epoch"], stays)
        files.append((file, mask_of(pc.and_(pc.less(rows["epoch"], first), pc.invert(is_last)))))
    return removal_of(EPOCHS, files)


def _waiting(tables: OpenTables, until: datetime) -> list[str]:
    """Return which rows wait since before a time; they stay until what they wait for comes."""
    parts = []
    for file in tables.files("_pending"):
        rows = columns_of(tables, "_pending", file, ["replicaset_id", "reason", "timestamp"])
        parts.append(rows.filter(pc.less(rows["timestamp"], pa.scalar(until))))
    if not sum(part.num_rows for part in parts):
        return []
    whole = pa.concat_tables(parts, promote_options="default").group_by(["replicaset_id", "reason"])
    found = whole.aggregate([("timestamp", "min"), ([], "count_all")]).sort_by("timestamp_min").to_pylist()
    return [
        f"{row['count_all']} rows of replicaset {row['replicaset_id']} wait since "
        f"{row['timestamp_min']:%Y-%m-%d %H:%M} UTC: {row['reason']}"
        for row in found[:NAMED]
    ] + ([f"rows wait for {len(found) - NAMED} more reasons, see _pending"] if len(found) > NAMED else [])


def clean(tables: OpenTables, cleaning: Cleaning, epoch: int) -> dict[str, int]:
    """Take rows out of the tables that an epoch names, and return their versions.

    Parameters
    ----------
    tables : OpenTables
    cleaning : Cleaning
    epoch : int
        The one that will say so.

    """
    versions = {one.table: take_out(tables, one) for one in cleaning.removals}
    now = {"epoch": epoch, "cleaned_at": datetime.now(UTC)}
    rows = [
        {**now, "table": one.table, **origin}
        for one in cleaning.removals
        for origin in (one.origins or [{"rows": one.rows}])
    ]
    if rows:
        versions[RETENTION] = append_rows(tables, RETENTION, rows)
    return versions


def clean_epochs(tables: OpenTables, cleaning: Cleaning) -> None:
    """Take old epochs out of `_epochs`, in one commit."""
    if cleaning.epochs.files:
        take_out(tables, cleaning.epochs)

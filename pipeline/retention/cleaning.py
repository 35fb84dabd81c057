"""Everything whose time is over: what goes of each table, what stays all the same and why, and taking it out.

Planning writes nothing. The tables lose their rows before the epoch that says so; a process that ends before it leaves
what the next start rolls back. `_epochs` itself comes last, in one commit of its own. Done twice, the second time
finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from config.deployment import Config
from config.retention import Retention
from pipeline.commit.delta import append_rows
from pipeline.retention.changelog import changelog_removal
from pipeline.retention.progress import ReadProgress, progress_of
from pipeline.retention.removal import Removal, columns_of, mask_of, removal_of, take_out
from pipeline.retention.sources import SourceProgress
from pipeline.retention.tombstones import TombstoneLimits, tombstone_removal
from pipeline.state import State
from schemas.states import ConflictKind
from warehouse.commits import OpenTables
from warehouse.kept_epochs import first_kept
from warehouse.newest_epoch import EPOCHS
from warehouse.removed_changes import TABLE as RETENTION

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

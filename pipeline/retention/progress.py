"""Determines how far replicasets and configured sources were read, and the ages of epochs.

The time up to which a replicaset was read is that of the last row read from its log, or of its first waiting row. It
does not advance while no new rows are read, since the log may have older rows that were not read yet.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from config.retention import Retention
from pipeline.retention.removal import read_columns
from pipeline.state import State
from schemas.errors import AggregatorError
from schemas.states import GapKind, GapState
from sources.xlog.directory.directory import Directory
from sources.xlog.format.vclock import is_at_most, without_local
from sources.xlog.stream.identity import replicaset_uuid_of
from sources.xlog.stream.log_stream import LogStream
from warehouse.delta.commits import OpenTables
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.delta.read import newest_of_each, rows_of
from warehouse.delta.table_files import TableFile
from warehouse.system_tables.gaps import KEY


@dataclass(frozen=True)
class SourceProgress:
    """What was read so far of the configured sources."""

    replicaset_uuids: frozenset[str] = frozenset()
    unread_reasons: Mapping[str, str] = field(default_factory=dict)
    """By source: why the tables have no row of its replicaset. Only sources for which this is so."""
    unreadable: frozenset[str] = frozenset()
    """Those sources in `unread_reasons` whose files cannot be read."""
    snapshot_vclocks: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By replicaset uuid: the vclock, in the replicaset's replica ids, of the newest complete snapshot that the tables
    have reached."""


def source_progress(log_stream: LogStream, state: State, names: Iterable[str] = ()) -> SourceProgress:
    """Return what was read so far of the configured sources."""
    known = {source.name for source in log_stream.options.sources}
    unread_reasons = dict.fromkeys(sorted(set(names) - known), "the running stream does not read it yet")
    unreadable: set[str] = set()
    replicasets: set[str] = set()
    snapshots: dict[str, Mapping[int, int]] = {}
    for name in sorted(known):
        try:
            uuid, vclock = _newest_usable_snapshot(log_stream.directory(name), state)
        except (AggregatorError, OSError, pa.ArrowException) as error:
            unread_reasons[name] = f"it cannot be read: {error}"
            unreadable.add(name)
            continue
        replicasets.add(uuid)
        if uuid not in state.replicasets:
            unread_reasons[name] = "no row of its replicaset was read yet"
        if vclock is not None and sum(vclock.values()) >= sum(snapshots.get(uuid, {}).values()):
            snapshots[uuid] = vclock
    return SourceProgress(frozenset(replicasets), unread_reasons, frozenset(unreadable), snapshots)


def _newest_usable_snapshot(directory: Directory, state: State) -> tuple[str, dict[int, int] | None]:
    """Return the uuid of a source's replicaset, and the vclock of its newest snapshot that the tables have reached."""
    listing = directory.listing()
    uuid = replicaset_uuid_of(directory, listing)
    one = state.replicasets.get(uuid)
    if one is None:
        return uuid, None
    ids = one.id_translations.get(directory.source.name, {})
    for file in reversed(directory.complete_snapshots(listing.snapshots)):
        vclock = {ids.get(i, i): lsn for i, lsn in without_local(file.vclock).items()}
        if is_at_most(vclock, one.settled):
            return uuid, vclock
    return uuid, None


_POSITION_COLUMNS = ("epoch", "segment", "position", "row")


@dataclass(frozen=True)
class ReadProgress:
    """How far each replicaset was read, and the epochs."""

    now: datetime
    epochs: Sequence[Mapping[str, Any]]
    """Rows of `_epochs`, in order: `epoch`, `committed_at`, `query_id`, `has_offset`."""
    read_times: Mapping[int, datetime]
    """By replicaset id: the time up to which its log was read. A replicaset whose log has no rows is missing. The
    mapping is empty if tombstones are never removed, since nothing else needs it."""
    diverged: frozenset[int]
    """Ids of replicasets with an open divergence."""
    active: frozenset[int]
    """Ids of replicasets whose logs may still get rows: all that are not `retired`, or have a configured source."""

    def old_epoch(self, days: int) -> int | None:
        """Return the newest epoch that is at least `days` days old; None if there is none."""
        until = self.now - timedelta(days=days)
        return max((row["epoch"] for row in self.epochs if row["committed_at"] <= until), default=None)

    def read_until(self) -> datetime | None:
        """Return the time up to which all active replicasets were read; None if it is not known for one of them."""
        if not self.active or not self.active <= self.read_times.keys():
            return None
        return min(self.now, *(self.read_times[number] for number in self.active))


def read_progress(
    tables: OpenTables, state: State, retention: Retention, sources: SourceProgress, now: datetime
) -> ReadProgress:
    """Read from the tables how far each replicaset was read."""
    rows = rows_of(tables.open(EPOCHS), ["epoch", "committed_at", "query_id", "end_offset"])
    epochs = [
        {
            "epoch": int(row["epoch"]),
            "committed_at": row["committed_at"].astimezone(UTC),
            "query_id": row["query_id"],
            "has_offset": row["end_offset"] is not None,
        }
        for row in sorted(rows, key=lambda row: int(row["epoch"]))
    ]
    gaps = newest_of_each(tables.open("_gaps"), KEY)
    diverged = {
        r["replicaset_id"] for r in gaps if r["kind"] == GapKind.DIVERGENCE and r["state"] == GapState.OPEN
    }
    ended = set(retention.retired) - sources.replicaset_uuids
    active = frozenset(one.id for uuid, one in state.replicasets.items() if uuid not in ended)
    is_asked = retention.tombstones is not None
    times = _with_earlier_times(_last_row_times(tables, active), _waiting_times(tables)) if is_asked else {}
    return ReadProgress(now, epochs, times, frozenset(diverged), active)


def _last_row_times(tables: OpenTables, replicaset_ids: Iterable[int]) -> dict[int, datetime]:
    """Return the time of the last row that was read from the log of each replicaset, by replicaset id."""
    files = tables.column_bounds("_changelog", "epoch")
    files.sort(key=_highest_epoch, reverse=True)
    left = set(replicaset_ids)
    found: dict[int, tuple[tuple[int, ...], datetime]] = {}
    for file, low, high in files:
        # This file and the following ones have no later rows of these replicasets.
        last = _highest_epoch((file, low, high))
        left -= {number for number, (position, _) in found.items() if position[0] > last}
        if not left:
            break
        for number, one in _last_rows(tables, file):
            if number not in found or found[number][0] < one[0]:
                found[number] = one
    return {number: time for number, (_, time) in found.items()}


def _highest_epoch(bounds: tuple[TableFile, int | None, int | None]) -> int:
    return 1 << 62 if bounds[2] is None else int(bounds[2])


def _last_rows(tables: OpenTables, file: TableFile) -> Iterable[tuple[int, tuple[tuple[int, ...], datetime]]]:
    """Yield (replicaset id, (position, time)) of the last log row of each replicaset in a file of `_changelog`."""
    rows = read_columns(
        tables, "_changelog", file, ["replicaset_id", *_POSITION_COLUMNS, "timestamp", "file"]
    )
    is_log = pc.and_(pc.ends_with(rows["file"], ".xlog"), pc.is_valid(rows["timestamp"]))
    rows = rows.filter(is_log).combine_chunks()
    keys = [("replicaset_id", "ascending"), *((name, "ascending") for name in _POSITION_COLUMNS)]
    order = pc.sort_indices(rows, sort_keys=keys)
    numbered = pa.table({"replicaset_id": rows["replicaset_id"].take(order), "index": order})
    lasts = numbered.group_by("replicaset_id", use_threads=False).aggregate([("index", "last")])
    for row in rows.take(lasts["index_last"]).to_pylist():
        position = tuple(int(row[name]) for name in _POSITION_COLUMNS)
        yield int(row["replicaset_id"]), (position, row["timestamp"].astimezone(UTC))


def _waiting_times(tables: OpenTables) -> dict[int, datetime]:
    found: dict[int, datetime] = {}
    for file in tables.files("_pending"):
        rows = read_columns(tables, "_pending", file, ["replicaset_id", "timestamp"])
        firsts = rows.group_by("replicaset_id").aggregate([("timestamp", "min")])
        times = {
            row["replicaset_id"]: row["timestamp_min"].astimezone(UTC)
            for row in firsts.to_pylist()
            if row["timestamp_min"] is not None
        }
        found = {**found, **times, **_with_earlier_times(found, times)}
    return found


def _with_earlier_times(times: Mapping[int, datetime], others: Mapping[int, datetime]) -> dict[int, datetime]:
    return {number: min(time, others.get(number, time)) for number, time in times.items()}

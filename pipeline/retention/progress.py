"""Determines how far replicasets and configured sources were read, and the ages of epochs.

The time of a replicaset is that of the last row read from its log, or of its first waiting row. A replicaset without
new rows does not advance, since its log may have older rows that were not read yet.
"""

from __future__ import annotations

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
from warehouse.commits import OpenTables, TableFile
from warehouse.gaps import KEY
from warehouse.newest_epoch import EPOCHS
from warehouse.read import newest_of_each, rows_of


@dataclass(frozen=True)
class SourceProgress:
    """The progress of reading the configured sources.

    Parameters
    ----------
    replicasets : frozenset of str
        Uuids of the sources' replicasets.
    unread : mapping of str to str
        For each source without a row of its replicaset in the tables, the reason.
    unreadable : frozenset of str
        The sources in `unread` whose files cannot be read.
    snapshots : mapping of str to mapping of int to int
        By replicaset uuid: the vclock, in the replicaset's ids, of the newest complete snapshot that the tables
        have reached.

    """

    replicasets: frozenset[str] = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    snapshots: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


def source_progress(log_stream: LogStream, state: State, names: Iterable[str] = ()) -> SourceProgress:
    """Return the progress of the configured sources.

    Parameters
    ----------
    log_stream : LogStream
        The logs of the deployment's sources.
    state : State
    names : iterable of str, optional
        Names of sources in a newer configuration, which the running stream may not read yet.

    """
    known = {source.name for source in log_stream.options.sources}
    unread = dict.fromkeys(sorted(set(names) - known), "the running stream does not read it yet")
    unreadable: set[str] = set()
    replicasets: set[str] = set()
    snapshots: dict[str, Mapping[int, int]] = {}
    for name in sorted(known):
        try:
            uuid, vclock = _newest_usable_snapshot(log_stream.directory(name), state)
        except (AggregatorError, OSError, pa.ArrowException) as error:
            unread[name] = f"it cannot be read: {error}"
            unreadable.add(name)
            continue
        replicasets.add(uuid)
        if uuid not in state.replicasets:
            unread[name] = "no row of its replicaset was read yet"
        if vclock is not None and sum(vclock.values()) >= sum(snapshots.get(uuid, {}).values()):
            snapshots[uuid] = vclock
    return SourceProgress(frozenset(replicasets), unread, frozenset(unreadable), snapshots)


def _newest_usable_snapshot(directory: Directory, state: State) -> tuple[str, dict[int, int] | None]:
    """Return the replicaset of a source, and the vclock of its newest snapshot that the tables have reached."""
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


_POSITION = ("epoch", "segment", "position", "row")


@dataclass(frozen=True)
class ReadProgress:
    """How far each replicaset was read, and the epochs.

    Parameters
    ----------
    now : datetime
    epochs : sequence of dict
        Rows of `_epochs`, in order: `epoch`, `committed_at`, `query_id`, `has_offset`.
    times : mapping of int to datetime
        By replicaset id: the time up to which its log was read. A replicaset whose log has no rows is missing; the
        mapping is empty if tombstones are never removed.
    diverged : frozenset of int
        Ids of replicasets with an open divergence.
    counted : frozenset of int
        Ids of replicasets that can still bring rows.

    """

    now: datetime
    epochs: Sequence[Mapping[str, Any]]
    times: Mapping[int, datetime]
    diverged: frozenset[int]
    counted: frozenset[int]

    def old_epoch(self, days: int) -> int | None:
        """Return the newest epoch that is at least `days` days old; None if there is none."""
        until = self.now - timedelta(days=days)
        return max((row["epoch"] for row in self.epochs if row["committed_at"] <= until), default=None)

    def read_until(self) -> datetime | None:
        """Return the time up to which all replicasets were read; None if one has no time."""
        if not self.counted or not self.counted <= self.times.keys():
            return None
        return min(self.now, *(self.times[number] for number in self.counted))


def read_progress(
    tables: OpenTables, state: State, retention: Retention, sources: SourceProgress, now: datetime
) -> ReadProgress:
    """Read from the tables how far each replicaset was read.

    Parameters
    ----------
    tables : OpenTables
    state : State
    retention : Retention
        Lists the replicasets whose logs have ended (`retired`); one with a configured source still counts.
    sources : SourceProgress
    now : datetime

    """
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
    ended = set(retention.retired) - sources.replicasets
    counted = frozenset(one.id for uuid, one in state.replicasets.items() if uuid not in ended)
    is_asked = retention.tombstones is not None
    times = _earlier(_last_row_times(tables, counted), _waiting_times(tables)) if is_asked else {}
    return ReadProgress(now, epochs, times, frozenset(diverged), counted)


def _last_row_times(tables: OpenTables, wanted: Iterable[int]) -> dict[int, datetime]:
    """Return the time of the last row that was read from each replicaset's log.

    Files are read from the newest epochs back, until each replicaset's last row is found.
    """
    files = tables.column_bounds("_changelog", "epoch")
    files.sort(key=_last_epoch, reverse=True)
    left = set(wanted)
    found: dict[int, tuple[tuple[int, ...], datetime]] = {}
    for file, low, high in files:
        # This file and the following ones have no later rows of these replicasets.
        last = _last_epoch((file, low, high))
        left -= {number for number, (position, _) in found.items() if position[0] > last}
        if not left:
            break
        for number, one in _last_rows(tables, file):
            if number not in found or found[number][0] < one[0]:
                found[number] = one
    return {number: time for number, (_, time) in found.items()}


def _last_epoch(one: tuple[TableFile, int | None, int | None]) -> int:
    return 1 << 62 if one[2] is None else int(one[2])


def _last_rows(tables: OpenTables, file: TableFile) -> Iterable[tuple[int, tuple[tuple[int, ...], datetime]]]:
    """Yield (replicaset id, (`_POSITION`, time)) of each replicaset's last log row in a file of `_changelog`."""
    rows = read_columns(tables, "_changelog", file, ["replicaset_id", *_POSITION, "timestamp", "file"])
    is_log = pc.and_(pc.ends_with(rows["file"], ".xlog"), pc.is_valid(rows["timestamp"]))
    rows = rows.filter(is_log).combine_chunks()
    keys = [("replicaset_id", "ascending"), *((name, "ascending") for name in _POSITION)]
    order = pc.sort_indices(rows, sort_keys=keys)
    numbered = pa.table({"replicaset_id": rows["replicaset_id"].take(order), "index": order})
    lasts = numbered.group_by("replicaset_id", use_threads=False).aggregate([("index", "last")])
    for row in rows.take(lasts["index_last"]).to_pylist():
        position = tuple(int(row[name]) for name in _POSITION)
        yield int(row["replicaset_id"]), (position, row["timestamp"].astimezone(UTC))


def _waiting_times(tables: OpenTables) -> dict[int, datetime]:
    """Return the time of the first waiting row, by replicaset id."""
    found: dict[int, datetime] = {}
    for file in tables.files("_pending"):
        rows = read_columns(tables, "_pending", file, ["replicaset_id", "timestamp"])
        firsts = rows.group_by("replicaset_id").aggregate([("timestamp", "min")])
        times = {
            row["replicaset_id"]: row["timestamp_min"].astimezone(UTC)
            for row in firsts.to_pylist()
            if row["timestamp_min"] is not None
        }
        found = {**found, **times, **_earlier(found, times)}
    return found


def _earlier(one: Mapping[int, datetime], other: Mapping[int, datetime]) -> dict[int, datetime]:
    """Return the times of the first mapping, with an earlier time of the other in its place."""
    return {number: min(time, other.get(number, time)) for number, time in one.items()}

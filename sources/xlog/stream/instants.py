"""Follows sources so that batches end at the instants of a sharded cluster.

An `InstantLogStream` computes the end of a batch as its base class does, and then searches for markers in the rows of
the batch. If a replicaset has a marker, the batch ends there for this replicaset. The replicaset *waits* at this point,
without being read further, until every other replicaset waits at a marker of the same label. The batch in which the
last one arrives ends at the instant: together the batches have read all rows up to the point of every replicaset, and
none after it.

A replicaset stops waiting if the others cannot reach the label any more, or have not done so in time
(`hopeless_waits`). The time is that of the timestamps of rows, so that old logs are read in the same way as new ones.
For a replicaset without unread rows it is the time of the clock.

The offset has the instant of each replicaset, so a restart, a replay or a failover needs no other state. The driver
decodes the rows of the marker spaces; it reads each byte of the logs only once.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from schemas.names import replicaset_label
from sources.xlog.directory.directory import SOURCE_ERRORS
from sources.xlog.directory.listing import files_from, files_up_to
from sources.xlog.directory.offset import Instant, InstantState, Offset, OffsetEntry
from sources.xlog.format.vclock import Vclock
from sources.xlog.options import XlogOptions
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.markers import Marker, MarkerFinder, end_of_transaction
from sources.xlog.stream.read_ahead import ReadAhead, checked_entry_at
from sources.xlog.stream.segment import Segment

logger = logging.getLogger(__name__)

MICROSECONDS_PER_SECOND = 1_000_000


@dataclass(frozen=True)
class ReplicasetProgress:
    """How far one replicaset has been read."""

    instant: Instant | None
    """The last instant that the replicaset has reached."""
    next_row_time: int | None
    """Timestamp of the next row, microseconds since 1970. It is the time of the clock if there is no row, and None if
    it is unknown, as in a snapshot."""


def hopeless_waits(
    progress: Mapping[str, ReplicasetProgress],
    wait_seconds: float,
    now: int,
    unidentified_source: str | None = None,
) -> dict[str, str]:
    """Return {replicaset uuid: reason} of the replicasets that wait in vain.

    Args:
        unidentified_source: Name of a source that cannot be read and whose replicaset is unknown. No instant is
            complete without it.
    """
    found: dict[str, str] = {}
    for uuid, one in progress.items():
        if one.instant is None or one.instant.state is not InstantState.WAITING:
            continue
        until = one.instant.marker_time + round(wait_seconds * MICROSECONDS_PER_SECOND)
        reasons = [
            _why_unreachable(one.instant, other, name, until)
            for name, other in progress.items()
            if name != uuid
        ]
        if unidentified_source is not None and now > until:
            reasons.append(f"source {unidentified_source} cannot be read")
        reason = next((text for text in reasons if text is not None), None)
        if reason is not None:
            found[uuid] = reason
    return found


def _why_unreachable(point: Instant, other: ReplicasetProgress, other_uuid: str, deadline: int) -> str | None:
    """Return why another replicaset cannot reach a point any more; None if it waits there, or may still reach it."""
    at = other.instant
    if at is not None and at.label == point.label:
        if at.state is InstantState.WAITING:
            return None
        if at.state is InstantState.MISSED:
            return f"replicaset {other_uuid} has passed it before"
    # Markers have one order; points in different order in two replicasets are not instants.
    elif (
        at is not None
        and at.state in (InstantState.WAITING, InstantState.MISSED)
        and (at.marker_time, at.label) > (point.marker_time, point.label)
    ):
        return f"replicaset {other_uuid} has come to a later one, {at.label!r}, without it"
    if other.next_row_time is not None and other.next_row_time > deadline:
        return f"replicaset {other_uuid} has not come to it in time"
    return None


def common_label(ends: Mapping[str, OffsetEntry]) -> str | None:
    """Return the label of the point at which all replicasets wait; None if they do not wait at one label."""
    instants = [entry.instant for entry in ends.values()]
    labels = {one.label for one in instants if one is not None and one.state is InstantState.WAITING}
    is_whole = len(labels) == 1 and all(
        one is not None and one.state is InstantState.WAITING for one in instants
    )
    return labels.pop() if is_whole else None


def with_complete_instant(entry: OffsetEntry) -> OffsetEntry:
    """Return an entry with the state `whole` of its instant: every replicaset has reached it."""
    if entry.instant is None:
        return entry
    return replace(entry, instant=replace(entry.instant, state=InstantState.WHOLE))


def with_passed_instant(entry: OffsetEntry, last: Instant | None) -> OffsetEntry:
    """Return an entry after a point, with the instant `last` that the stream has passed.

    The state `whole` of the instant becomes `done`, and `waiting` becomes `missed`.
    """
    if last is None:
        return entry
    following = {InstantState.WAITING: InstantState.MISSED, InstantState.WHOLE: InstantState.DONE}
    return replace(
        entry, instant=replace(last, state=following.get(last.state, last.state), rows_passed=0, block_end=0)
    )


@dataclass(frozen=True)
class ReachedInstant:
    """An instant at which a batch ends: its label, and the uuids of the replicasets that have reached it."""

    label: str
    replicaset_uuids: frozenset[str]


def instant_between(start: Offset, end: Offset) -> ReachedInstant | None:
    """Return the instant at which the batch between two offsets ends; None if it does not end at one."""
    found = {}
    for uuid, entry in end.items():
        now, before = entry.instant, start[uuid].instant if uuid in start else None
        if now is not None and now.state is InstantState.WHOLE and now != before:
            found[uuid] = now.label
    labels = set(found.values())
    return ReachedInstant(labels.pop(), frozenset(found)) if len(labels) == 1 else None


@dataclass
class InstantLogStream(LogStream):
    """A log stream whose batches end at instants."""

    _marker_finders: dict[str, MarkerFinder] = field(default_factory=dict)
    _logged_changes: set[tuple[str, str]] = field(default_factory=set)

    def latest(self, start: Offset, max_bytes: int | None = None) -> dict[str, OffsetEntry]:
        """Return the offset up to which a batch can read, at most up to the next marker in each replicaset."""
        bare = {uuid: replace(entry, instant=None) for uuid, entry in start.items()}
        end_without_waits = super().latest(bare, max_bytes)
        waiting = self._waiting_replicasets(start, end_without_waits)
        ends: dict[str, OffsetEntry] = {}
        for uuid, end in end_without_waits.items():
            before = start.get(uuid)
            last = None if before is None else before.instant
            is_idle = before is not None and end == bare[uuid]
            if before is not None and (uuid in waiting or is_idle):
                ends[uuid] = before
            else:
                ends[uuid] = self._end_at_marker(uuid, before, with_passed_instant(end, last))
        taking_part = {uuid: ends[uuid] for uuid in self._uuids_with_sources(ends)}
        if taking_part and common_label(taking_part) is not None and self._unidentified_source() is None:
            ends |= {uuid: with_complete_instant(entry) for uuid, entry in taking_part.items()}
        return ends

    def _uuids_with_sources(self, entries: Mapping[str, OffsetEntry]) -> list[str]:
        """Return the uuids of the replicasets with a configured source; the entries of all others do not change."""
        own = {
            self._replicaset_uuid_by_source[source.name]
            for source in self.options.sources
            if source.name in self._replicaset_uuid_by_source
        }
        names = {source.name for source in self.options.sources}
        return [uuid for uuid, entry in entries.items() if uuid in own or entry.leader in names]

    def _unidentified_source(self) -> str | None:
        return next(
            (name for name in sorted(self.unreadable_sources) if name not in self._replicaset_uuid_by_source),
            None,
        )

    def _waiting_replicasets(self, start: Offset, end_without_waits: Offset) -> set[str]:
        """Return the uuids of the replicasets that must still wait at a point, because others may reach its label."""
        waiting = {
            uuid: entry.instant
            for uuid, entry in start.items()
            if entry.instant is not None and entry.instant.state is InstantState.WAITING
        }
        with_sources = self._uuids_with_sources(start)
        if not waiting:
            return set()
        now = round(time.time() * MICROSECONDS_PER_SECOND)
        progress = {
            uuid: ReplicasetProgress(
                start[uuid].instant, self._next_row_time(start, end_without_waits, uuid, now)
            )
            for uuid in with_sources
        }
        # A replicaset that has not begun may have the point in unread rows.
        progress |= {uuid: ReplicasetProgress(None, None) for uuid in end_without_waits if uuid not in start}
        vain = hopeless_waits(progress, self.options.instant_wait_seconds, now, self._unidentified_source())
        for uuid, reason in sorted(vain.items()):
            text = f"is no instant of all replicasets: {reason}"
            self._log_once(logging.WARNING, uuid, start[uuid].leader, waiting[uuid], text)
        stay = {uuid for uuid in waiting if uuid in with_sources and uuid not in vain}
        for uuid in sorted(stay):
            text = "waits for the other replicasets"
            self._log_once(logging.INFO, uuid, start[uuid].leader, waiting[uuid], text)
        return stay

    def _log_once(self, level: int, uuid: str, leader: str, instant: Instant, message: str) -> None:
        """Log a message about the instant of a replicaset, unless it was logged before at this level."""
        key = (f"{uuid} {level}", instant.label)
        if key not in self._logged_changes:
            self._logged_changes.add(key)
            label = replicaset_label(uuid, leader)
            logger.log(level, "replicaset %s at the point %r: %s", label, instant.label, message)

    def _next_row_time(self, start: Offset, end_without_waits: Offset, uuid: str, now: int) -> int | None:
        """Return the timestamp of the next row of a replicaset, or `now` if there is no row; None if it is unknown."""
        entry, end = start[uuid], end_without_waits.get(uuid, start[uuid])
        if replace(entry, instant=None) == end:
            return now
        if entry.is_snapshot:
            return None
        try:
            segments = segments_between(self, {uuid: entry}, {uuid: end})
            return None if not segments or segments[0].is_snapshot else self._first_row_time(segments[0])
        except SOURCE_ERRORS:
            return None

    def _first_row_time(self, segment: Segment) -> int | None:
        directory = self.directory(segment.source)
        for headers in directory.read_headers(segment.file, segment.begin, segment.end):
            rows = headers.timestamp[
                (headers.position > segment.begin) | (headers.row >= segment.skipped_rows)
            ]
            if rows.size:
                return int(np.int64(rows[0]))
        return None

    def _end_at_marker(self, uuid: str, before: OffsetEntry | None, end: OffsetEntry) -> OffsetEntry:
        """Return the entry at which a batch ends in one replicaset: after its first marker, or `end` if it has none."""
        start = {} if before is None else {uuid: before}
        try:
            segments = segments_between(self, start, {uuid: end})
            marker = self._first_marker(uuid, segments, before)
            return end if marker is None else self._entry_after_marker(marker, before or end, end)
        except SOURCE_ERRORS as error:
            self._raise_or_report(end.leader, error)
            return end if before is None else before

    def _first_marker(
        self, uuid: str, segments: Sequence[Segment], before: OffsetEntry | None
    ) -> Marker | None:
        known: Vclock = {} if before is None or before.instant is None else before.instant.marker_lsns
        settled = self.options.start_vclock.get(uuid, {})
        markers = self._marker_finders.setdefault(uuid, MarkerFinder(self.options.marker_spaces))
        for segment in segments:
            if segment.is_snapshot or not segment.is_log:
                continue
            directory = self.directory(segment.source)
            for marker in markers.find(directory, directory.listing(), segment):
                is_read = marker.block_position == segment.begin and marker.row_index < segment.skipped_rows
                seen = max(known.get(marker.replica_id, 0), settled.get(marker.replica_id, 0))
                if not is_read and marker.lsn > seen:
                    return marker
        return None

    def _entry_after_marker(self, marker: Marker, before: OffsetEntry, end: OffsetEntry) -> OffsetEntry:
        directory = self.directory(marker.segment.source)
        rows, block_end = end_of_transaction(directory, marker)
        last = before.instant
        lsns = {**({} if last is None else last.marker_lsns), marker.replica_id: marker.lsn}
        at = Instant(marker.label, marker.time, lsns, InstantState.WAITING, rows, block_end if rows else 0)
        files = files_from(directory.listing(), before)
        files = files_up_to(files, end.file) or files
        bare = replace(before, instant=None)
        index = next(i for i, file in enumerate(files) if file.name == marker.segment.file)
        if not rows:
            read_ahead = ReadAhead(directory, bare, files, max(end.position, files[-1].header_bytes))
            return replace(read_ahead.canonical_entry(index, block_end), instant=at)
        # The block is read in part, so the stream has passed a gap before its file.
        found = checked_entry_at(
            directory, files[index], marker.block_position, marker.segment.snapshot_vclock
        )
        return replace(found, instant=at)


def log_stream_of(options: XlogOptions) -> LogStream:
    """Return the log stream for the options; its batches end at instants if the options name marker spaces."""
    return InstantLogStream(options) if options.marker_spaces else LogStream(options)

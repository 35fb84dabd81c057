"""Follows sources so that batches end at the instants of a sharded cluster.

An `InstantFollower` computes the end of a batch as its base class does, and then searches for markers in the rows of
the batch: a replicaset with a marker ends there, and waits there until all others do, or until its wait cannot succeed
(`sources.xlog.stream.alignment`). The offset has the instant of each replicaset, so a restart, a replay or a failover
needs no other state.

The search decodes the rows of the markers' spaces on the driver, once for each byte of the logs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from schemas.names import replicaset_label
from sources.xlog.directory.listing import files_from, files_up_to
from sources.xlog.directory.offset import Instant, InstantState, Offset, OffsetEntry
from sources.xlog.format.vclock import Vclock
from sources.xlog.options import XlogOptions
from sources.xlog.reader import reader
from sources.xlog.stream.alignment import (
    MICROSECONDS,
    ReadState,
    after_instant,
    at_whole_instant,
    common_label,
    hopeless_waits,
)
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.failover import entry_at
from sources.xlog.stream.follow import FAILURES, Follower
from sources.xlog.stream.markers import Marker, Markers, end_of_transaction
from sources.xlog.stream.read_ahead import ReadAhead
from sources.xlog.stream.segment import Segment

logger = logging.getLogger(__name__)


@dataclass
class InstantFollower(Follower):
    """Follows the sources of a deployment in batches that end at instants."""

    _markers: dict[str, Markers] = field(default_factory=dict)
    _logged: set[tuple[str, str]] = field(default_factory=set)

    def latest(self, start: Offset, max_bytes: int | None = None) -> dict[str, OffsetEntry]:
        """Return the offset up to which a batch can read, at most up to the next instant of each replicaset.

        Parameters and errors are those of the base class.
        """
        bare = {uuid: replace(entry, instant=None) for uuid, entry in start.items()}
        free = super().latest(bare, max_bytes)
        waiting = self._waiting_replicasets(start, free)
        ends: dict[str, OffsetEntry] = {}
        for uuid, end in free.items():
            before = start.get(uuid)
            last = None if before is None else before.instant
            is_idle = before is not None and end == bare[uuid]
            if before is not None and (uuid in waiting or is_idle):
                ends[uuid] = before
            else:
                ends[uuid] = self._up_to_marker(uuid, before, after_instant(end, last))
        taking_part = {uuid: ends[uuid] for uuid in self._followed(ends)}
        if taking_part and common_label(taking_part) is not None and self._unidentified_source() is None:
            ends |= {uuid: at_whole_instant(entry) for uuid, entry in taking_part.items()}
        return ends

    def _followed(self, entries: Mapping[str, OffsetEntry]) -> list[str]:
        """Return the replicasets that have sources now; the others stay in the offset."""
        own = {self._uuids[source.name] for source in self.options.sources if source.name in self._uuids}
        names = {source.name for source in self.options.sources}
        return [uuid for uuid, entry in entries.items() if uuid in own or entry.leader in names]

    def _unidentified_source(self) -> str | None:
        """Return a source that cannot be read and whose replicaset is unknown, if there is one."""
        return next((name for name in sorted(self.unreadable) if name not in self._uuids), None)

    def _waiting_replicasets(self, start: Offset, free: Offset) -> set[str]:
        """Return the replicasets that must still wait at an instant, because it is not complete."""
        waiting = {
            uuid: entry.instant
            for uuid, entry in start.items()
            if entry.instant is not None and entry.instant.state is InstantState.WAITING
        }
        followed = self._followed(start)
        if not waiting:
            return set()
        now = round(time.time() * MICROSECONDS)
        reached = {
            uuid: ReadState(start[uuid].instant, self._next_row_time(start, free, uuid, now))
            for uuid in followed
        }
        # A replicaset that has not begun may have the point in unread rows.
        reached |= {uuid: ReadState(None, None) for uuid in free if uuid not in start}
        vain = hopeless_waits(reached, self.options.instant_wait, now, self._unidentified_source())
        for uuid, reason in sorted(vain.items()):
            text = f"is no instant of all replicasets: {reason}"
            self._log_once(logging.WARNING, uuid, start[uuid].leader, waiting[uuid], text)
        stay = {uuid for uuid in waiting if uuid in followed and uuid not in vain}
        for uuid in sorted(stay):
            text = "waits for the other replicasets"
            self._log_once(logging.INFO, uuid, start[uuid].leader, waiting[uuid], text)
        return stay

    def _log_once(self, level: int, uuid: str, leader: str, instant: Instant, what: str) -> None:
        """Log a change of an instant's state in a replicaset, once."""
        key = (f"{uuid} {level}", instant.label)
        if key not in self._logged:
            self._logged.add(key)
            label = replicaset_label(uuid, leader)
            logger.log(level, "replicaset %s at the point %r: %s", label, instant.label, what)

    def _next_row_time(self, start: Offset, free: Offset, uuid: str, now: int) -> int | None:
        """Return the timestamp of the next row of a replicaset, or the current time if there is no row."""
        entry, end = start[uuid], free.get(uuid, start[uuid])
        if replace(entry, instant=None) == end:
            return now
        if entry.is_snapshot:
            return None
        try:
            segments = segments_between(self, {uuid: entry}, {uuid: end})
            return None if not segments or segments[0].is_snapshot else self._first_row_time(segments[0])
        except FAILURES:
            return None

    def _first_row_time(self, segment: Segment) -> int | None:
        directory = self.directory(segment.source)
        for headers in reader.read_headers(
            *directory.locate(segment.file),
            segment.begin,
            segment.end,
            mode=directory.mode,
            exact=True,
            limits=directory.limits,
        ):
            rows = headers.timestamp[
                (headers.position > segment.begin) | (headers.row >= segment.skipped_rows)
            ]
            if rows.size:
                return int(np.int64(rows[0]))
        return None

    def _up_to_marker(self, uuid: str, before: OffsetEntry | None, end: OffsetEntry) -> OffsetEntry:
        """Return the end of a batch in one replicaset: its first marker, or `end` if there is none."""
        start = {} if before is None else {uuid: before}
        try:
            segments = segments_between(self, start, {uuid: end})
            marker = self._first_marker(uuid, segments, before)
            return end if marker is None else self._entry_at(marker, before or end, end)
        except FAILURES as error:
            self._give_up(end.leader, error)
            return end if before is None else before

    def _first_marker(
        self, uuid: str, segments: Sequence[Segment], before: OffsetEntry | None
    ) -> Marker | None:
        known: Vclock = {} if before is None or before.instant is None else before.instant.lsns
        settled = self.options.start_vclock.get(uuid, {})
        markers = self._markers.setdefault(uuid, Markers(self.options.instants))
        for segment in segments:
            if segment.is_snapshot or not segment.is_log:
                continue
            directory = self.directory(segment.source)
            for marker in markers.find(directory, directory.listing(), segment):
                is_read = marker.position == segment.begin and marker.row < segment.skipped_rows
                seen = max(known.get(marker.replica_id, 0), settled.get(marker.replica_id, 0))
                if not is_read and marker.lsn > seen:
                    return marker
        return None

    def _entry_at(self, marker: Marker, before: OffsetEntry, end: OffsetEntry) -> OffsetEntry:
        """Return the entry after a marker's transaction."""
        directory = self.directory(marker.segment.source)
        rows, block_end = end_of_transaction(directory, marker)
        last = before.instant
        lsns = {**({} if last is None else last.lsns), marker.replica_id: marker.lsn}
        at = Instant(marker.label, marker.time, lsns, InstantState.WAITING, rows, block_end if rows else 0)
        files = files_from(directory.listing(), before)
        files = files_up_to(files, end.file) or files
        bare = replace(before, instant=None)
        index = next(i for i, file in enumerate(files) if file.name == marker.segment.file)
        if not rows:
            read_ahead = ReadAhead(directory, bare, files, max(end.position, files[-1].header))
            return replace(read_ahead.entry_of(index, block_end), instant=at)
        # The block is read in part, so the stream has passed a gap before its file.
        found = entry_at(directory.source.name, files[index], marker.position, marker.segment.since)
        return replace(found, instant=at)


def follower_of(options: XlogOptions) -> Follower:
    """Return a follower; one that ends batches at instants if the options name any."""
    return InstantFollower(options) if options.instants else Follower(options)

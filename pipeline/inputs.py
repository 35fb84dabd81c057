"""Collects the inputs of a batch's plan: descriptions of the log segments, and waiting rows.

Reads headers of files, the `_cluster` of a source that is new to its replicaset, and rows of `_pending`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.plan.generation import find_generation, follow_generation
from pipeline.plan.members import IdTranslation, follow_source_ids, translate_summary, translate_vclock
from pipeline.plan.position import LogSegment
from pipeline.plan.summary import LOCAL_ID, Summary
from pipeline.plan.upgrades import server_version_in_schema
from pipeline.plan.waiting_order import LogPart, LsnRange, order_waiting
from pipeline.state import ReplicasetState, State
from pipeline.waiting import STORED_NAMES, PendingRows, read_pending, vclock_before_file, waiting_segment
from schemas.iproto import SystemSpace
from sources.xlog.format.damage import Mode
from sources.xlog.format.meta import REPLICASET_KEY, Meta, peer_versions
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import joined, shared
from sources.xlog.reader import reader
from sources.xlog.stream.follow import Follower
from sources.xlog.stream.origins import members_at
from sources.xlog.stream.segment import Segment
from udfs.operations.update_rules import LATEST, release_number, rules_of
from warehouse.commits import OpenTables

SEGMENT_STEP = 1 << 20
"""The distance between the numbers of segments between which waiting rows may come."""

NUMBER_MAX = 2**31 - 1
"""The highest number of a segment."""

_PendingPart = tuple[ReplicasetState, str, str, str | None, pa.RecordBatch]
"""Waiting rows from one segment of a batch, with their replicaset, source, file and instance."""


def log_segments(
    segments: Iterable[Segment], state: State | None = None, limits: reader.Limits | None = None
) -> list[LogSegment]:
    """Return the descriptions of segments for planning; reads the headers of their files.

    Parameters
    ----------
    segments : iterable of Segment
    state : State, optional
        Before the batch; it has the server version of files that are continued.
    limits : reader.Limits
        The limits for reading rows, if the header is not enough to find the server version.

    """
    known, bounds = {} if state is None else state.replicasets, limits or reader.Limits()
    return [_log_segment(segment, known.get(segment.replicaset_uuid), bounds) for segment in segments]


def _log_segment(segment: Segment, known: ReplicasetState | None, limits: reader.Limits) -> LogSegment:
    meta = reader.read_meta(*reader.open_fs(segment.path))
    return LogSegment(
        segment.segment,
        segment.replicaset_uuid,
        segment.source,
        segment.file,
        segment.instance_uuid,
        segment.is_snapshot,
        dict(segment.vclock),
        _server_version_at(segment, meta, known, limits),
        peer_versions(meta, segment.file),
        segment.vinyl or frozenset(),
        registered=segment.registered,
        is_spool=REPLICASET_KEY in meta.other,
        is_generation=segment.is_generation,
        earlier=_vclock_before(segment),
    )


def _vclock_before(segment: Segment) -> dict[int, int]:
    """Return the vclock of the rows before a segment's file that its source should have (`LogSegment.earlier`)."""
    if segment.is_snapshot or not segment.is_log:
        return {}
    found = shared(segment.vclock)
    if segment.origins is None:
        return found
    return {replica_id: lsn for replica_id, lsn in found.items() if replica_id in segment.origins[0].wanted}


def _server_version_at(
    segment: Segment, meta: Meta, known: ReplicasetState | None, limits: reader.Limits
) -> str | None:
    """Return the version of the server that wrote the first row of a segment (`pipeline.plan.upgrades`)."""
    version = meta.other.get("Version")
    if version is None or segment.is_snapshot or REPLICASET_KEY in meta.other or segment.begin <= meta.length:
        return version
    is_last = known is not None and (known.last_source, known.last_file) == (segment.source, segment.file)
    if known is not None and known.server_version is not None and is_last:
        return max(version, known.server_version, key=release_number)
    if rules_of(version) == LATEST:
        return version
    # After a start in the middle of a file, its earlier rows of `_schema` show upgrades.
    return max([version, *_schema_versions(segment, meta, limits)], key=release_number)


def _schema_versions(segment: Segment, meta: Meta, limits: reader.Limits) -> Iterator[str]:
    selection = Selection(spaces=frozenset({int(SystemSpace.SCHEMA)}))
    fs, path = reader.open_fs(segment.path)
    for batch in reader.read_rows(
        fs, path, meta.length, segment.begin, selection, Mode.DROPMALFORMED, exact=True, limits=limits
    ):
        versions = map(server_version_in_schema, batch.column("tuple").to_pylist())
        yield from (version for version in versions if version is not None)


def server_version_of_file(follower: Follower, source: str, file: str) -> str | None:
    """Return the version of the server that wrote a file of a source; None if the file does not exist any more."""
    if source not in {one.name for one in follower.options.sources}:
        return None
    listing = follower.directory(source).listing()
    paths = [one.path for one in (*listing.logs, *listing.snapshots) if one.name == file]
    return reader.read_meta(*reader.open_fs(paths[0])).other.get("Version") if paths else None


def with_members(
    segments: Iterable[LogSegment],
    files: Mapping[int, Segment],
    follower: Follower,
    state: State,
    sources: int,
) -> list[LogSegment]:
    """Return the segments, with the source's `_cluster` in the first segment of each source that is new.

    Document 000: if a replicaset is new, or a source takes over from another one, the source's `_cluster` is read
    before its rows. Otherwise rows of replica ids that were registered in files outside of the batches would wait
    forever, and ids that two members assign to different instances would be confused. For a source that continues, the
    batch's rows of `_cluster` are enough.

    Parameters
    ----------
    segments : iterable of LogSegment
    files : mapping of int to Segment
        By segment number.
    follower : Follower
        Lists the sources' files.
    state : State
        Before the batch.
    sources : int
        The number of configured sources: if it exceeds that of replicasets, some replicasets have several.

    """
    found: list[LogSegment] = []
    seen: set[str] = set()
    replicasets = set(state.replicasets) | {segment.replicaset_uuid for segment in files.values()}
    for segment in segments:
        known = state.replicasets.get(segment.replicaset_uuid)
        first = segment.source not in seen
        seen.add(segment.source)
        if first and _must_read_members(known, segment.source, several=sources > len(replicasets)):
            own = files[segment.segment]
            directory = follower.directory(segment.source)
            # A snapshot contains the complete `_cluster` itself.
            members = {} if segment.is_snapshot else members_at(directory, directory.listing(), own)
            if members or segment.is_snapshot or not any(own.vclock.values()):
                segment = replace(segment, members=members)  # noqa: PLW2901
        found.append(segment)
    return found


def _must_read_members(known: ReplicasetState | None, source: str, *, several: bool) -> bool:
    if known is None or not known.applier_map:
        return True
    return source not in known.views and (several or known.last_source != source)


def with_server_versions(tables: OpenTables, follower: Follower, state: State) -> State:
    """Return the state with the server version of each replicaset that has waiting rows, from their files' headers.

    The loaded state does not have these versions, but the waiting UPDATEs and UPSERTs are applied by their rules.
    """
    waiting = {
        one.id: one
        for one in state.replicasets.values()
        if one.has_waiting_rows and one.server_version is None
    }
    if not waiting:
        return state
    found = {
        one.uuid: replace(one, server_version=server_version_of_file(follower, source, file))
        for one, source, file, _, _ in reversed(_pending_by_segment(tables, waiting))
    }
    return state.with_replicasets(found)


def with_room(segments: Sequence[Segment], state: State) -> tuple[Segment, ...]:
    """Return a batch's segments, numbered so that segments of waiting rows fit between them.

    Parameters
    ----------
    segments : sequence of Segment
        Numbered from 0 on.
    state : State
        Before the batch.

    """
    known = (state.replicasets.get(segment.replicaset_uuid) for segment in segments)
    if not any(one is not None and one.has_waiting_rows for one in known):
        return tuple(segments)
    step = min(SEGMENT_STEP, NUMBER_MAX // (len(segments) + 1))
    return tuple(replace(segment, segment=segment.segment * step) for segment in segments)


def pending_rows(
    tables: OpenTables, state: State, segments: Sequence[LogSegment], summaries: Mapping[str, Summary]
) -> list[PendingRows]:
    """Return the waiting rows of a batch's replicasets, numbered to come where they belong among its segments.

    Parameters
    ----------
    tables : OpenTables
    state : State
        Before the batch.
    segments : sequence of LogSegment
        The batch's segments, with numbers that leave room (`with_room`).
    summaries : mapping of str to Summary
        The summaries of these segments, by replicaset uuid.

    """
    waiting = [
        state.replicasets[u]
        for u in summaries
        if u in state.replicasets and state.replicasets[u].has_waiting_rows
    ]
    if not waiting:
        return []
    stored = _pending_by_segment(tables, {one.id: one for one in waiting})
    first: list[PendingRows] = []
    between: list[PendingRows] = []
    for one in waiting:
        own = [segment for segment in segments if segment.replicaset_uuid == one.uuid]
        parts = [part for part in stored if part[0] is one]
        counts: Counter[int] = Counter()
        for passed, index in _order(state, one, own, summaries[one.uuid], parts):
            _, source, file, instance, rows = parts[index]
            counts[passed] += 1
            number = own[passed - 1].segment + counts[passed] if passed else 0
            segment = waiting_segment(number, one.uuid, (source, file, instance), rows)
            (between if passed else first).append(PendingRows(segment, rows))
    return [
        *(replace(one, segment=replace(one.segment, segment=i - len(first))) for i, one in enumerate(first)),
        *between,
    ]


def _order(
    state: State,
    one: ReplicasetState,
    segments: Sequence[LogSegment],
    summary: Summary,
    parts: Sequence[_PendingPart],
) -> list[tuple[int, int]]:
    """Return the order of a replicaset's waiting rows among its log segments, as `order_waiting` does.

    A generation already contains the waiting rows from before it, so these come after it.
    """
    generation = find_generation(one, segments)
    snapshots = frozenset(segment.segment for segment in segments if segment.is_snapshot)
    control = follow_generation(one, generation, summary.control, snapshots)
    number = None if generation is None else generation.segment
    found = follow_source_ids(one, segments, control.registrations, state.instance_uuids, number)
    ids = {segment.segment: found.translations.get(segment.source, {}) for segment in segments}
    runs: dict[int, list[LsnRange]] = {segment.segment: [] for segment in segments}
    for run in translate_summary(summary, ids).runs:
        if run.replica_id != LOCAL_ID and run.start.segment not in snapshots:
            runs[run.start.segment].append(LsnRange(run.replica_id, run.first, run.last))
    logs = [
        LogPart(translate_vclock(segment.earlier, ids[segment.segment]), runs[segment.segment])
        for segment in segments
    ]
    waiting = [_waiting_part(rows, found.translations.get(source, {})) for _, source, _, _, rows in parts]
    settled = {**found.bases, **one.settled}
    if generation is None:
        return order_waiting(settled, waiting, logs)
    passed = sum(1 for _ in takewhile(lambda segment: segment.is_snapshot, segments))
    return order_waiting(joined(settled, generation.settled), waiting, logs, passed)


def _waiting_part(rows: pa.RecordBatch, ids: IdTranslation) -> LogPart:
    """Return the lsns of some waiting rows of one file, and those before it; the ids are translated by `ids`."""
    named = pa.Table.from_batches([rows]).select(["replica_id", "lsn"])
    named = named.filter(pc.greater(named["replica_id"], LOCAL_ID))
    bounds = named.group_by("replica_id").aggregate([("lsn", "min"), ("lsn", "max")]).to_pylist()
    ranges = [
        LsnRange(ids.get(row["replica_id"], row["replica_id"]), row["lsn_min"], row["lsn_max"])
        for row in bounds
    ]
    return LogPart(translate_vclock(vclock_before_file(rows), ids), ranges)


def _pending_by_segment(tables: OpenTables, waiting: Mapping[int, ReplicasetState]) -> list[_PendingPart]:
    """Return the rows of `_pending` of some replicasets, by segment and in log order."""
    whole = read_pending(tables, waiting, for_definition=False)
    order = [(name, "ascending") for name in ("replicaset_id", "segment", "position", "row")]
    whole = whole.take(pc.sort_indices(whole, sort_keys=order)).combine_chunks()
    keys = (whole["replicaset_id"].to_numpy().astype(np.int64) << 32) | (
        whole["segment"].to_numpy().astype(np.int64) & 0xFFFFFFFF
    )
    cuts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), whole.num_rows]
    parts: list[_PendingPart] = []
    for begin, end in pairwise(cuts):
        if begin == end:
            continue
        (rows,) = whole.slice(begin, end - begin).combine_chunks().to_batches()
        first = rows.slice(0, 1).to_pylist()[0]
        place = (first["source"], first["file"], first["instance_uuid"])
        parts.append((waiting[first["replicaset_id"]], *place, rows.select(STORED_NAMES)))
    return parts

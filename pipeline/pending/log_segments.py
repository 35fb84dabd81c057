"""Describes the log segments of a batch for its plan.

Reads headers of files, and the `_cluster` of a source that is new to its replicaset.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from pipeline.plan.ids.upgrades import server_version_in_schema
from pipeline.plan.rows.position import LogSegment
from pipeline.state import ReplicasetState, State
from schemas.iproto import SystemSpace
from sources.xlog.format.damage import Mode
from sources.xlog.format.meta import REPLICASET_KEY, Meta, peer_versions
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import without_local
from sources.xlog.reader import reader
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.origins import members_at
from sources.xlog.stream.segment import Segment
from udfs.operations.update_rules import LATEST, release_number, rules_of


def log_segments(
    segments: Iterable[Segment], state: State | None = None, limits: reader.Limits | None = None
) -> list[LogSegment]:
    """Return the description of each segment that the plan needs; reads the headers of the segments' files."""
    known, bounds = {} if state is None else state.replicasets, limits or reader.Limits()
    return [_log_segment(segment, known.get(segment.replicaset_uuid), bounds) for segment in segments]


def _log_segment(segment: Segment, replicaset: ReplicasetState | None, limits: reader.Limits) -> LogSegment:
    meta = reader.read_meta(*reader.open_fs(segment.path))
    return LogSegment(
        segment.number,
        segment.replicaset_uuid,
        segment.source,
        segment.file,
        segment.instance_uuid,
        segment.is_snapshot,
        dict(segment.vclock),
        _server_version_at(segment, meta, replicaset, limits),
        peer_versions(meta, segment.file),
        segment.vinyl_space_ids or frozenset(),
        left_out_members=segment.left_out_registrations,
        is_spool=REPLICASET_KEY in meta.other,
        is_generation=segment.is_generation,
        vclock_before=_vclock_before_file(segment),
    )


def _vclock_before_file(segment: Segment) -> dict[int, int]:
    if segment.is_snapshot or not segment.is_log:
        return {}
    found = without_local(segment.vclock)
    if segment.origin_spans is None:
        return found
    return {
        replica_id: lsn
        for replica_id, lsn in found.items()
        if replica_id in segment.origin_spans[0].wanted_ids
    }


def _server_version_at(
    segment: Segment, meta: Meta, replicaset: ReplicasetState | None, limits: reader.Limits
) -> str | None:
    version = meta.other.get("Version")
    if version is None or segment.is_snapshot or REPLICASET_KEY in meta.other or segment.begin <= meta.length:
        return version
    is_last = replicaset is not None and (replicaset.last_source, replicaset.last_file) == (
        segment.source,
        segment.file,
    )
    if replicaset is not None and replicaset.server_version is not None and is_last:
        return max(version, replicaset.server_version, key=release_number)
    if rules_of(version) == LATEST:
        return version
    # After a start in the middle of a file, its earlier rows of `_schema` show upgrades.
    return max([version, *_schema_versions(segment, meta, limits)], key=release_number)


def _schema_versions(segment: Segment, meta: Meta, limits: reader.Limits) -> Iterator[str]:
    selection = Selection(space_ids=frozenset({int(SystemSpace.SCHEMA)}))
    fs, path = reader.open_fs(segment.path)
    for batch in reader.read_rows(
        fs,
        path,
        meta.length,
        segment.begin,
        selection,
        Mode.DROPMALFORMED,
        at_block_starts=True,
        limits=limits,
    ):
        versions = map(server_version_in_schema, batch.column("tuple").to_pylist())
        yield from (version for version in versions if version is not None)


def with_members(
    segments: Iterable[LogSegment],
    segments_by_number: Mapping[int, Segment],
    log_stream: LogStream,
    state: State,
    source_count: int,
) -> list[LogSegment]:
    """Return the segments; the first one of each new source gets the content of its `_cluster` (`LogSegment.members`).

    A source is new if its replicaset is new, or if it takes over from another source. Its `_cluster` is read before its
    rows for two reasons: rows of replica ids that were registered in files outside of the batches would wait forever,
    and replica ids that two members assign to different instances would be confused. For a source that continues, the
    batch's rows of `_cluster` are enough.
    """
    found: list[LogSegment] = []
    seen: set[str] = set()
    replicasets = set(state.replicasets) | {
        segment.replicaset_uuid for segment in segments_by_number.values()
    }
    for segment in segments:
        known = state.replicasets.get(segment.replicaset_uuid)
        first = segment.source not in seen
        seen.add(segment.source)
        if first and _must_read_members(
            known, segment.source, has_several_sources=source_count > len(replicasets)
        ):
            own = segments_by_number[segment.number]
            directory = log_stream.directory(segment.source)
            # A snapshot contains the complete `_cluster` itself.
            members = {} if segment.is_snapshot else members_at(directory, directory.listing(), own)
            if members or segment.is_snapshot or not any(own.vclock.values()):
                segment = replace(segment, members=members)  # noqa: PLW2901
        found.append(segment)
    return found


def _must_read_members(replicaset: ReplicasetState | None, source: str, *, has_several_sources: bool) -> bool:
    if replicaset is None or not replicaset.applier_map:
        return True
    return source not in replicaset.cluster_by_source and (
        has_several_sources or replicaset.last_source != source
    )

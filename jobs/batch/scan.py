"""One cheap pass over a batch's byte ranges: its summary, before any row moves through Spark.

A small batch is summarized in the driver, which costs no Spark job; a large one where its tasks run. The ranges
are exactly those that the stream reads, planned by the same code from the same offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import SparkSession

from jobs.batch.stretch import Stretch
from jobs.batch.summary import Summary, join_summaries, summarize
from sources.xlog import reader
from sources.xlog.batch import tasks_of
from sources.xlog.follow import Follower
from sources.xlog.meta import REPLICASET_KEY
from sources.xlog.options import XlogOptions
from sources.xlog.read import read_range
from sources.xlog.segment import ByteRange, Segment

DRIVER_BYTES = 8 * 1024 * 1024
"""Up to so many bytes of log are summarized in the driver."""

SyncSpaces = Mapping[str, frozenset[int]]
"""By replicaset uuid: ids of spaces whose rows wait for a quorum."""


def stretches_of(segments: Iterable[Segment]) -> list[Stretch]:
    """Return what the plan needs to know of segments; reads the headers of their files."""
    return [_stretch(segment) for segment in segments]


def _stretch(s: Segment) -> Stretch:
    meta = reader.read_meta(*reader.open_fs(s.path))
    return Stretch(
        s.segment,
        s.replicaset_uuid,
        s.source,
        s.file,
        s.instance_uuid,
        s.is_snapshot,
        dict(s.vclock),
        meta.other.get("Version"),
        s.vinyl or frozenset(),
        is_spool=REPLICASET_KEY in meta.other,
    )


def server_of(follower: Follower, source: str, file: str) -> str | None:
    """Return the version of the server that wrote a file of a source, None where it is not there any more."""
    listing = follower.directory(source).listing()
    paths = [one.path for one in (*listing.logs, *listing.snapshots) if one.name == file]
    return reader.read_meta(*reader.open_fs(paths[0])).other.get("Version") if paths else None


def scan(
    spark: SparkSession, segments: Sequence[Segment], follower: Follower, sync: SyncSpaces
) -> dict[str, Summary]:
    """Return the summary of each replicaset's rows in a batch.

    Parameters
    ----------
    spark : SparkSession
    segments : sequence of Segment
    follower : Follower
        Of the stream's options.
    sync : mapping of str to frozenset of int

    """
    size = sum(segment.end - segment.begin for segment in segments)
    options = follower.options
    tasks = tasks_of(follower, segments)
    if size <= DRIVER_BYTES or len(tasks) == 1:
        parts = [summarize_ranges(task, options, sync) for task in tasks]
    else:
        work = spark.sparkContext.parallelize(tasks, len(tasks))
        parts = work.map(lambda task: summarize_ranges(task, options, sync)).collect()
    found: dict[str, list[Summary]] = {segment.replicaset_uuid: [] for segment in segments}
    for part in parts:
        for uuid, summary in part:
            found[uuid].append(summary)
    return {uuid: join_summaries(summaries) for uuid, summaries in found.items()}


def summarize_ranges(
    ranges: Iterable[ByteRange], options: XlogOptions, sync: SyncSpaces
) -> list[tuple[str, Summary]]:
    """Return the summary of each range, with the replicaset that it belongs to, in order."""
    found = []
    for piece in ranges:
        segment = piece.segment
        waiting = sync.get(segment.replicaset_uuid, frozenset())
        batches = read_range(piece, options)
        summaries = [summarize(batch, segment.segment, waiting) for batch in batches]
        found.append((segment.replicaset_uuid, join_summaries(summaries)))
    return found

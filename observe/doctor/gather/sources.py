"""Gathers facts of each source's files: headers, ends, and lsns and times of the newest log. Reads only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from config.deployment import Config
from config.deployment import SourceConfig as Configured
from observe.doctor.sources import Begin, Hole, SourceFacts
from pipeline.preview import begin_offsets
from pipeline.source_options import stream_options
from pipeline.state import State
from schemas.errors import AggregatorError, SpoolError, XlogError
from schemas.iproto import GROUP_LOCAL, VCLOCK_MAX
from sources.spool.state import read_state
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.identity import identity_of
from sources.xlog.directory.listing import Listing, LogFile, may_miss_rows, newest_not_beyond
from sources.xlog.directory.offset import Offset
from sources.xlog.format.vclock import joined, not_beyond, shared
from sources.xlog.options import Source, parse_options
from sources.xlog.reader import reader
from sources.xlog.stream.follow import Follower
from warehouse.lock import local_folder

FAILURES = (AggregatorError, OSError, pa.ArrowException, ValueError)


def source_facts(source: Configured, block: int) -> SourceFacts:
    """Return the facts of a source's files.

    Parameters
    ----------
    source : Source
    block : int
        The configuration's `max_block_bytes`.

    """
    directory = Directory(
        Source(source.name, source.path, source.replicaset, frozenset(source.origins)), block=block
    )
    try:
        listing = directory.listing()
    except FAILURES as error:
        return SourceFacts(source.name, source.path, str(error), damaged=isinstance(error, XlogError))
    if not listing.logs and not listing.snapshots:
        return SourceFacts(source.name, source.path)
    files = (*listing.snapshots, *listing.logs)
    replicaset, identity_error = _identity(directory, listing)
    is_spool = files[-1].replicaset_uuid is not None
    reached, newest, tail_error = _end(directory, listing)
    return SourceFacts(
        source.name,
        source.path,
        logs=len(listing.logs),
        snapshots=len(listing.snapshots),
        snapshot_vclock=_snapshot_vclock(directory, listing),
        is_spool=is_spool,
        instances=tuple(sorted({file.instance_uuid for file in files if file.instance_uuid})),
        replicasets=tuple(sorted({file.replicaset_uuid for file in files if file.replicaset_uuid})),
        has_replicaset_key=source.replicaset is not None,
        replicaset=replicaset,
        identity_error=identity_error,
        server=_server(directory, files[-1]),
        reached=reached,
        newest=newest,
        now=time.time(),
        holes=tuple(_holes(directory, listing)),
        tail_error=tail_error,
        spool_error=_spool_error(source.path, block) if is_spool else None,
    )


def begins(config: Config, state: State, start: Offset) -> tuple[list[Begin], dict[str, str]]:
    """Return where a run begins in each replicaset, and the sources that are not followed, with the reason.

    Parameters
    ----------
    config : Config
    state : State
        As of the newest epoch.
    start : Offset
        The end of the stream.

    """
    options = parse_options({**stream_options(config, state, 1), "on_source_error": "skip"})
    follower = Follower(options)
    ends = follower.latest(start)
    places = begin_offsets(follower, start, ends)
    found = [
        Begin(uuid, entry.leader, entry.file, entry.position, uuid not in state.replicasets)
        for uuid, entry in sorted(places.items())
    ]
    return found, dict(follower.unreadable)


def _snapshot_vclock(directory: Directory, listing: Listing) -> dict[int, int] | None:
    newest = directory.newest_complete(listing.snapshots)
    return None if newest is None else shared(newest.vclock)


def _identity(directory: Directory, listing: Listing) -> tuple[str | None, str | None]:
    try:
        return identity_of(directory, listing), None
    except FAILURES as error:
        return None, str(error)


def _server(directory: Directory, file: LogFile) -> str | None:
    try:
        return reader.read_meta(*directory.opened(file.name)).other.get("Version")
    except FAILURES:
        return None


def _end(directory: Directory, listing: Listing) -> tuple[dict[int, int], float | None, str | None]:
    """Return the vclock after the newest log, the time of the newest row, and the damage there.

    A server that has just started has a newest log without rows: then the previous one is read.
    """
    reached = shared((listing.logs[-1:] or listing.snapshots[-1:])[0].vclock)
    highest, newest = np.zeros(VCLOCK_MAX, np.int64), -1
    try:
        for file in reversed(listing.logs):
            end = directory.ends.of(file, closed=file is not listing.logs[-1]).position
            for rows in reader.read_headers(
                *directory.opened(file.name), file.header, end, exact=True, limits=directory.limits
            ):
                ids = np.where(rows.group_id == GROUP_LOCAL, 0, np.maximum(rows.replica_id, 0))
                np.maximum.at(highest, ids, rows.lsn)
                newest = max(newest, int(rows.timestamp.max(initial=-1)))
            if newest >= 0:
                break
    except FAILURES as error:
        return reached, None, str(error)
    found = {replica_id: int(lsn) for replica_id, lsn in enumerate(highest) if replica_id and lsn > 0}
    return shared(joined(reached, found)), None if newest < 0 else newest / 1e6, None


def _holes(directory: Directory, listing: Listing) -> Iterator[Hole]:
    """Yield the places where a file begins after the end of the previous one."""
    course = listing.ordered_files
    if listing.snapshots and listing.logs:
        first, newest = listing.logs[0], listing.snapshots[-1]
        if newest_not_beyond(listing.logs, newest.vclock, local=True) is None:
            yield Hole(newest.name, first.name, shared(newest.vclock), shared(first.vclock))
    for before, after in pairwise(course):
        try:
            if after.is_snapshot or not may_miss_rows(before, directory.ends.of(before, closed=True), after):
                continue
            had = shared(before.vclock if before.is_snapshot else directory.ends.end_vclock(before))
        except FAILURES:
            continue  # damage in a closed log is reported by the code that reads its rows
        if not not_beyond(shared(after.vclock), had):
            yield Hole(before.name, after.name, had, shared(after.vclock))


def _spool_error(path: str, block: int) -> str | None:
    folder = local_folder(path)
    if folder is None:
        return None
    try:
        read_state(Path(folder), block)
    except (SpoolError, XlogError, OSError) as error:
        return str(error)
    return None

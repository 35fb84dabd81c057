"""Heals a divergence: reads one source's newest snapshot as a generation, and so makes the tables equal to that member.

Only the operator knows which member is right, and names its source. `pipeline.requests.generation` plans the batch;
`pipeline.requests.take_again` reads single spaces from a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from config.deployment import Config
from pipeline.batch import BatchWriter
from pipeline.changelog.divergence import LSN_HASHES
from pipeline.commit.batch import BatchName
from pipeline.requests.generation import Healing, plan_healing
from pipeline.requests.read_again import source_follower
from pipeline.state import ReplicasetState
from schemas.errors import SourceError
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.identity import identity_of
from sources.xlog.directory.listing import Listing, LogFile, newest_not_beyond
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import shared
from sources.xlog.reader import reader
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.failover import entry_at
from sources.xlog.stream.follow import Follower
from udfs.keys.row_hash import row_hashes
from warehouse.gaps import gap_of
from warehouse.warehouse import Warehouse


def heal(
    config: Config, warehouse: Warehouse, writer: BatchWriter, source: str, name: str, cores: int = 1
) -> str:
    """Make the tables equal to a source's newest snapshot and the rows since, and return a report.

    Parameters
    ----------
    writer : BatchWriter
        The caller has acquired its lock `between`.
    source : str
        The source's name in the configuration.
    name : str
        The query id of the batch in `_epochs`.
    cores : int
        The number of tasks that read at a time.

    Raises
    ------
    ConfigurationError
        There is no such source.
    SourceError
        The source has no complete snapshot, or its replicaset is not known yet.
    UnsupportedError
        The snapshot cannot be used.

    """
    follower = source_follower(config, writer, source, cores)
    directory = follower.directory(source)
    listing = directory.listing()
    known = known_replicaset(writer, directory, listing)
    snapshot = directory.newest_complete(listing.snapshots)
    if known is None or snapshot is None:
        reason = "its replicaset has no tables yet" if known is None else "there is no complete snapshot"
        raise SourceError(reason, source=source, advice="it cannot heal anything")
    healing = plan_healing(
        *(warehouse.open_tables, known, source, shared(snapshot.vclock)),
        lambda: hashes_after(directory, listing, snapshot, known.id_translations.get(source, {})),
    )
    rows = read_snapshot(writer, follower, source, snapshot, healing, name)
    reapplied = sum(healing.counts.values())
    report = gap_texts(healing.healed) or "no known divergence"
    left = gap_texts([*healing.left_open, *healing.newly_open])
    if left:
        report += f"; STILL OPEN, as the snapshot is older: {left}: box.snapshot(), and heal again"
    return f"{snapshot.name}: {rows} rows, and {reapplied} later rows applied again; healed: {report}"


def known_replicaset(writer: BatchWriter, directory: Directory, listing: Listing) -> ReplicasetState | None:
    """Return the state of a source's replicaset, None if the tables do not have it."""
    return writer.state.replicasets.get(identity_of(directory, listing, None))


def read_snapshot(
    writer: BatchWriter, follower: Follower, source: str, snapshot: LogFile, healing: Healing, name: str
) -> int:
    """Process a snapshot as a healing batch, and return the number of rows read."""
    begin = entry_at(source, snapshot)
    end = entry_at(source, snapshot, follower.directory(source).ends.of(snapshot, closed=True).position)
    segments = segments_between(follower, {healing.uuid: begin}, {healing.uuid: end})
    rows, _ = writer.process(segments, BatchName(name, 0), healing, follower)
    return rows


def hashes_after(
    directory: Directory, listing: Listing, snapshot: LogFile, ids: Mapping[int, int]
) -> pa.Table:
    """Return `LSN_HASHES` of the rows in a source's logs after a snapshot.

    Parameters
    ----------
    directory, listing
        The source's directory and its files.
    snapshot : LogFile
    ids : mapping of int to int
        The replicaset's id of each of the source's replica ids that differs from it.

    """
    first = newest_not_beyond(listing.logs, snapshot.vclock, local=True)
    wanted = Selection(from_vclock=snapshot.vclock)
    parts: list[pa.Table] = []
    for file in listing.logs[first or 0 :]:
        end = directory.ends.of(file, closed=False).position
        rows = reader.read_rows(
            *directory.locate(file.name), file.header, end, wanted, directory.mode, limits=directory.limits
        )
        for batch in rows:
            own = [ids.get(i, i) for i in batch.column("replica_id").to_pylist()]
            columns = [pa.array(own, pa.int32()), batch.column("lsn"), row_hashes(batch)]
            found = pa.Table.from_arrays(columns, names=LSN_HASHES.names)
            parts.append(found.filter(pa.array([i is not None for i in own])).cast(LSN_HASHES))
    return pa.concat_tables(parts) if parts else LSN_HASHES.empty_table()


def gap_texts(gaps: Iterable[Mapping[str, Any]]) -> str:
    """Describe rows of `_gaps`, for messages."""
    return "; ".join(str(gap_of(row)) for row in gaps)

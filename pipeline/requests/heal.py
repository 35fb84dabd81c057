"""One source's newest snapshot read as a generation, which heals a divergence: the tables say what that member says.

Which member is right only the operator knows, so it is asked for by the source's name.
Not here: what the batch does besides reading (`pipeline.requests.generation`), some spaces only
(`pipeline.requests.take_again`), who may write (`pipeline.requests.service`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from config.deployment import Config
from pipeline.batch import BatchWriter
from pipeline.changelog.divergence import LSN_HASHES
from pipeline.commit.batch import BatchName
from pipeline.requests.generation import Healing, healing_of
from pipeline.requests.read_again import follower_of
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
    """Make the tables what a source's newest snapshot and the rows since say, and return what was done.

    Parameters
    ----------
    writer : BatchWriter
        The caller holds its `between`.
    source : str
        Name in the configuration.
    name : str
        Of the batch, in `_epochs`.
    cores : int
        So many tasks read at a time.

    Raises
    ------
    ConfigurationError
        There is no such source.
    SourceError
        It holds no complete snapshot, or its replicaset is not known yet.
    UnsupportedError
        The snapshot cannot be taken, with the reason.

    """
    follower = follower_of(config, writer, source, cores)
    directory = follower.directory(source)
    listing = directory.listing()
    known = known_replicaset(writer, directory, listing)
    snapshot = directory.newest_complete(listing.snapshots)
    if known is None or snapshot is None:
        reason = "its replicaset has no tables yet" if known is None else "there is no complete snapshot"
        raise SourceError(reason, source=source, advice="nothing can be healed by it")
    healing = healing_of(
        *(warehouse.open_tables, known, source, shared(snapshot.vclock)),
        lambda: logged_behind(directory, listing, snapshot, known.id_translations.get(source, {})),
    )
    rows = read_snapshot(writer, follower, source, snapshot, healing, name)
    again = sum(healing.counts.values())
    told = named(healing.closed) or "no divergence that is known"
    left = named([*healing.left, *healing.opened])
    if left:
        told += f"; STILL OPEN, as the snapshot is older: {left}: box.snapshot(), and heal again"
    return f"{snapshot.name}: {rows} rows, {again} rows done again behind it; healed: {told}"


def known_replicaset(writer: BatchWriter, directory: Directory, listing: Listing) -> ReplicasetState | None:
    """Return the replicaset of a source as the tables know it, None where they do not."""
    return writer.state.replicasets.get(identity_of(directory, listing, None))


def read_snapshot(
    writer: BatchWriter, follower: Follower, source: str, snapshot: LogFile, healing: Healing, name: str
) -> int:
    """Do the batch in which a snapshot replaces what is known, and return the rows read."""
    begin = entry_at(source, snapshot)
    end = entry_at(source, snapshot, follower.directory(source).ends.of(snapshot, closed=True).position)
    segments = segments_between(follower, {healing.uuid: begin}, {healing.uuid: end})
    rows, _ = writer.process(segments, BatchName(name, 0), healing, follower)
    return rows


def logged_behind(
    directory: Directory, listing: Listing, snapshot: LogFile, ids: Mapping[int, int]
) -> pa.Table:
    """Return the rows of a source's logs behind a snapshot, as `LSN_HASHES`.

    Parameters
    ----------
    directory, listing
        Of the source.
    snapshot : LogFile
    ids : mapping of int to int
        The source's replica ids that have another number in its replicaset.

    """
    first = newest_not_beyond(listing.logs, snapshot.vclock, local=True)
    wanted = Selection(from_vclock=snapshot.vclock)
    parts: list[pa.Table] = []
    for file in listing.logs[first or 0 :]:
        end = directory.ends.of(file, closed=False).position
        rows = reader.read_rows(
            *directory.opened(file.name), file.header, end, wanted, directory.mode, limits=directory.limits
        )
        for batch in rows:
            own = [ids.get(i, i) for i in batch.column("replica_id").to_pylist()]
            columns = [pa.array(own, pa.int32()), batch.column("lsn"), row_hashes(batch)]
            found = pa.Table.from_arrays(columns, names=LSN_HASHES.names)
            parts.append(found.filter(pa.array([i is not None for i in own])).cast(LSN_HASHES))
    return pa.concat_tables(parts) if parts else LSN_HASHES.empty_table()


def named(gaps: Iterable[Mapping[str, Any]]) -> str:
    """Return the texts of some rows of `_gaps`."""
    return "; ".join(str(gap_of(row)) for row in gaps)

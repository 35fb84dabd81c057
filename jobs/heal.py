"""One source's newest snapshot read as a generation, which heals a divergence: the tables say what that member says.

Which member is right only the operator knows, so it is asked for by the source's name.
Not here: what the batch does beside reading (`pipeline.heal`), who may write (`jobs.service`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from config.deployment import Config
from jobs.refill import follower_of
from pipeline.batch import BatchWriter
from pipeline.commit.batch import BatchName
from pipeline.heal import healing_of
from schemas.errors import SourceError
from sources.xlog.batch import segments_between
from sources.xlog.identity import identity_of
from sources.xlog.takeover import entry_at
from sources.xlog.vclock import shared
from tables.gaps import gap_of
from tables.warehouse import Warehouse


def heal(
    spark: SparkSession, config: Config, warehouse: Warehouse, writer: BatchWriter, source: str, name: str
) -> str:
    """Make the tables what a source's newest snapshot and the rows since say, and return what was done.

    Parameters
    ----------
    writer : BatchWriter
        Whoever calls holds its `between`.
    source : str
        Name in the configuration.
    name : str
        Of the batch, in `_epochs`.

    Raises
    ------
    ConfigurationError
        There is no such source.
    SourceError
        It holds no complete snapshot, or its replicaset is not known yet.
    UnsupportedError
        The snapshot cannot be taken, with the reason.

    """
    follower = follower_of(spark, config, writer, source)
    directory = follower.directory(source)
    listing = directory.listing()
    uuid = identity_of(directory, listing, None)
    known = writer.state.replicasets.get(uuid)
    snapshot = directory.newest_complete(listing.snapshots)
    if known is None or snapshot is None:
        reason = "its replicaset has no tables yet" if known is None else "there is no complete snapshot"
        raise SourceError(reason, source=source, advice="nothing can be healed by it")
    healing = healing_of(warehouse.open_tables, known, source, shared(snapshot.vclock))
    begin = entry_at(source, snapshot)
    end = entry_at(source, snapshot, directory.ends.of(snapshot, closed=True).position)
    segments = segments_between(follower, {uuid: begin}, {uuid: end})
    rows, _ = writer.process(segments, BatchName(name, 0), healing)
    again = sum(healing.counts.values())
    told = _told(healing.closed) or "no divergence that is known"
    left = _told(healing.left)
    if left:
        told += f"; STILL OPEN, as the snapshot is older: {left}: box.snapshot(), and heal again"
    return f"{snapshot.name}: {rows} rows, {again} rows done again behind it; healed: {told}"


def _told(gaps: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join(str(gap_of(row)) for row in gaps)

"""Estimates what a deployment needs from its own logs: rows and bytes a second, then cores, memory and disk; no Spark.

Measures the newest logs of each source (their headers, up to `SAMPLE_BYTES`), and, if there are tables, the bytes per
row that they take. The coefficients are measured ones (docs/scaling.md, "Sizing"); an estimate is a place to start
from, no promise.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from config.deployment import Config, SourceConfig
from config.subscribe import seconds
from schemas.errors import AggregatorError
from schemas.names import is_space_table
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.source import Source
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import active_files

SAMPLE_BYTES = 128 << 20
"""Bytes of a source's newest logs that are read."""

MINUTE = 60
DAY = 86400

ROW_SECONDS = 7e-6
"""Seconds of a core for a row on its whole way, in a space that several replicasets write (docs/scaling.md, `r`)."""

DAEMON_ROW_SECONDS = 0.5e-6
"""Seconds of a core for a live row into the spool."""

BATCH_SECONDS = 0.6
"""Seconds of each batch that has rows (docs/scaling.md, `a`)."""

TABLE_SECONDS = 0.02
"""Seconds for each changed table of a batch (docs/scaling.md, `c`)."""

SOURCE_SECONDS = 0.005
"""Seconds for each source with rows (docs/scaling.md, `s`)."""

BUSY_SHARE = 0.5
"""The share of the time between two triggers that the busiest minute's batch may take."""

BASE_MEMORY_BYTES = 3 << 30
"""Memory of the driver without a batch: Java, Python, the state of the tables."""

LOCAL_MEMORY_FACTOR = 8
"""Bytes of memory for each byte of decoded rows of a local batch."""

DECODED_ROW_BYTES = 250
"""Memory of a decoded row of usual size."""

CHANGELOG_SHARE = 1.0
"""Bytes of `_changelog` for each byte of logs, where there are no tables to measure."""

TABLE_COPIES = 3
"""How often a table's bytes are on the disk while older versions are kept for readers."""


@dataclass(frozen=True)
class SourceMeasure:
    """What the newest logs of one source have."""

    name: str
    rows: int
    log_bytes: int
    """Their bytes, as they are stored."""
    seconds: float
    busiest_rows: int
    error: str | None = None
    """Why the source could not be read."""

    @property
    def rows_per_second(self) -> float:
        """Mean of all rows over the time."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def bytes_per_day(self) -> float:
        """Bytes of logs a day."""
        return self.log_bytes / self.seconds * DAY if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class TableMeasure:
    """What the tables of a warehouse take."""

    changelog_rows: int
    changelog_bytes: int
    table_rows: int
    table_bytes: int
    tables: int


@dataclass(frozen=True)
class Estimate:
    """What a deployment needs."""

    sources: tuple[SourceMeasure, ...]
    tables: TableMeasure | None
    rows_per_second: float
    """Mean of all sources."""
    busiest_rows_per_second: float
    """Of the busiest minute of each source, as if they were at the same time."""
    batch_seconds: float
    """Time of a batch of the busiest minute, on one core."""
    cores: int
    """Cores of the stream, so that such a batch takes at most half of the trigger."""
    memory_bytes: int
    spool_bytes_per_day: float
    """Logs that the daemon keeps for each day that a reader is away; 0 without the section `subscribe`."""
    changelog_bytes_per_day: float
    changelog_bytes: float | None
    """`_changelog` after its retention's days; None if it is kept for ever."""
    table_disk_bytes: float | None
    """Tables of spaces with their older versions; None where there are none to measure."""
    advice: tuple[str, ...]


def measure_source(source: SourceConfig, max_block_bytes: int) -> SourceMeasure:
    """Measure the newest logs of a source."""
    directory = Directory(
        Source(source.name, source.path, source.replicaset, frozenset(source.origins)),
        max_block_bytes=max_block_bytes,
    )
    times: list[np.ndarray] = []
    size = 0
    try:
        logs = directory.listing().logs
        for file in reversed(logs):
            end = directory.ends.end_of(file, closed=file is not logs[-1]).position
            times += [
                rows.timestamp[rows.timestamp > 0]
                for rows in directory.read_headers(file.name, file.header_bytes, end)
            ]
            size += end
            if size >= SAMPLE_BYTES:
                break
    except (AggregatorError, OSError, ValueError) as error:
        return SourceMeasure(source.name, 0, 0, 0.0, 0, str(error))
    stamps = np.concatenate(times) if times else np.zeros(0, np.int64)
    if not len(stamps):
        return SourceMeasure(source.name, 0, size, 0.0, 0)
    minutes = np.bincount((stamps - stamps.min()) // (MINUTE * 1_000_000))
    span = float(stamps.max() - stamps.min()) / 1e6
    return SourceMeasure(source.name, len(stamps), size, span, int(minutes.max()))


def measure_tables(location: WarehouseLocation) -> TableMeasure | None:
    """Measure the tables of a warehouse by their logs; None if there are none."""
    totals: dict[bool, tuple[int, int, int]] = {}
    for name in location.tables():
        opened = location.open(name)
        if opened is None or (name != "_changelog" and not is_space_table(name)):
            continue
        files = active_files(opened)
        rows, size = sum(file.num_records or 0 for file in files), sum(file.size for file in files)
        before = totals.get(name == "_changelog", (0, 0, 0))
        totals[name == "_changelog"] = (before[0] + rows, before[1] + size, before[2] + 1)
    if not totals:
        return None
    changelog, tables = totals.get(True, (0, 0, 0)), totals.get(False, (0, 0, 0))
    return TableMeasure(changelog[0], changelog[1], *tables)


def estimate(config: Config, sources: Sequence[SourceMeasure], tables: TableMeasure | None) -> Estimate:
    """Compute what a deployment needs from what was measured."""
    mean = sum(one.rows_per_second for one in sources)
    busiest = sum(max(one.busiest_rows / MINUTE, one.rows_per_second) for one in sources)
    trigger = seconds(config.trigger)
    fixed = BATCH_SECONDS + SOURCE_SECONDS * len(sources) + TABLE_SECONDS * (tables.tables if tables else 10)
    per_batch = busiest * trigger * ROW_SECONDS
    left = trigger * BUSY_SHARE - fixed
    cores = max(1, math.ceil(per_batch / left)) if left > 0 else max(1, math.ceil(busiest * ROW_SECONDS * 2))
    if config.subscribe is not None:
        cores += math.ceil(busiest * DAEMON_ROW_SECONDS)
    batch_bytes = min(busiest * trigger * DECODED_ROW_BYTES, float(config.local_bytes))
    log_bytes_per_day = sum(one.bytes_per_day for one in sources)
    per_row = (
        tables.changelog_bytes / tables.changelog_rows
        if tables is not None and tables.changelog_rows
        else None
    )
    changelog_per_day = log_bytes_per_day * CHANGELOG_SHARE if per_row is None else mean * DAY * per_row
    days = config.retention.changelog
    return Estimate(
        sources=tuple(sources),
        tables=tables,
        rows_per_second=mean,
        busiest_rows_per_second=busiest,
        batch_seconds=fixed + per_batch,
        cores=cores,
        memory_bytes=int(BASE_MEMORY_BYTES + LOCAL_MEMORY_FACTOR * batch_bytes),
        spool_bytes_per_day=0.0 if config.subscribe is None else log_bytes_per_day,
        changelog_bytes_per_day=changelog_per_day,
        changelog_bytes=None if days is None else changelog_per_day * days,
        table_disk_bytes=None if tables is None else float(tables.table_bytes * TABLE_COPIES),
        advice=tuple(_advice(config, cores)),
    )


def _advice(config: Config, cores: int) -> list[str]:
    found = []
    retention = config.retention
    endless: Mapping[str, int | None] = {
        "_changelog (retention.changelog)": retention.changelog,
        "_conflicts (retention.conflicts)": retention.conflicts,
        "deleted keys in _versions (retention.tombstones)": retention.tombstones,
        "_epochs (retention.epochs)": retention.epochs,
    }
    kept = [name for name, days in endless.items() if days is None]
    if kept:
        found.append(f"kept for ever: {', '.join(kept)}")
    here = os.cpu_count() or 1
    if cores > here:
        found.append(f"this machine has {here} of these {cores} cores: batches grow until the load falls")
    return found

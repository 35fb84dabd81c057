"""Reads from the tables what each committed batch did.

Reads with delta-rs in this process while the stream runs; this needs neither a Spark job nor a lock. Of a large table
only the files that one epoch added are read. `observe.metrics.stream_metrics` computes the metrics.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable

from schemas.states import REFUSED_PREFIX
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import EPOCHS, last_epoch
from warehouse.delta.read import query_rows
from warehouse.system_tables.gaps import Gap, gap_of, open_gaps


@dataclass(frozen=True)
class OriginRows:
    """How many new rows of one instance a batch read from one source, and the time of the newest one."""

    source: str
    replicaset_id: int
    global_id: int | None
    """The instance's global id; None for rows that name no instance, such as those of a snapshot."""
    row_count: int
    newest_time: datetime | None
    """Time of the newest row; None for rows of snapshots, which have no time."""


@dataclass(frozen=True)
class CommittedBatch:
    """What one committed batch did."""

    epoch: int
    query_id: str
    batch_id: int
    """Together they identify the batch of a stream, or of a request to the writer."""
    committed_at: datetime
    read_row_count: int
    """Number of rows that the batch read, including copies of rows that were read before from another source."""
    origins: tuple[OriginRows, ...] = ()
    """The new rows of each source and instance."""
    conflicts_by_space: Mapping[str, int] = field(default_factory=dict)
    quarantined_by_space: Mapping[str, int] = field(default_factory=dict)
    """By space: the number of new rows of `_conflicts`, and of `_quarantine`."""
    misfits_by_space: Mapping[str, int] = field(default_factory=dict)
    """By space: the number of new rows of `_quarantine` that are in the space's table nevertheless, with NULL in a
    column that cannot hold the value."""
    changed_gaps: tuple[Gap, ...] = ()
    """Gaps that the batch found, or whose state it changed."""
    positions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By replicaset uuid: its entry of the stream's offset after the batch; empty if the batch is not the stream's."""
    executor: str | None = None
    """`driver` or `tasks`: where the batch was processed; None for work between two batches."""


@dataclass(frozen=True)
class PendingCounts:
    """The current numbers of pending rows and of refused spaces."""

    pending_rows_by_replicaset: Mapping[int, int] = field(default_factory=dict)
    """By replicaset id: the number of rows in `_pending`."""
    refused_spaces_by_replicaset: Mapping[int, int] = field(default_factory=dict)
    """By replicaset id: the number of refused spaces, whose rows are stored in `_changelog` only."""


class CommittedBatchReader:
    """Reads each batch of a warehouse once, after it has been committed."""

    def __init__(self, location: WarehouseLocation) -> None:
        self._location = location
        self._opened_by_name: dict[str, DeltaTable] = {}
        self._last_epoch = last_epoch(location)

    def open_gaps(self) -> tuple[Gap, ...]:
        """Return the gaps that are open now."""
        return open_gaps(self._query("_gaps", "SELECT * FROM opened"))

    def pending_counts(self) -> PendingCounts:
        """Return the current numbers of pending rows and of refused spaces."""
        return PendingCounts(
            {int(row["replicaset_id"]): int(row["n"]) for row in self._query("_pending", _PENDING_COUNTS)},
            {int(row["replicaset_id"]): int(row["n"]) for row in self._query("_schema", _REFUSED_COUNTS)},
        )

    def new_batches(self) -> Iterator[CommittedBatch]:
        """Yield the batches that were committed since the last call; the first call: since the reader was created."""
        epochs = self._query(EPOCHS, f"SELECT * FROM opened WHERE epoch > {self._last_epoch}")
        for row in sorted(epochs, key=lambda row: int(row["epoch"])):
            self._last_epoch = int(row["epoch"])
            yield self._committed_batch(row)

    def _committed_batch(self, row: Mapping[str, Any]) -> CommittedBatch:
        epoch = int(row["epoch"])
        origins = (
            OriginRows(r["source"], r["replicaset_id"], r["global_id"], r["rows"], _to_utc(r["newest"]))
            for r in self._query("_changelog", _ORIGIN_COUNTS.format(epoch=epoch))
        )
        return CommittedBatch(
            epoch,
            str(row["query_id"]),
            int(row["batch_id"]),
            _to_utc(row["committed_at"]) or datetime.now(UTC),
            int(row["rows"]),
            tuple(sorted(origins, key=lambda origin: (origin.source, origin.global_id or 0))),
            self._row_counts_by_space("_conflicts", epoch),
            self._row_counts_by_space("_quarantine", epoch),
            self._row_counts_by_space("_quarantine", epoch, "misfits IS NOT NULL"),
            tuple(map(gap_of, self._query("_gaps", f"SELECT * FROM opened WHERE epoch = {epoch}"))),
            (json.loads(row["end_offset"] or "null") or {}).get("replicasets", {}),
            row["executor"],
        )

    def _row_counts_by_space(self, table: str, epoch: int, where: str = "true") -> dict[str, int]:
        sql = (
            f"SELECT space, count(*) AS rows FROM opened WHERE epoch = {epoch} AND {where} "
            "GROUP BY space ORDER BY space"
        )
        return {str(row["space"]): row["rows"] for row in self._query(table, sql)}

    def _query(self, name: str, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query on the newest version of a table; no rows if the table does not exist."""
        table = self._opened_by_name.get(name)
        if table is None:
            table = self._location.open(name)
            if table is None:
                return []
            self._opened_by_name[name] = table
        else:
            table.update_incremental()
        return query_rows(table, sql)


_ORIGIN_COUNTS = """
SELECT source, replicaset_id, global_id, count(*) AS rows,
       max(CASE WHEN file LIKE '%.xlog' THEN "timestamp" END) AS newest
FROM opened WHERE epoch = {epoch} AND replicaset_id > 0 GROUP BY source, replicaset_id, global_id"""

_PENDING_COUNTS = "SELECT replicaset_id, count(*) AS n FROM opened GROUP BY replicaset_id"

_REFUSED_COUNTS = f"""
SELECT replicaset_id, count(*) AS n
FROM (
    SELECT replicaset_id, state,
           row_number() OVER (PARTITION BY replicaset_id, space_id ORDER BY epoch DESC) AS row_index
    FROM opened)
WHERE row_index = 1 AND state LIKE '{REFUSED_PREFIX}%' GROUP BY replicaset_id"""


def _to_utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)

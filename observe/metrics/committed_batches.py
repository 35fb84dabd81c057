"""Reads what each committed batch did from the tables that it wrote, so only commits are reported.

By delta-rs in this process, while the stream runs: no Spark job, no lock, and only one epoch's files of a large table.
`observe.metrics.stream_metrics` makes metrics of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable

from schemas.states import REFUSED_PREFIX
from warehouse.gaps import Gap, gap_of, open_gaps
from warehouse.newest_epoch import EPOCHS, last_epoch
from warehouse.place import Place
from warehouse.read import answer


@dataclass(frozen=True)
class Origin:
    """Rows of one instance that a batch read from one source.

    Parameters
    ----------
    source : str
    replicaset_id : int
    global_id : int or None
        None for rows without an origin, such as a snapshot's.
    rows : int
    newest : datetime or None
        Time of the newest row; rows of snapshots have none.

    """

    source: str
    replicaset_id: int
    global_id: int | None
    rows: int
    newest: datetime | None


@dataclass(frozen=True)
class Batch:
    """One epoch.

    Parameters
    ----------
    epoch : int
    query_id, batch_id : str, int
        The batch of a stream or of a request.
    committed_at : datetime
    rows : int
        Rows that were read, including other members' copies.
    origins : tuple of Origin
    conflicts, quarantined : mapping of str to int
        By space.
    misfits : mapping of str to int
        The part of `quarantined` that is in a table, with a column that is NULL.
    gaps : tuple of Gap

    """

    epoch: int
    query_id: str
    batch_id: int
    committed_at: datetime
    rows: int
    origins: tuple[Origin, ...] = ()
    conflicts: Mapping[str, int] = field(default_factory=dict)
    quarantined: Mapping[str, int] = field(default_factory=dict)
    misfits: Mapping[str, int] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True)
class HeldRows:
    """Rows and spaces that are not in their table now.

    Parameters
    ----------
    rows : mapping of int to int
        Number of rows in `_pending`, by replicaset id.
    spaces : mapping of int to int
        Number of refused spaces, by replicaset id.

    """

    rows: Mapping[int, int] = field(default_factory=dict)
    spaces: Mapping[int, int] = field(default_factory=dict)


class CommittedBatchReader:
    """Reads the batches that were committed since the last call.

    Parameters
    ----------
    place : Place
        The warehouse's.

    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._tables: dict[str, DeltaTable] = {}
        self._last = last_epoch(place)

    def open_gaps(self) -> tuple[Gap, ...]:
        """Return the currently open gaps."""
        return open_gaps(self._rows("_gaps", "SELECT * FROM opened"))

    def held(self) -> HeldRows:
        """Return the currently waiting rows and refused spaces."""
        return HeldRows(
            {int(row["replicaset_id"]): int(row["n"]) for row in self._rows("_pending", _WAITING)},
            {int(row["replicaset_id"]): int(row["n"]) for row in self._rows("_schema", _REFUSED)},
        )

    def since(self) -> Iterator[Batch]:
        """Yield the batches that were committed since the last call, or since this object was made."""
        found = self._rows(EPOCHS, f"SELECT * FROM opened WHERE epoch > {self._last}")
        for row in sorted(found, key=lambda row: int(row["epoch"])):
            self._last = int(row["epoch"])
            yield self._batch(row)

    def _batch(self, row: Mapping[str, Any]) -> Batch:
        epoch = int(row["epoch"])
        origins = (
            Origin(r["source"], r["replicaset_id"], r["global_id"], r["rows"], _utc(r["newest"]))
            for r in self._rows("_changelog", _ORIGINS.format(epoch=epoch))
        )
        return Batch(
            epoch,
            str(row["query_id"]),
            int(row["batch_id"]),
            _utc(row["committed_at"]) or datetime.now(UTC),
            int(row["rows"]),
            tuple(sorted(origins, key=lambda one: (one.source, one.global_id or 0))),
            self._counted("_conflicts", epoch),
            self._counted("_quarantine", epoch),
            self._counted("_quarantine", epoch, "misfits IS NOT NULL"),
            tuple(map(gap_of, self._rows("_gaps", f"SELECT * FROM opened WHERE epoch = {epoch}"))),
        )

    def _counted(self, table: str, epoch: int, where: str = "true") -> dict[str, int]:
        sql = (
            f"SELECT space, count(*) AS rows FROM opened WHERE epoch = {epoch} AND {where} "
            "GROUP BY space ORDER BY space"
        )
        return {str(row["space"]): row["rows"] for row in self._rows(table, sql)}

    def _rows(self, name: str, sql: str) -> list[dict[str, Any]]:
        table = self._tables.get(name)
        if table is None:
            table = self._place.open(name)
            if table is None:
                return []
            self._tables[name] = table
        else:
            table.update_incremental()
        return answer(table, sql)


_ORIGINS = """
SELECT source, replicaset_id, global_id, count(*) AS rows,
       max(CASE WHEN file LIKE '%.xlog' THEN "timestamp" END) AS newest
FROM opened WHERE epoch = {epoch} AND replicaset_id > 0 GROUP BY source, replicaset_id, global_id"""


_WAITING = "SELECT replicaset_id, count(*) AS n FROM opened GROUP BY replicaset_id"

_REFUSED = f"""
SELECT replicaset_id, count(*) AS n
FROM (
    SELECT replicaset_id, state,
           row_number() OVER (PARTITION BY replicaset_id, space_id ORDER BY epoch DESC) AS place
    FROM opened)
WHERE place = 1 AND state LIKE '{REFUSED_PREFIX}%' GROUP BY replicaset_id"""


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)

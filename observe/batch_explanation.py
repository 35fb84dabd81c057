"""Explains one batch from the tables: which rows it read, which wait, how conflicts were decided, what it wrote.

Reads with delta-rs, without Spark and without a lock. To find what a batch wrote, the files of each table are compared
at two Delta versions: that of the batch's epoch and that of the preceding epoch. A table is not compared if maintenance
has removed one of the versions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deltalake.exceptions import DeltaError

from schemas.errors import ConfigurationError
from schemas.names import replicaset_label
from sources.xlog.directory.offset import OffsetEntry, from_text
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.delta.read import query_rows
from warehouse.delta.table_files import TableFile, active_files

Rows = Sequence[Mapping[str, Any]]
"""Rows of a query's result: values by column."""


@dataclass(frozen=True)
class ReadRange:
    """The part of one replicaset's logs that a batch read."""

    replicaset: str
    source: str
    first: tuple[str, int]
    last: tuple[str, int]
    """(File, byte offset) of the start and of the end of the range. The start is ("", 0) for a new replicaset."""
    instant: str | None
    """Label of the marker at which the range ends; None if it does not end at a marker. A marker is a row that a
    coordinator writes to all replicasets of a sharded cluster."""


@dataclass(frozen=True)
class WrittenFiles:
    """The files of a table before and after a batch."""

    table: str
    before: int | None
    version: int
    """Delta versions of the table before and after the batch; `before` is None for a new table."""
    added: int | None
    removed: int | None
    """Number of added files, and of removed files; None if maintenance has removed one of the two versions."""
    rows: int | None
    """Number of rows in the added files, including rows that were copied from removed files; None if `added` is None.
    """
    deleted_rows: int | None = None
    """Number of rows that deletion vectors have deleted in files that stay; None if `added` is None."""


@dataclass(frozen=True)
class BatchExplanation:
    """What one batch did, in order."""

    epoch: Mapping[str, Any]
    """The row of `_epochs`: `epoch`, `query_id`, `batch_id`, `committed_at`, `rows`, `instant`, `executor`."""
    read: Sequence[ReadRange]
    """The parts of logs that the batch read; empty for a batch outside the stream, such as that of a backfill."""
    changes: Rows
    """New rows of `_changelog`, grouped by `source`, `space`, `type`, `state`; each group has `rows` (their number),
    `first_lsn` and `last_lsn`."""
    definitions: Rows
    """Spaces that were defined, changed or refused: `replicaset_id`, `space`, `table_name`, `state`, and `replicaset`:
    the name of the replicaset in the output."""
    waiting: Rows
    """Rows of `_pending`, grouped by `source` and `reason`; each group has their number `before` and `after` the batch.
    """
    gaps: Rows
    """Gaps that were found, or whose state changed."""
    decisions: Rows
    """New rows of `_conflicts`, grouped by `space`, `kind`, `policy`, `sequence`; each group has `rows`, their number.
    """
    set_aside: Rows
    """New rows of `_quarantine`, grouped by `space`, `reason`, `is_in_table`; each group has `rows`, their number."""
    written: Sequence[WrittenFiles]
    has_before: bool = True
    """Whether `_epochs` has the preceding epoch. If maintenance has removed it, `waiting` and `written` are empty."""

    @property
    def copied_rows(self) -> int:
        """Number of rows that were read and not stored, since they had been read from another member before."""
        logged = sum(int(row["rows"]) for row in self.changes if row["source"] != "aggregator")
        new_pending = sum(int(row["after"]) - int(row["before"]) for row in self.waiting)
        return max(int(self.epoch["rows"]) - logged - new_pending, 0)


def explain_batch(location: WarehouseLocation, epoch: int) -> BatchExplanation:
    """Return what the batch of an epoch did."""
    rows = {
        int(row["epoch"]): row for row in _query(location, EPOCHS, _EPOCH_AND_PREVIOUS.format(epoch=epoch))
    }
    if epoch not in rows:
        raise ConfigurationError(
            f"there is no epoch {epoch}",
            warehouse=location.root,
            advice="`aggregator status` shows the newest one",
        )
    row = rows[epoch]
    previous = next((number for number in rows if number != epoch), None)
    has_before = epoch == 0 or previous is not None
    versions = dict(row["versions"]) if has_before else {}
    before = {} if previous is None else dict(rows[previous]["versions"])
    return BatchExplanation(
        epoch={name: row[name] for name in ("epoch", "query_id", "batch_id", "committed_at", "rows")}
        | {"instant": row.get("instant"), "executor": row.get("executor")},
        read=_read_ranges(row["start_offset"], row["end_offset"]),
        changes=_query(location, "_changelog", _CHANGE_COUNTS.format(epoch=epoch)),
        definitions=_labelled_definitions(location, epoch, row["end_offset"]),
        waiting=_pending_counts(location, before.get("_pending"), versions.get("_pending")),
        gaps=_query(location, "_gaps", _GAPS.format(epoch=epoch)),
        decisions=_query(location, "_conflicts", _CONFLICT_COUNTS.format(epoch=epoch)),
        set_aside=_query(location, "_quarantine", _QUARANTINE_COUNTS.format(epoch=epoch)),
        written=[
            _written_files(location, table, before.get(table), version)
            for table, version in sorted(versions.items())
            if before.get(table) != version
        ],
        has_before=has_before,
    )


def explanation_as_json(explanation: BatchExplanation) -> dict[str, Any]:
    """Return an explanation as a JSON object; its names are those of `aggregator explain-batch --json`."""
    return {**asdict(explanation), "copies": explanation.copied_rows}


def _query(
    location: WarehouseLocation, table: str, query: str, version: int | None = None
) -> list[dict[str, Any]]:
    """Return the result of a query on one table, by default at its newest version; no rows if it does not exist."""
    opened = location.open(table, version)
    return [] if opened is None else query_rows(opened, query)


def _labelled_definitions(
    location: WarehouseLocation, epoch: int, offset: str | None
) -> list[dict[str, Any]]:
    """Return the rows of `_schema` of an epoch, with the names of their replicasets in the output."""
    rows = _query(location, "_schema", _DEFINED_SPACES.format(epoch=epoch))
    leaders = {} if offset is None else {uuid: entry.leader for uuid, entry in from_text(offset).items()}
    members = (
        _query(location, "_cluster", "SELECT replicaset_id, replicaset_uuid FROM opened") if rows else []
    )
    uuids = {row["replicaset_id"]: row["replicaset_uuid"] for row in members}
    labels = {number: replicaset_label(uuid, leaders.get(uuid)) for number, uuid in uuids.items()}
    return [
        {**row, "replicaset": labels.get(row["replicaset_id"], str(row["replicaset_id"]))} for row in rows
    ]


def _read_ranges(start: str | None, end: str | None) -> list[ReadRange]:
    """Return what was read of each replicaset's logs between two offsets of the stream, which are JSON.

    `start` is None for the first batch, and `end` is None for a batch outside the stream: it has no ranges.
    """
    if end is None:
        return []
    first = {} if start is None else from_text(start)
    return [
        ReadRange(
            uuid,
            entry.leader,
            _file_and_position(first.get(uuid)),
            _file_and_position(entry),
            _instant_label(entry),
        )
        for uuid, entry in from_text(end).items()
        if first.get(uuid) != entry
    ]


def _file_and_position(entry: OffsetEntry | None) -> tuple[str, int]:
    return ("", 0) if entry is None else (entry.file, entry.position)


def _instant_label(entry: OffsetEntry) -> str | None:
    return entry.instant.label if entry.instant is not None and entry.instant.is_stream_at_point else None


def _pending_counts(
    location: WarehouseLocation, before: int | None, after: int | None
) -> list[dict[str, Any]]:
    """Return the numbers of rows at two Delta versions of `_pending`, for each source and reason."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for moment, version in (("before", before), ("after", after)):
        try:
            rows = [] if version is None else _query(location, "_pending", _PENDING_COUNTS, version)
        except DeltaError:  # maintenance has removed the version
            return []
        for row in rows:
            count = counts.setdefault((row["source"], row["reason"]), {"before": 0, "after": 0})
            count[moment] = int(row["rows"])
    return [
        {"source": source, "reason": reason, **count} for (source, reason), count in sorted(counts.items())
    ]


def _written_files(location: WarehouseLocation, table: str, before: int | None, version: int) -> WrittenFiles:
    try:
        old = {} if before is None else _files_by_path(location, table, before)
        new = _files_by_path(location, table, version)
    except DeltaError:
        return WrittenFiles(table, before, version, None, None, None)
    added, removed = new.keys() - old.keys(), old.keys() - new.keys()
    rows = sum(new[path].rows or 0 for path in added)
    deleted = sum((old[path].rows or 0) - (new[path].rows or 0) for path in new.keys() & old.keys())
    return WrittenFiles(table, before, version, len(added), len(removed), rows, deleted)


def _files_by_path(location: WarehouseLocation, table: str, version: int) -> dict[str, TableFile]:
    opened = location.open(table, version)
    return {} if opened is None else {file.path: file for file in active_files(opened)}


# The number of a batch that was rolled back is in no epoch, so the previous epoch may have any lower number.
_EPOCH_AND_PREVIOUS = "SELECT * FROM opened WHERE epoch <= {epoch} ORDER BY epoch DESC LIMIT 2"

_CHANGE_COUNTS = """
SELECT source, space, type, state, count(*) AS rows, min(lsn) AS first_lsn, max(lsn) AS last_lsn
FROM opened WHERE epoch = {epoch} GROUP BY source, space, type, state ORDER BY source, space, type, state"""

_DEFINED_SPACES = """
SELECT replicaset_id, name AS space, table_name, state FROM opened WHERE epoch = {epoch}
ORDER BY replicaset_id, name, state"""

_PENDING_COUNTS = "SELECT source, reason, count(*) AS rows FROM opened GROUP BY source, reason"

_GAPS = """
SELECT source, kind, state, local_id, first_lsn, last_lsn, file FROM opened WHERE epoch = {epoch}
ORDER BY source, local_id, first_lsn"""

_CONFLICT_COUNTS = """
SELECT space, kind, policy, sequence, count(*) AS rows FROM opened WHERE epoch = {epoch}
GROUP BY space, kind, policy, sequence ORDER BY space, kind, policy, sequence"""

_QUARANTINE_COUNTS = """
SELECT space, reason, misfits IS NOT NULL AS is_in_table, count(*) AS rows FROM opened WHERE epoch = {epoch}
GROUP BY space, reason, misfits IS NOT NULL ORDER BY space, reason"""

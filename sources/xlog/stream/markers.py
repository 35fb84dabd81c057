"""Finds the rows of a log that mark an instant of a sharded cluster, and their positions.

A coordinator writes a marker with the same label to every replicaset, at a moment when no change that concerns several
replicasets is in progress. There are two kinds of markers:

- Tarantool's recovery points (3.8 and later). `box.backup.recovery_point.create{label = L}` logs an UPDATE of
  `_recovery_point` (396) with the key `{0, 0, 0}` and the operation `{'=', 'opts', {label = L}}`. This UPDATE changes
  nothing, but its position in the log is the point, so it is the marker. Later the server inserts a row that describes
  the point; other rows may come between the two (seen with 3.9).
- Rows of a user's space: an INSERT or REPLACE whose tuple has the label in a field.

A marker without a label, or with a malformed row, is skipped. `sources.xlog.stream.instants` uses the markers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.errors import TupleError
from schemas.iproto import SystemSpace
from schemas.space import Space, space_of
from schemas.system_tuples import field_at, fields_of, integer_of
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import Listing
from sources.xlog.format.selection import Selection
from sources.xlog.options import MarkerSpace
from sources.xlog.reader import reader
from sources.xlog.stream.origins import files_before
from sources.xlog.stream.segment import Segment

RECOVERY_POINT = "_recovery_point"
_RECOVERY_POINT_KEY = [0, 0, 0]
_OPTS, _OPTS_INDEX = "opts", 3
_MAX_LABEL_BYTES = 255


@dataclass(frozen=True)
class Marker:
    """A row that marks an instant."""

    label: str
    time: int
    """Timestamp of the row, microseconds since 1970."""
    replica_id: int
    lsn: int
    """Replica id and lsn of the row, which identify it."""
    segment: Segment
    block_position: int
    """Start of the row's block, in bytes."""
    row_index: int


@dataclass
class MarkerFinder:
    """Finds the markers of one replicaset, segment by segment."""

    spaces: Sequence[MarkerSpace]

    def __post_init__(self) -> None:
        self._label_field_by_space = {
            one.space: one.label_field for one in self.spaces if one.space != RECOVERY_POINT
        }
        self._has_points = any(one.space == RECOVERY_POINT for one in self.spaces)
        self._label_index_by_space_id: dict[int, int] = {}
        self._searched_up_to: tuple[str, str, int] | None = None

    def find(self, directory: Directory, listing: Listing, segment: Segment) -> Iterator[Marker]:
        """Yield the markers of a segment of a log, in their order."""
        if self._label_field_by_space and self._searched_up_to != (
            segment.source,
            segment.file,
            segment.begin,
        ):
            self._label_index_by_space_id = self._label_indexes_at(directory, listing, segment)
        self._searched_up_to = None
        last = (-1, -1)
        wanted: set[int] | None = None
        # A marker space that the segment defines is searched from its definition on.
        while wanted is None or not self._searched_space_ids() <= wanted:
            wanted = self._searched_space_ids()
            for row in _rows_of_spaces(directory, segment, wanted):
                if (row["position"], row["row"]) <= last:
                    continue
                last = (row["position"], row["row"])
                if row["space_id"] == SystemSpace.SPACE:
                    self._apply_definition(row)
                    if not self._searched_space_ids() <= wanted:
                        break
                    continue
                label = self._label_of_row(row)
                if label is not None:
                    yield _marker_of_row(label, row, segment)
        self._searched_up_to = (segment.source, segment.file, segment.end)

    def _searched_space_ids(self) -> set[int]:
        points = {int(SystemSpace.RECOVERY_POINT)} if self._has_points else set()
        return points | (
            {int(SystemSpace.SPACE), *self._label_index_by_space_id} if self._label_field_by_space else set()
        )

    def _label_indexes_at(self, directory: Directory, listing: Listing, segment: Segment) -> dict[int, int]:
        """Return {id of a marker space: index of the label's field}, as `_space` defines them before a segment."""
        self._label_index_by_space_id = {}
        file = listing.log_named(segment.file)
        parts = [
            (one, directory.ends.end_of(one, closed=True).position)
            for one in files_before(directory, listing, file)
        ]
        wanted = Selection(space_ids=frozenset({int(SystemSpace.SPACE)}))
        for one, end in [*parts, (file, segment.begin)]:
            if end <= one.header_bytes:
                continue
            for batch in directory.read_rows(one.name, one.header_bytes, end, wanted):
                for row in batch.to_pylist():
                    self._apply_definition(row)
        return self._label_index_by_space_id

    def _apply_definition(self, row: Mapping[str, Any]) -> None:
        try:
            if row["type"] == "DELETE":
                key = fields_of(row["key"], "a key of _space")
                self._label_index_by_space_id.pop(integer_of(field_at(key, 0, "the id"), "the id"), None)
            elif row["type"] in ("INSERT", "REPLACE"):
                space = space_of(fields_of(row["tuple"], "a row of _space"), None)
                index = (
                    label_field_index(space, self._label_field_by_space[space.name])
                    if space.name in self._label_field_by_space
                    else None
                )
                if index is None:
                    self._label_index_by_space_id.pop(space.id, None)
                else:
                    self._label_index_by_space_id[space.id] = index
        except TupleError:
            return

    def _label_of_row(self, row: Mapping[str, Any]) -> str | None:
        try:
            if row["space_id"] == SystemSpace.RECOVERY_POINT:
                return point_label(row)
            if row["type"] in ("INSERT", "REPLACE") and row["space_id"] in self._label_index_by_space_id:
                fields = fields_of(row["tuple"], "a marker")
                return _valid_label(
                    field_at(fields, self._label_index_by_space_id[row["space_id"]], "the label")
                )
        except TupleError:
            return None
        return None


def _rows_of_spaces(
    directory: Directory, segment: Segment, spaces: Iterable[int]
) -> Iterator[dict[str, Any]]:
    wanted = Selection(space_ids=frozenset(spaces), from_vclock=segment.snapshot_vclock)
    for batch in directory.read_rows(segment.file, segment.begin, segment.end, wanted, closed=True):
        yield from (row for row in batch.to_pylist() if row["lsn"] is not None)


def label_field_index(space: Space, label: str | int | None) -> int | None:
    """Return the index, from 0, of the field that `label` names or numbers from 1; None if no field has the name."""
    if isinstance(label, int):
        return label - 1
    names = [field.name for field in space.fields]
    return names.index(label) if label in names else None


def point_label(row: Mapping[str, Any]) -> str | None:
    """Return the label of a row of `_recovery_point`; None if the row is not a marker, or has no valid label.

    Raises:
        TupleError: If the row is malformed.
    """
    if row["type"] != "UPDATE" or fields_of(row["key"], "a key of _recovery_point") != _RECOVERY_POINT_KEY:
        return None
    base = row["index_base"] or 0
    for operation in fields_of(row["operations"], "operations on _recovery_point"):
        if not isinstance(operation, list) or len(operation) != 3:
            continue
        name, index, value = operation
        if name == "=" and index in (_OPTS, _OPTS_INDEX + base) and isinstance(value, dict):
            return _valid_label(value.get("label"))
    return None


def _valid_label(label: object) -> str | None:
    if isinstance(label, int) and not isinstance(label, bool):
        return str(label)
    if not isinstance(label, str) or not label or len(label.encode("utf-8", "replace")) > _MAX_LABEL_BYTES:
        return None
    return label if label.isprintable() else None


def _marker_of_row(label: str, row: Mapping[str, Any], segment: Segment) -> Marker:
    moment = row["timestamp"]
    return Marker(
        label,
        0 if moment is None else round(moment.timestamp() * 1_000_000),
        row["replica_id"] or 0,
        row["lsn"],
        segment,
        row["position"],
        row["row"],
    )


def end_of_transaction(directory: Directory, marker: Marker) -> tuple[int, int]:
    """Return (number of rows, end of the block in bytes) for the block of a marker.

    The rows are those up to the end of the marker's transaction; their number is 0 if the block ends there too.
    """
    file, begin = marker.segment.file, marker.block_position
    end = reader.first_block_start(
        *directory.locate(file), begin + 1, begin, marker.segment.end, directory.max_block_bytes
    )
    parts = directory.read_headers(file, begin, end, closed=True)
    rows, commits = (
        np.concatenate(columns) for columns in zip(*((p.row, p.is_commit) for p in parts), strict=True)
    )
    ends = rows[commits & (rows >= marker.row_index)]
    last = int(ends[0] if ends.size else rows[-1])
    return (0 if last == rows[-1] else last + 1), end

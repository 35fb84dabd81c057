"""Computes all versions of each key, for Spark's `mapInArrow` over rows that are sorted by key and position in the log.

The result has each row that has an effect, with the version after it. Python runs per row here, so only queries on one
space use this module; the aggregator's own batches do not.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from schemas.row_types import TYPE_FOR_ONE_KEY
from schemas.states import VersionState
from udfs.operations.tuple_format import TupleFormat
from udfs.versions.key_state import Fold, RowChange

KEY_COLUMNS = ("replicaset_id", "_key")
"""Columns that identify a key of one replicaset."""

POSITION_COLUMNS = ("segment", "position", "row")
"""Columns with the position of a row in its replicaset's log."""

ROW_COLUMNS = ("type", "tuple", "operations", "index_base", "global_id", "lsn", "timestamp", "layout")
"""Columns of a row of the log, in the order of `udfs.versions.key_state.RowChange`."""

INPUT_COLUMNS = (*KEY_COLUMNS, *POSITION_COLUMNS, "epoch", *ROW_COLUMNS)

VERSIONS_ARROW = pa.schema(
    [
        ("replicaset_id", pa.int32()),
        ("_key", pa.binary()),
        ("segment", pa.int64()),
        ("position", pa.int64()),
        ("row", pa.int32()),
        ("epoch", pa.int64()),
        ("type", pa.string()),
        ("state", pa.string()),
        ("tuple", pa.binary()),
        ("global_id", pa.int64()),
        ("lsn", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("layout", pa.int32()),
        ("reason", pa.string()),
    ]
)
"""Columns of the result.

`state`: present, deleted, unfit (the row could not be applied, so the tuple is unknown; `reason` says why)."""

_BATCH_ROWS = 10_000


Position = tuple[int, int, int]
"""The position of a row in its replicaset's log: segment, byte offset of the block, row in the block."""


@dataclass(frozen=True)
class EndOfAllVersions:
    """A row of the log that ends all versions of a space in one replicaset: a TRUNCATE, or a drop."""

    position: Position
    epoch: int
    lsn: int | None
    timestamp: int | None
    """In microseconds since 1970."""


def key_versions(
    batches: Iterable[pa.RecordBatch],
    formats: Sequence[TupleFormat],
    ends: Mapping[int, Sequence[EndOfAllVersions]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the versions of each key in order.

    Args:
        batches: `INPUT_COLUMNS`; rows sorted by `KEY_COLUMNS` (never null), then by `POSITION_COLUMNS`. A key's rows
            may span several batches.
    """
    collector = _VersionCollector(Fold(formats), ends or {})
    for batch in batches:
        for row in _rows_of_batch(batch):
            collector.add(row)
            if len(collector.found) >= _BATCH_ROWS:
                yield collector.take_versions()
    collector.finish_key()
    yield collector.take_versions()


class _VersionCollector:
    """Collects the versions of one key after another in `found`, as rows of `VERSIONS_ARROW`."""

    def __init__(self, state: Fold, ends: Mapping[int, Sequence[EndOfAllVersions]]) -> None:
        self.found: list[tuple[Any, ...]] = []
        self._state, self._ends = state, ends
        self._positions = {
            replicaset_id: [one.position for one in own] for replicaset_id, own in ends.items()
        }
        self._key: tuple[int, bytes] | None = None
        self._position: Position = (0, 0, 0)

    def add(self, values: tuple[Any, ...]) -> None:
        """Apply a row (`INPUT_COLUMNS`), after the end of all versions before it."""
        key, position, epoch = values[:2], values[2:5], values[5]
        if key != self._key:
            self.finish_key()
            self._state.start(None)
            self._key = key
        else:
            self._apply_end(position)
        self._apply(position, epoch, RowChange(*values[6:]))
        self._position = position

    def finish_key(self) -> None:
        """Apply the end of all versions that follows the last row of the key."""
        if self._key is not None:
            self._apply_end(None)

    def _apply_end(self, until: Position | None) -> None:
        """Apply the first end of all versions after the key's last row, and before `until` if it is given."""
        replicaset_id = self._key[0] if self._key is not None else 0
        positions = self._positions.get(replicaset_id, [])
        number = bisect_right(positions, self._position)
        if number < len(positions) and (until is None or positions[number] < until):
            end = self._ends[replicaset_id][number]
            # No instance is named, as the row is of the whole space.
            row = RowChange("DELETE", None, None, None, None, end.lsn, end.timestamp)  # type: ignore[arg-type]
            self._apply(end.position, end.epoch, row)

    def _apply(self, position: Position, epoch: int, row: RowChange) -> None:
        """Apply a row; if it has an effect or fails, add the version after it."""
        state = self._state
        state.is_changed = False
        faults = len(state.faults)
        state.apply(row._replace(kind=TYPE_FOR_ONE_KEY[row.kind]))
        if len(state.faults) > faults:
            made: tuple[Any, ...] = (
                VersionState.UNFIT,
                None,
                row.global_id,
                row.lsn,
                row.timestamp,
                row.format_index,
            )
        elif state.is_changed:
            name = VersionState.PRESENT if state.is_present else VersionState.DELETED
            version = state.version
            made = (
                name,
                version.tuple,
                version.global_id,
                version.lsn,
                version.timestamp,
                version.format_index,
            )
        else:
            return
        reason = state.faults[-1].reason if len(state.faults) > faults else None
        self.found.append((*(self._key or ()), *position, epoch, row.kind, *made, reason))

    def take_versions(self) -> pa.RecordBatch:
        """Return the versions that were collected since the last call."""
        columns = list(zip(*self.found, strict=True)) or [()] * len(VERSIONS_ARROW)
        self.found = []
        arrays = [pa.array(column, one.type) for column, one in zip(columns, VERSIONS_ARROW, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=VERSIONS_ARROW)


def _rows_of_batch(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = []
    for name in INPUT_COLUMNS:
        column = batch.column(name)
        columns.append(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column)
    return zip(*(column.to_pylist() for column in columns), strict=True)

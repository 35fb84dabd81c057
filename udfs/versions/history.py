"""Computes all versions of each key, for Spark's `mapInArrow` over rows sorted by key and order.

Returns each row that has an effect, with the version after it. Runs Python per row, so it serves queries on one space
and never a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from schemas.states import VersionState
from udfs.operations.tuple_format import TupleFormat
from udfs.versions.fold_state import Fold

ROW_COLUMNS = ("type", "tuple", "operations", "index_base", "global_id", "lsn", "timestamp", "layout")
"""Columns of the input, besides those of the key and the carried ones."""

_TIME = pa.timestamp("us", tz="UTC")

RESULT_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("state", pa.string()),
    ("tuple", pa.binary()),
    ("global_id", pa.int64()),
    ("lsn", pa.int64()),
    ("timestamp", _TIME),
    ("layout", pa.int32()),
    ("reason", pa.string()),
)
"""Columns of the result, after those of the key and the carried ones.

`state`: present, deleted, unfit (the row could not be applied, so the tuple is unknown; `reason` says why).
"""

RESULT_SPARK = (
    "state string, tuple binary, global_id bigint, lsn bigint, timestamp timestamp, layout int, reason string"
)
"""The same columns for `mapInArrow`'s schema."""


def history_arrow(
    batches: Iterable[pa.RecordBatch],
    by: Sequence[str],
    carried: Sequence[str],
    formats: Sequence[TupleFormat],
) -> Iterator[pa.RecordBatch]:
    """Yield the versions of each key in order.

    Parameters
    ----------
    batches : iterable of RecordBatch
        Columns `by` (never null), `carried` and `ROW_COLUMNS`; rows sorted by `by`, then in the order of the log.
        A key's rows may span several batches.
    by : sequence of str
        The columns that name a key, replicaset included.
    carried : sequence of str
        Columns of a row that are copied to its version.
    formats : sequence of TupleFormat
        Indexed by the column `layout`.

    Yields
    ------
    RecordBatch
        Columns `by`, `carried` and `RESULT_FIELDS`, one row per row of the log that had an effect or failed.

    """
    state, held = Fold(formats), None
    kept = [*by, *carried]
    for batch in batches:
        keys = list(zip(*(batch.column(name).to_pylist() for name in by), strict=True))
        places, rows = [], []
        for place, (key, row) in enumerate(zip(keys, _rows(batch), strict=True)):
            if key != held:
                state.start(None)
                held = key
            made = _apply(state, row)
            if made is not None:
                places.append(place)
                rows.append(made)
        if rows:
            yield _result(batch.select(kept).take(pa.array(places)), rows)


def _apply(state: Fold, row: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Apply a row; return the version after it, None if it changed nothing."""
    state.is_changed = False
    faults = len(state.faults)
    state.apply(row)
    _, _, _, _, global_id, lsn, timestamp, layout = row
    if len(state.faults) > faults:
        return VersionState.UNFIT, None, global_id, lsn, timestamp, layout, state.faults[-1].reason
    if not state.is_changed:
        return None
    version = state.version
    word = VersionState.PRESENT if state.is_present else VersionState.DELETED
    return word, version.tuple, version.global_id, version.lsn, version.timestamp, version.layout, None


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = []
    for name in ROW_COLUMNS:
        column = batch.column(name)
        columns.append(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column)
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _result(keys: pa.RecordBatch, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    values = zip(*rows, strict=True)
    columns = [pa.array(column, kind) for column, (_, kind) in zip(values, RESULT_FIELDS, strict=True)]
    names = [*keys.schema.names, *(name for name, _ in RESULT_FIELDS)]
    return pa.RecordBatch.from_arrays([*keys.columns, *columns], names=names)

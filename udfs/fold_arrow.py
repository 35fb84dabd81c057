"""The fold of many keys over Arrow batches, for Spark's `mapInArrow` over rows sorted by key and order.

Rows come in batches whose cuts mean nothing: a key's rows may go on in the next batch. Of each key come
first, if there is one, its version before (type VERSION, or UNFIT where its tuple was already unknown), then
its rows in the order of the log. One row a key goes out.

Only keys that have an UPDATE or UPSERT need to come here, so Python per row is what it costs (about 3 µs).

Not here: sorting and grouping (Spark), what to do with faults (`_quarantine`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from udfs.fold_state import Fold
from udfs.tuple_format import TupleFormat
from udfs.version import Version

VERSION, UNFIT = "VERSION", "UNFIT"
"""Types of rows that hold a key's version before."""

_BEFORE = (VERSION, UNFIT)

ROW_COLUMNS = (
    "type",
    "tuple",
    "operations",
    "index_base",
    "global_id",
    "lsn",
    "timestamp",
    "layout",
    "created",
)
"""Columns of the input beside the key's; `created` is that of a version, null in rows of the log."""

_TIME = pa.timestamp("us", tz="UTC")
_FAULT = pa.struct(
    [("global_id", pa.int64()), ("lsn", pa.int64()), ("code", pa.int32()), ("reason", pa.string())]
)

RESULT_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("state", pa.string()),
    ("tuple", pa.binary()),
    ("global_id", pa.int64()),
    ("lsn", pa.int64()),
    ("timestamp", _TIME),
    ("created", _TIME),
    ("layout", pa.int32()),
    ("is_changed", pa.bool_()),
    ("faults", pa.list_(_FAULT)),
)
"""Columns of the result behind the key's.

`state`: present, deleted, absent (there never was a tuple), unfit (a row could not be applied, `tuple` is the
last one that is known); `is_changed`: whether a row counted; `faults`: the rows that could not be applied.
"""

RESULT_SPARK = (
    "state string, tuple binary, global_id bigint, lsn bigint, timestamp timestamp, created timestamp, "
    "layout int, is_changed boolean, "
    "faults array<struct<global_id: bigint, lsn: bigint, code: int, reason: string>>"
)
"""The same columns for `mapInArrow`'s schema."""


def fold_arrow(
    batches: Iterable[pa.RecordBatch], by: Sequence[str], formats: Sequence[TupleFormat]
) -> Iterator[pa.RecordBatch]:
    """Yield each key's version after its rows.

    Parameters
    ----------
    batches : iterable of RecordBatch
        Columns `by` (never null) and `ROW_COLUMNS`; rows sorted by `by`, then version before, then order of
        the log.
    by : sequence of str
        The columns that name a key, replicaset included.
    formats : sequence of TupleFormat
        By the column `layout`.

    Yields
    ------
    RecordBatch
        Columns `by` and `RESULT_FIELDS`, one row a key.

    """
    state, held = Fold(formats), None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        keys = batch.select(list(by))
        starts = _starts(keys, held)
        done = _fold_rows(batch, starts, state, is_open=held is not None)
        ended = keys.filter(pa.array(starts))
        whole = (
            ended if held is None else pa.Table.from_batches([held, ended]).combine_chunks().to_batches()[0]
        )
        held = whole.slice(whole.num_rows - 1)
        if done:
            yield _result(whole.slice(0, whole.num_rows - 1), done)
    if held is not None:
        yield _result(held, [_row(state)])


def _starts(keys: pa.RecordBatch, held: pa.RecordBatch | None) -> list[bool]:
    """Return of each row whether another key begins there."""
    first = held is None or held.to_pylist() != keys.slice(0, 1).to_pylist()
    if keys.num_rows == 1:
        return [first]
    changes = [pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)) for column in keys.columns]
    differs = changes[0]
    for change in changes[1:]:
        differs = pc.or_(differs, change)
    return [first, *differs.to_pylist()]


def _fold_rows(
    batch: pa.RecordBatch, starts: list[bool], state: Fold, is_open: bool
) -> list[tuple[Any, ...]]:
    """Pass the rows through the state; return the keys that ended."""
    done = []
    for is_start, created, row in zip(starts, _integers(batch, "created"), _rows(batch), strict=True):
        if is_start:
            if is_open:
                done.append(_row(state))
            is_open = True
            if row[0] in _BEFORE:
                state.start(Version(row[1], row[4], row[5], row[6], created, row[7]), row[0] == UNFIT)
                continue
            state.start(None)
        state.apply(row)
    return done


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    kinds, data, operations = (batch.column(name).to_pylist() for name in ROW_COLUMNS[:3])
    return zip(kinds, data, operations, *(_integers(batch, name) for name in ROW_COLUMNS[3:8]), strict=True)


def _integers(batch: pa.RecordBatch, name: str) -> list[int | None]:
    column = batch.column(name)
    return list((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())


def _row(state: Fold) -> tuple[Any, ...]:
    version = state.version
    name = (
        "unfit"
        if state.is_unfit
        else "present"
        if state.is_present
        else "deleted"
        if version.lsn
        else "absent"
    )
    return (name, *version, state.is_changed, [asdict(fault) for fault in state.faults])


def _result(keys: pa.RecordBatch, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    values = zip(*rows, strict=True)
    columns = [pa.array(column, kind) for column, (_, kind) in zip(values, RESULT_FIELDS, strict=True)]
    names = [*keys.schema.names, *(name for name, _ in RESULT_FIELDS)]
    return pa.RecordBatch.from_arrays([*keys.columns, *columns], names=names)

"""Decodes batches of MessagePack tuples to typed columns, `_extra`, `_inexact`, `_misfits` and `_error`.

A field that does not fit its format, or the type of its column, leaves that column null: `_misfits` names it and
`_error` says why. No value is truncated, and the other columns of the tuple are filled. A tuple that cannot be split
into fields has only `_error`. One kind of loss is allowed, and `_inexact` reports it per row: the column has the
nearest value that its Spark type has (a datetime without its nanoseconds, a number that no double equals, a map with a
repeated key). The exact value stays in the raw tuple. The caller decides what happens to a tuple that does not fit.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf

from schemas.errors import TupleError
from schemas.field_types import ColumnStorage
from schemas.layout import EXTRA_COLUMN, MISFITS_ARROW, TableLayout
from udfs.buffers import BinaryBuffers, flatten, indexes
from udfs.kernels import scalars
from udfs.kernels.memory import OVERWRITE
from udfs.kernels.values import OVERREAD
from udfs.tuples.columns import Columns, prepare
from udfs.tuples.faults import column_fault, texts_of_rows, walk_fault
from udfs.tuples.kernels.walk import BAD_ROWS, COUNTERS, INEXACT_ROWS, UNDECIDED_ROWS, walk
from udfs.tuples.kernels.writers import DECIMAL_TEXT_MAX, decimal_texts
from udfs.tuples.plan import Plan, plan_of

Statuses = NDArray[np.uint8]


def _errors(plan: Plan, which: NDArray[np.int32], errors: NDArray[np.int32], faults: Statuses) -> pa.Array:
    """Return `_error`: the error of the walk, else those of all columns that do not fit."""
    bad = (errors[0] != 0) | faults.any(axis=0)
    rows = np.flatnonzero(bad)
    numbers = np.stack([*errors[:, rows], which[rows]], axis=1).astype(np.int32)
    keys = np.hstack([numbers.view(np.uint8), faults[:, rows].T])

    def text(key: bytes) -> str:
        code, position, kind, index = np.frombuffer(key, np.int32, 4).tolist()
        if code != 0:
            return walk_fault(code, position, kind, index)
        found = enumerate(key[numbers.itemsize * 4 :])
        return "; ".join(column_fault(plan.layout, place, one, index) for place, one in found if one)

    return texts_of_rows(keys, rows, len(bad), text)


def _misfits(plan: Plan, faults: Statuses) -> pa.Array:
    """Return `_misfits`: the names of the columns that do not fit, in order; null if all fit."""
    misfit = faults.T != 0
    counts = misfit.sum(axis=1)
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    names = pa.array([*plan.layout.names, EXTRA_COLUMN], pa.string())
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        names.take(pa.array(np.nonzero(misfit)[1])),
        type=MISFITS_ARROW,
        mask=pa.array(counts == 0),
    )


def _inexact(plan: Plan, statuses: Statuses, good: NDArray[np.bool_]) -> pa.Array:
    """Return the column `_inexact`: for each row, the columns whose value is less exact than the tuple's field."""
    loses = (statuses == scalars.INEXACT) & good
    rows = np.flatnonzero(loses.any(axis=0))
    keys = np.packbits(loses[:, rows], axis=0).T
    names = (*plan.layout.names, EXTRA_COLUMN)

    def text(key: bytes) -> str:
        flags = np.unpackbits(np.frombuffer(key, np.uint8))
        return ",".join(name for name, lost in zip(names, flags, strict=False) if lost)

    return texts_of_rows(keys, rows, len(good), text)


def _round_undecided(columns: Columns, flat: BinaryBuffers, walked: NDArray[np.bool_]) -> None:
    """Write the nearest double of each decimal that kernels leave undecided; Python rounds correctly."""
    statuses = columns.statuses
    undecided = (statuses == scalars.UNDECIDED) & walked
    for column in np.flatnonzero(undecided.any(axis=1)):
        rows, doubles = np.flatnonzero(undecided[column]), columns.doubles(int(column))
        content = np.empty(DECIMAL_TEXT_MAX * len(rows) + OVERWRITE, np.uint8)
        ends = np.zeros(len(rows) + 1, np.int32)
        decimal_texts(flat.data, doubles[rows].view(np.int64), content, ends)
        for row, first, last in zip(rows, ends, ends[1:], strict=False):
            exact = decimal.Decimal(content[first:last].tobytes().decode())
            doubles[row] = float(exact)
            if math.isinf(doubles[row]):
                statuses[column, row] = scalars.OUT_OF_RANGE
            else:
                same = decimal.Decimal(doubles[row]) == exact
                statuses[column, row] = scalars.FITS if same else scalars.INEXACT
        columns.set_null(int(column), rows[statuses[column, rows] == scalars.OUT_OF_RANGE])


def decode(tuples: pa.Array, plan: Plan, which: pa.Array | int = 0) -> pa.StructArray:
    """Decode tuples as `decode_tuples` does, with a ready plan."""
    flat = flatten(tuples, OVERREAD)
    rows, formats = len(tuples), indexes(which, len(tuples))
    scale = plan.layout.options.decimal_scale
    columns = prepare(
        (*plan.storages, ColumnStorage.VARIANT),
        scale if isinstance(scale, int) else 0,
        flat.data,
        flat.offsets,
    )
    errors, counters = np.zeros((3, rows), np.int32), np.zeros(COUNTERS, np.int64)
    row, before, again = 0, -1, 0
    while row < rows:
        row = walk(
            *(flat.data, flat.offsets, flat.nulls, formats, plan.starts, plan.fields),
            *(columns.table, errors, counters, row),
        )
        again = again + 1 if row == before else 0
        if again > len(columns.storages):
            # Each field alone had room, so several fields of the tuple must share a column.
            raise TupleError("a tuple takes more room than its columns have", space=plan.layout.space)
        if row < rows:
            columns.grow(row)
            before = row
    statuses = columns.statuses
    if counters[UNDECIDED_ROWS]:
        _round_undecided(columns, flat, errors[0] == 0)
        counters[:] = rows
    arrays = columns.arrays([field.type for field in plan.arrow_fields[: len(columns.storages)]])
    if counters[INEXACT_ROWS]:
        arrays.append(_inexact(plan, statuses, errors[0] == 0))
    else:
        arrays.append(pa.nulls(rows, pa.string()))
    if counters[BAD_ROWS]:
        faults = np.where((statuses > scalars.INEXACT) & (errors[0] == 0), statuses, np.uint8(0))
        arrays += [_misfits(plan, faults), _errors(plan, formats, errors, faults)]
    else:
        arrays += [pa.nulls(rows, MISFITS_ARROW), pa.nulls(rows, pa.string())]
    return pa.StructArray.from_arrays(arrays, fields=list(plan.arrow_fields))


def decode_tuples(tuples: pa.Array, layout: TableLayout, which: pa.Array | int = 0) -> pa.StructArray:
    """Return the typed columns of tuples.

    Parameters
    ----------
    tuples : pyarrow.BinaryArray
        MessagePack tuples; a null gives nulls, also in `_error`. May be a slice.
    layout : TableLayout
        The columns and the formats.
    which : pyarrow.Int32Array or int
        Index in `layout.formats` of each tuple's format.

    Returns
    -------
    pyarrow.StructArray
        Of `layout.decoded_schema()`; the struct itself is never null.

    """
    return decode(tuples, plan_of(layout), which)


def tuple_columns(layout: TableLayout) -> Callable[[Column, Column], Column]:
    """Return an Arrow UDF `(tuple binary, layout index int) → struct` of `layout.decoded_schema()`.

    One call decodes all columns of a table; a batch may have tuples of several formats.
    """
    plan = plan_of(layout)

    def decode_batch(tuples: pa.Array, which: pa.Array) -> pa.Array:
        return decode(tuples, plan, which)

    decode_batch.__annotations__ = {"tuples": pa.Array, "which": pa.Array, "return": pa.Array}
    make: Any = arrow_udf
    wrapped: Callable[[Column, Column], Column] = make(decode_batch, returnType=layout.decoded_schema())
    return wrapped

"""MessagePack tuples → typed columns, `_extra`, `_inexact` and `_error`, many at a time.

A tuple either fits its format and the types of the table's columns, or it fails as a whole: then all its
columns are null and `_error` says why; nothing is cut to make it fit. One kind of loss is allowed, and said row
by row in `_inexact`: the column holds the nearest value that its Spark type has (a datetime without its
nanoseconds, a number that no double equals, a map with a repeated key). The exact value stays in the raw tuple.

Not here: names of columns (`schemas.names`), what becomes of a tuple that does not fit (its caller says).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf

from schemas.layout import TableLayout
from schemas.types import Carrier
from udfs.buffers import Flat, flatten, indexes
from udfs.columns import BUILDERS, Built, Cells
from udfs.faults import column_fault, spread, walk_fault
from udfs.kernels import scalars
from udfs.kernels.values import NIL, OVERREAD
from udfs.kernels.walk import walk
from udfs.plan import Plan, plan_of
from udfs.variant import build_variants

Statuses = NDArray[np.uint8]


def _build(plan: Plan, flat: Flat, classes: NDArray[np.int8], arguments: NDArray[np.int64]) -> list[Built]:
    scale = plan.layout.options.decimal_scale
    built = []
    for column, kind in enumerate((*plan.carriers, Carrier.VARIANT)):
        cells = Cells(flat.data, classes[column], arguments[column])
        if kind is Carrier.VARIANT:
            built.append(build_variants(cells, is_extra=column == len(plan.carriers)))
        else:
            built.append(BUILDERS[kind](cells, scale if isinstance(scale, int) else 0))
    return built


def _errors(plan: Plan, which: NDArray[np.int32], errors: NDArray[np.int32], statuses: Statuses) -> pa.Array:
    """Return `_error`: of the walk, else of the first column that does not fit."""
    misfit = statuses > scalars.INEXACT
    bad = (errors[0] != 0) | misfit.any(axis=0)
    rows = np.flatnonzero(bad)
    column = misfit[:, rows].argmax(axis=0)
    keys = np.stack([*errors[:, rows], which[rows], column, statuses[column, rows]], axis=1).astype(np.int32)

    def text(key: bytes) -> str:
        code, position, kind, index, place, status = np.frombuffer(key, np.int32).tolist()
        if code != 0:
            return walk_fault(plan.layout, code, position, kind, index)
        return column_fault(plan.layout, place, status)

    return spread(keys.view(np.uint8), rows, len(bad), text)


def _inexact(plan: Plan, statuses: Statuses, good: NDArray[np.bool_]) -> pa.Array:
    """Return `_inexact`: the names of the columns that hold less than the tuple, in their order."""
    loses = (statuses == scalars.INEXACT) & good
    rows = np.flatnonzero(loses.any(axis=0))
    keys = np.packbits(loses[:, rows], axis=0).T
    names = (*plan.layout.names, "_extra")

    def text(key: bytes) -> str:
        flags = np.unpackbits(np.frombuffer(key, np.uint8))
        return ",".join(name for name, lost in zip(names, flags, strict=False) if lost)

    return spread(keys, rows, len(good), text)


def decode(tuples: pa.Array, plan: Plan, which: pa.Array | int = 0) -> pa.StructArray:
    """Decode tuples by a plan that is already made; otherwise as `decode_tuples`."""
    flat = flatten(tuples, OVERREAD)
    rows, columns = len(tuples), len(plan.carriers)
    formats = indexes(which, rows)
    classes = np.zeros((columns + 1, rows), np.int8)
    arguments = np.zeros((columns + 1, rows), np.int64)
    errors = np.zeros((3, rows), np.int32)
    walk(flat.data, flat.offsets, flat.nulls, formats, plan.starts, plan.fields, classes, arguments, errors)
    built = _build(plan, flat, classes, arguments)
    statuses = np.stack([one.statuses for one in built])
    good = (errors[0] == 0) & ~(statuses > scalars.INEXACT).any(axis=0)
    fields = plan.layout.arrow_fields()
    arrays = [
        one.finish(field.type, (classes[column] > NIL) & good)
        for column, (one, field) in enumerate(zip(built, fields, strict=False))
    ]
    arrays += [_inexact(plan, statuses, good), _errors(plan, formats, errors, statuses)]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def decode_tuples(tuples: pa.Array, layout: TableLayout, which: pa.Array | int = 0) -> pa.StructArray:
    """Return the typed columns of tuples.

    Parameters
    ----------
    tuples : pyarrow.BinaryArray
        MessagePack tuples; a null one gives nulls, also in `_error`. May be a slice.
    layout : TableLayout
        The columns and the formats.
    which : pyarrow.Int32Array or int
        Index in `layout.formats` of each tuple's format.

    Returns
    -------
    pyarrow.StructArray
        As `layout.decoded_schema()` says, never null itself.

    """
    return decode(tuples, plan_of(layout), which)


def tuple_columns(layout: TableLayout) -> Callable[[Column, Column], Column]:
    """Return an Arrow UDF `(tuple binary, layout index int) → struct` of `layout.decoded_schema()`.

    One call decodes all columns of a table; a batch may hold tuples of several formats.
    """
    plan = plan_of(layout)

    def decode_batch(tuples: pa.Array, which: pa.Array) -> pa.Array:
        return decode(tuples, plan, which)

    decode_batch.__annotations__ = {"tuples": pa.Array, "which": pa.Array, "return": pa.Array}
    make: Any = arrow_udf
    wrapped: Callable[[Column, Column], Column] = make(decode_batch, returnType=layout.decoded_schema())
    return wrapped

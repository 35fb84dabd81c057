"""Decodes batches of MessagePack tuples to typed columns, `_extra`, `_inexact`, `_misfits` and `_error`.

A field that does not fit its format, or the type of its column, leaves that column null: `_misfits` names it and
`_error` says why. No value is truncated, and the other columns of the tuple are filled. A tuple that cannot be split
into fields has only `_error`. One kind of loss is allowed, and `_inexact` reports it per row: the column has the
nearest value that its Spark type has (a decimal without its last digits, a datetime without its nanoseconds, a number
that no double equals, a map with a repeated key); by `TypeOptions.exact` such a value does not fit. The exact value
stays in the raw tuple. The caller decides what happens to a tuple that does not fit.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column

from schemas.errors import TupleError
from schemas.field_types import FIELD_TYPES, ColumnStorage, type_family
from schemas.layout import EXTRA_COLUMN, MISFITS_ARROW, TableLayout, check_format
from udfs.buffers import BinaryBuffers, arrow_column_function, flatten, index_per_row, texts_of_rows
from udfs.kernels.memory import WRITE_SLACK_BYTES
from udfs.kernels.values import ABSENT, NIL, OVERREAD_BYTES
from udfs.tuples.columns import Columns, empty_columns
from udfs.tuples.fault_texts import COUNTED, column_fault, counted_digits, walk_fault
from udfs.tuples.kernels.columns import (
    COLUMN_BYTES,
    FITS,
    INEXACT,
    NOT_EXACT,
    OUT_OF_RANGE,
    UNDECIDED,
)
from udfs.tuples.kernels.field_writers import COLUMN_SHIFT, STORAGE_SHIFT
from udfs.tuples.kernels.walk import (
    BAD_ROWS,
    COUNTERS,
    INEXACT_ROWS,
    UNDECIDED_ROWS,
    walk,
)
from udfs.tuples.kernels.writers import DECIMAL_TEXT_MAX, write_decimal_texts

Statuses = NDArray[np.uint8]
"""The statuses of fields (`udfs.tuples.kernels.columns`), (columns, rows)."""

MAX_COUNTED_ROWS = 10_000
"""Of so many rows of a batch the digits of a decimal are counted, which takes some microseconds a row."""


def accepted_class_bits(field_type: str, is_nullable: bool) -> int:
    """Return the value classes that a field accepts, as bits; a nullable field also accepts nil and may be absent."""
    bits = sum(1 << kind for kind in FIELD_TYPES[type_family(field_type)].accepted_classes)
    return bits | (1 << NIL | 1 << ABSENT if is_nullable else 0)


@dataclass(frozen=True)
class DecodingPlan:
    """The arguments of `udfs.tuples.kernels.walk.walk` for the tuples of one table."""

    layout: TableLayout
    storages: tuple[ColumnStorage, ...]
    """How each column is stored."""
    field_starts: NDArray[np.int32]
    field_words: NDArray[np.int64]
    """Arguments of the walk."""
    arrow_fields: tuple[pa.Field, ...]
    """The result of `layout.arrow_fields()`."""


def decoding_plan(layout: TableLayout) -> DecodingPlan:
    """Return the plan for the tuples of a table.

    The errors are those of `schemas.layout.check_format` and `schemas.layout.column_storage`.
    """
    for form in layout.formats:
        check_format(layout.space, (field.name for field in form))
    columns = {field.name: index for index, field in enumerate(layout.fields)}
    storages = tuple(layout.storage_of(field) for field in layout.fields)
    words: list[int] = []
    starts = [0]
    for form in layout.formats:
        for field in form:
            column = columns[field.name]
            words.append(
                column * COLUMN_BYTES << COLUMN_SHIFT
                | storages[column] << STORAGE_SHIFT
                | accepted_class_bits(field.type, field.is_nullable)
            )
        starts.append(len(words))
        lacking = sorted(set(columns) - {field.name for field in form})
        words += [columns[name] * COLUMN_BYTES << COLUMN_SHIFT for name in lacking]
        starts.append(len(words))
    return DecodingPlan(
        layout=layout,
        storages=storages,
        field_starts=np.array(starts, np.int32),
        field_words=np.array(words, np.int64),
        arrow_fields=tuple(layout.arrow_fields()),
    )


def decode_tuples(
    tuples: pa.Array, layout: TableLayout, format_indexes: pa.Array | int = 0
) -> pa.StructArray:
    """Return the typed columns of tuples.

    Args:
        tuples: MessagePack tuples; a null gives nulls, also in `_error`. May be a slice.
        layout: The columns and the formats.
        format_indexes: Index in `layout.formats` of each tuple's format.

    Returns:
        Of `layout.decoded_schema()`; the struct itself is never null.
    """
    return decode(tuples, decoding_plan(layout), format_indexes)


def tuple_columns(layout: TableLayout) -> Callable[[Column, Column], Column]:
    """Return an Arrow UDF `(tuple binary, format index int) → struct` with the schema `layout.decoded_schema()`.

    One call decodes all columns of a table; a batch may have tuples of several formats.
    """
    plan = decoding_plan(layout)

    def decode_batch(tuples: pa.Array, format_indexes: pa.Array) -> pa.Array:
        return decode(tuples, plan, format_indexes)

    return arrow_column_function(decode_batch, layout.decoded_schema())


def decode(tuples: pa.Array, plan: DecodingPlan, format_indexes: pa.Array | int = 0) -> pa.StructArray:
    """Decode tuples like `decode_tuples`, for callers that keep the plan of `decoding_plan`."""
    flat = flatten(tuples, OVERREAD_BYTES)
    rows, formats = len(tuples), index_per_row(format_indexes, len(tuples))
    columns, errors, counters = _walk_batch(flat, formats, plan)
    statuses = columns.statuses
    if counters[UNDECIDED_ROWS]:
        _round_decimals(columns, flat, errors[0] == 0)
        counters[:] = rows
    if plan.layout.options.exact and counters[INEXACT_ROWS]:
        _refuse_inexact(columns, errors[0] == 0)
        counters[BAD_ROWS] += counters[INEXACT_ROWS]
    arrays = columns.arrays([field.type for field in plan.arrow_fields[: len(columns.storages)]])
    if counters[INEXACT_ROWS]:
        arrays.append(_inexact_names(plan, statuses, errors[0] == 0))
    else:
        arrays.append(pa.nulls(rows, pa.string()))
    if counters[BAD_ROWS]:
        faults = np.where((statuses > INEXACT) & (errors[0] == 0), statuses, np.uint8(0))
        arrays += [_misfit_names(plan, faults), _error_texts(plan, flat, formats, errors, faults)]
    else:
        arrays += [pa.nulls(rows, MISFITS_ARROW), pa.nulls(rows, pa.string())]
    return pa.StructArray.from_arrays(arrays, fields=list(plan.arrow_fields))


def _walk_batch(
    flat: BinaryBuffers, formats: NDArray[np.int32], plan: DecodingPlan
) -> tuple[Columns, NDArray[np.int32], NDArray[np.int64]]:
    """Walk over all tuples of a batch; return the filled columns, the errors of the walk and its counters."""
    scale, rows = plan.layout.options.decimal_scale, len(flat.nulls)
    columns = empty_columns(
        (*plan.storages, plan.layout.extra_storage),
        scale if isinstance(scale, int) else 0,
        flat.data,
        flat.offsets,
    )
    errors, counters = np.zeros((3, rows), np.int32), np.zeros(COUNTERS, np.int64)
    row, before, repeats = 0, -1, 0
    while row < rows:
        row = walk(
            *(flat.data, flat.offsets, flat.nulls, formats, plan.field_starts, plan.field_words),
            *(columns.column_words, errors, counters, row),
        )
        repeats = repeats + 1 if row == before else 0
        if repeats > len(columns.storages):
            # Each field alone had room, so several fields of the tuple must share a column.
            raise TupleError("a tuple takes more room than its columns have", space=plan.layout.space)
        if row < rows:
            columns.grow(row)
            before = row
    return columns, errors, counters


def _round_decimals(columns: Columns, flat: BinaryBuffers, walked: NDArray[np.bool_]) -> None:
    """Set each `double` value whose decimal the kernels could not round (`UNDECIDED`), by Python's exact rounding.

    Args:
        columns: The decoded columns; their values and statuses are changed.
        walked: Whether each tuple could be split into fields (bool[rows]).
    """
    statuses = columns.statuses
    undecided = (statuses == UNDECIDED) & walked
    for column in np.flatnonzero(undecided.any(axis=1)):
        rows, doubles = np.flatnonzero(undecided[column]), columns.doubles(int(column))
        content = np.empty(DECIMAL_TEXT_MAX * len(rows) + WRITE_SLACK_BYTES, np.uint8)
        ends = np.zeros(len(rows) + 1, np.int32)
        write_decimal_texts(flat.data, doubles[rows].view(np.int64), content, ends)
        for row, first, last in zip(rows, ends, ends[1:], strict=False):
            exact = decimal.Decimal(content[first:last].tobytes().decode())
            doubles[row] = float(exact)
            if math.isinf(doubles[row]):
                statuses[column, row] = OUT_OF_RANGE
            else:
                same = decimal.Decimal(doubles[row]) == exact
                statuses[column, row] = FITS if same else INEXACT
        columns.set_null(int(column), rows[statuses[column, rows] == OUT_OF_RANGE])


def _refuse_inexact(columns: Columns, walked: NDArray[np.bool_]) -> None:
    """Null each inexact value of the tuples that `walked` names, and set its status to `NOT_EXACT`."""
    inexact = (columns.statuses == INEXACT) & walked
    for column in np.flatnonzero(inexact.any(axis=1)):
        columns.set_null(int(column), np.flatnonzero(inexact[column]))
    columns.statuses[inexact] = NOT_EXACT


def _error_texts(
    plan: DecodingPlan,
    flat: BinaryBuffers,
    format_indexes: NDArray[np.int32],
    errors: NDArray[np.int32],
    faults: Statuses,
) -> pa.Array:
    """Return `_error`: why the tuple cannot be split into fields, or why each column in `faults` does not fit."""
    bad = (errors[0] != 0) | faults.any(axis=0)
    rows = np.flatnonzero(bad)
    numbers = np.stack([*errors[:, rows], format_indexes[rows]], axis=1).astype(np.int32)
    digits = _counted_digits(plan, flat, format_indexes, faults[:, rows], rows)
    keys = np.hstack([numbers.view(np.uint8), faults[:, rows].T, digits.T])

    def text(key: bytes) -> str:
        code, position, kind, index = np.frombuffer(key, np.int32, 4).tolist()
        if code != 0:
            return walk_fault(code, position, kind, index)
        statuses, counts = key[numbers.itemsize * 4 :][: len(faults)], key[-len(faults) :]
        return "; ".join(
            column_fault(plan.layout, column, status, index, count)
            for column, (status, count) in enumerate(zip(statuses, counts, strict=True))
            if status
        )

    return texts_of_rows(keys, rows, len(bad), text)


def _counted_digits(
    plan: DecodingPlan,
    flat: BinaryBuffers,
    format_indexes: NDArray[np.int32],
    faults: Statuses,
    rows: NDArray[np.int64],
) -> Statuses:
    """Return, like `faults` of some rows, how many digits the text of a decimal names; 0 for others."""
    found = np.zeros_like(faults)
    decimals = [i for i, storage in enumerate(plan.storages) if storage is ColumnStorage.DECIMAL]
    for column in decimals:
        name = plan.layout.fields[column].name
        places = [
            next((i for i, field in enumerate(form) if field.name == name), 0) for form in plan.layout.formats
        ]
        counted = np.flatnonzero(np.isin(faults[column], COUNTED))
        for index in counted[:MAX_COUNTED_ROWS].tolist():
            row = rows[index]
            raw = flat.data[flat.offsets[row] : flat.offsets[row + 1]].tobytes()
            count = counted_digits(raw, places[format_indexes[row]], int(faults[column, index]))
            found[column, index] = min(count, 255)
    return found


def _misfit_names(plan: DecodingPlan, faults: Statuses) -> pa.Array:
    """Return `_misfits`: the names of the columns that do not fit, in order; null if all fit."""
    misfit = faults.T != 0
    counts = misfit.sum(axis=1)
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    names = pa.array([*plan.layout.column_names, EXTRA_COLUMN], pa.string())
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        names.take(pa.array(np.nonzero(misfit)[1])),
        type=MISFITS_ARROW,
        mask=pa.array(counts == 0),
    )


def _inexact_names(plan: DecodingPlan, statuses: Statuses, walked: NDArray[np.bool_]) -> pa.Array:
    """Return the column `_inexact`: for each row, the columns whose value is less exact than the tuple's field.

    `walked` says which tuples could be split into fields.
    """
    loses = (statuses == INEXACT) & walked
    rows = np.flatnonzero(loses.any(axis=0))
    keys = np.packbits(loses[:, rows], axis=0).T
    names = (*plan.layout.column_names, EXTRA_COLUMN)

    def text(key: bytes) -> str:
        flags = np.unpackbits(np.frombuffer(key, np.uint8))
        return ",".join(name for name, lost in zip(names, flags, strict=False) if lost)

    return texts_of_rows(keys, rows, len(walked), text)

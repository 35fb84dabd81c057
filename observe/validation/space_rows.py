"""Computes from the rows of spaces' tables the columns that validation checks; they are the same for all tables.

Uses Arrow, and reads one file at a time. Each tuple is decoded again by its replicaset's definition of the space, and
the result must equal the typed columns. A row whose replicaset no longer defines the space is not decoded. A column
whose type differs from its field's type is not compared: another expectation fails for it. `observe.validation.spaces`
has the tables and the expectations.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.encode.columns import TableEncoding, column_for_file
from schemas.layout import ERROR_COLUMN, MISFITS_COLUMN
from udfs.buffers import as_array
from udfs.tuples.tuples import decode
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile, read_row_groups

DIFFERING_COLUMNS = "differing_columns"
"""Name of a computed column: columns that differ from `_tuple`, joined by commas, or why it cannot be decoded.

A column that cannot hold the value of its field must be null, and `_misfits` must name it.
"""

NULL_COLUMNS = "null_columns"
"""Name of a computed column: the columns that are null although their fields are not nullable, joined by commas."""

COMPUTED_COLUMNS = StructType(
    [
        StructField("table", StringType()),
        StructField("_key", StringType()),
        StructField("_tuple", BooleanType()),
        StructField("_replicaset_id", IntegerType()),
        StructField("_global_id", LongType()),
        StructField("_timestamp", TimestampType()),
        StructField("_created", TimestampType()),
        StructField(DIFFERING_COLUMNS, StringType()),
        StructField(NULL_COLUMNS, StringType()),
    ]
)
"""The computed columns of a row: `_key` is in hex, `_tuple` is null without a tuple and true with one."""

ARROW_SCHEMA = to_arrow_schema(COMPUTED_COLUMNS, timezone="UTC")
"""`COMPUTED_COLUMNS` as an Arrow schema."""

_HEX_DIGITS = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)

_COPIED_COLUMNS = ("_replicaset_id", "_global_id", "_timestamp", "_created")


@dataclass(frozen=True)
class RowChecks:
    """What to check in each row of one table. Picklable."""

    table: str
    """Name of the space's table, for results."""
    exact_table: str
    """The table with the complete tuples."""
    encoding: TableEncoding | None
    """How tuples of the space are decoded; None if no replicaset defines the space."""
    compared_columns: tuple[str, ...] = ()
    """The typed columns that are compared with the tuple."""
    never_null_columns: tuple[str, ...] = ()
    """The columns that must not be null, since their fields are not nullable."""


def compute_file_columns(
    location: WarehouseLocation, checks: RowChecks, file: TableFile
) -> Iterator[pa.RecordBatch]:
    """Yield the computed columns `COMPUTED_COLUMNS` of the rows of a file, one batch per row group."""
    for group in read_row_groups(location, checks.exact_table, file):
        yield compute_columns(group.rows, checks)


def compute_columns(rows: pa.Table, checks: RowChecks) -> pa.RecordBatch:
    """Return the computed columns `COMPUTED_COLUMNS` of some rows."""
    count = rows.num_rows
    columns = {name: as_array(rows[name]) for name in rows.column_names}
    # In a row with misfits a column may be null; `DIFFERING_COLUMNS` checks these columns.
    has_no_misfits = _null_flags_of(columns, MISFITS_COLUMN, count)
    nulls = {
        name: has_no_misfits & _null_flags_of(columns, name, count) for name in checks.never_null_columns
    }
    computed = {
        "table": pa.repeat(pa.scalar(checks.table), count),
        "_key": _hex_text(columns["_key"]),
        "_tuple": pa.array(np.ones(count, np.bool_), mask=_null_flags(columns["_tuple"])),
        **{name: columns[name].cast(ARROW_SCHEMA.field(name).type) for name in _COPIED_COLUMNS},
        DIFFERING_COLUMNS: pa.nulls(count, pa.string()),
        NULL_COLUMNS: _joined_flagged_names(nulls, count),
    }
    if checks.encoding is not None and count:
        computed[DIFFERING_COLUMNS] = _differing_columns(columns, checks.encoding, checks.compared_columns)
    return pa.RecordBatch.from_arrays([computed[name] for name in ARROW_SCHEMA.names], schema=ARROW_SCHEMA)


def _differing_columns(
    columns: Mapping[str, pa.Array], encoding: TableEncoding, compared_columns: Sequence[str]
) -> pa.Array:
    replicasets = pc.fill_null(columns["_replicaset_id"], 0).to_numpy()
    formats = encoding.format_indices_of(replicasets.astype(np.int32))
    tuples = pc.if_else(pc.is_valid(formats), columns["_tuple"], pa.scalar(None, pa.binary()))
    decoded = decode(tuples, encoding.decoding_plan, pc.fill_null(formats, 0))
    has_tuple = pc.is_valid(tuples).to_numpy(zero_copy_only=False)
    differs = {}
    for name in compared_columns:
        expected = column_for_file(decoded.field(name))
        actual = columns.get(name, pa.nulls(len(expected), expected.type))
        differs[name] = has_tuple & ~_equal_flags(actual, expected)
    errors = pc.if_else(pc.is_null(decoded.field(MISFITS_COLUMN)), decoded.field(ERROR_COLUMN), None)
    return pc.coalesce(errors, _joined_flagged_names(differs, len(tuples)))


def _equal_flags(actual: pa.Array, expected: pa.Array) -> NDArray[np.bool_]:
    """Return, for each row, whether two columns of one type have equal values; null equals only null."""
    is_null, is_expected_null = _null_flags(actual), _null_flags(expected)
    if pa.types.is_struct(expected.type):
        parts = [_equal_flags(actual.field(part.name), expected.field(part.name)) for part in expected.type]
        equal = np.logical_and.reduce(parts)
    elif pa.types.is_list(expected.type):
        return _equal_flags(pc.binary_join(actual, ","), pc.binary_join(expected, ","))
    else:
        expected = expected.cast(actual.type)
        equal = pc.fill_null(pc.equal(actual, expected), False).to_numpy(zero_copy_only=False)
        if pa.types.is_floating(actual.type):
            both_nan = pc.and_(pc.is_nan(actual), pc.is_nan(expected))
            equal = equal | pc.fill_null(both_nan, False).to_numpy(zero_copy_only=False)
    result: NDArray[np.bool_] = (is_null & is_expected_null) | (equal & ~is_null & ~is_expected_null)
    return result


def _null_flags(column: pa.Array) -> NDArray[np.bool_]:
    nulls: NDArray[np.bool_] = pc.is_null(column).to_numpy(zero_copy_only=False)
    return nulls


def _null_flags_of(columns: Mapping[str, pa.Array], name: str, count: int) -> NDArray[np.bool_]:
    """Return, for each of `count` rows, whether a column is null; a column that is not in `columns` is null."""
    return _null_flags(columns[name]) if name in columns else np.ones(count, np.bool_)


def _joined_flagged_names(flags: Mapping[str, NDArray[np.bool_]], count: int) -> pa.Array:
    """Return, for each of `count` rows, the names whose flag is set, joined by commas; null if no flag is set."""
    flagged = {name: flag for name, flag in flags.items() if flag.any()}
    if not flagged:
        return pa.nulls(count, pa.string())
    rows = np.flatnonzero(np.logical_or.reduce([*flagged.values()]))
    texts = np.full(count, None, dtype=object)
    for row in rows:
        texts[row] = ",".join(name for name, flag in flagged.items() if flag[row])
    return pa.array(texts, pa.string())


def _hex_text(keys: pa.Array) -> pa.Array:
    whole = pc.fill_null(keys, b"").cast(pa.large_binary())
    offsets = np.frombuffer(whole.buffers()[1], np.int64)[whole.offset : whole.offset + len(whole) + 1]
    data = np.frombuffer(whole.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    ends = pa.py_buffer((offsets - offsets[0]) * 2)
    texts = pa.LargeStringArray.from_buffers(len(whole), ends, pa.py_buffer(_HEX_DIGITS[data].tobytes()))
    return pc.if_else(pc.is_valid(keys), texts, None).cast(pa.string())

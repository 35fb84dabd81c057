"""Expectations of the tables of spaces, from the newest definitions of the spaces in `_schema`.

All tables are checked together: the same columns are computed from the files of each table, in parallel (in threads of
this process, or as a Spark job for large tables), by Arrow and one file at a time, and every table has the same
expectations. Each tuple is decoded again by its replicaset's definition of the space, and the result must equal the
typed columns. A row whose replicaset no longer defines the space is not decoded. A column whose type differs from its
field's type is not compared: another expectation fails for it.
Unique secondary indexes are checked in `observe.validation.secondary_keys`, the user's expectations in
`observe.validation.user_suites`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from config.deployment import Config
from observe.validation.check import Check, CheckFacts, TablesCheck, table_of_rows
from observe.validation.suites import expect_known_ids, expect_not_in_future, expect_not_null, expect_unique
from pipeline.encode.columns import TableEncoding, column_for_file, encoding_of
from pipeline.plan.spaces.tables import TablePlan, current_table_plan
from pipeline.state import State
from pipeline.write.changes import table_schema
from schemas.errors import UnsupportedError
from schemas.layout import ERROR_COLUMN, MISFITS_COLUMN, is_nested
from schemas.names import table_of_exact_tuples
from udfs.buffers import as_array
from udfs.tuples.tuples import decode
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.read import columns_of
from warehouse.delta.table_files import TableFile, files_of, read_row_groups

DIFFERING_COLUMNS = "differing_columns"
"""Name of a computed column: columns that differ from `_tuple`, joined by commas, or why it cannot be decoded.

A column that cannot hold the value of its field must be null, and `_misfits` must name it."""

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


LARGEST_COMPUTED_HERE_BYTES = 64 * 2**20
"""Up to this size together, the computed columns of all rows are in this process; a Spark job reads larger tables."""

OPENING_THREADS = 4
"""Tables that are opened at the same time: delta-rs waits for files outside of Python."""

MIN_BYTES_FOR_THREADS = 2**20
"""Smaller files, on average, are computed in one thread: most of that is Python, in which threads hinder each other."""

MIN_FILES_PER_TASK = 16
"""Minimum number of files of a Spark task, since starting a task takes longer than reading a small file."""

_MISSING_COLUMN_TYPE = "none"
_COLUMN_TYPES_SCHEMA = StructType(
    [StructField(name, StringType()) for name in ("table", "column", "expected_type", "found_type")]
)


@dataclass(frozen=True)
class SpaceTable:
    """A space's table at the newest epoch, with its actual and its expected columns."""

    name: str
    exact_table: str
    """The table with the complete tuples: `_exact_<space>` for a masked space, else the table itself."""
    actual_columns: Mapping[str, DataType]
    files: Sequence[TableFile]
    plan: TablePlan | None
    """How the newest definitions of the space are written to the table; None if no replicaset defines the space, or if
    two definitions contradict each other."""

    def expected_columns(self) -> Mapping[str, DataType]:
        """Return the type of each column that the table must have; empty without a plan."""
        if self.plan is None:
            return {}
        expected = {column.name: column.dataType for column in table_schema(encoding_of(self.plan))}
        if MISFITS_COLUMN not in self.actual_columns:
            # No batch of this release has written the table yet: all of its rows fit.
            del expected[MISFITS_COLUMN]
        return expected

    def row_checks(self) -> RowChecks:
        """Return what to check in the rows of the table."""
        if self.plan is None:
            return RowChecks(self.name, self.exact_table, None)
        layout = self.plan.layout
        types = {column.name: column.dataType for column in layout.spark_schema()}
        compared_columns = tuple(
            name for name, type_ in types.items() if self.actual_columns.get(name) == type_
        )
        # A field of type any may be nil.
        never_null_columns = tuple(
            name
            for name, field in zip(layout.column_names, layout.fields, strict=True)
            if not field.is_nullable and not is_nested(field.type) and name in self.actual_columns
        )
        return RowChecks(
            self.name, self.exact_table, encoding_of(self.plan), compared_columns, never_null_columns
        )


def space_tables(
    location: WarehouseLocation, state: State, config: Config, names: Iterable[str]
) -> list[SpaceTable]:
    """Return some tables of spaces at their versions in the state, with plans from the newest definitions."""
    exact_tables = {name: table_of_exact_tuples(state.versions, name) for name in names}
    tables = []
    with ThreadPoolExecutor(OPENING_THREADS) as pool:
        opened = pool.map(lambda exact: location.open(exact, state.versions[exact]), exact_tables.values())
        for (name, exact), table in zip(exact_tables.items(), opened, strict=True):
            if table is not None:
                columns = {column.name: column.dataType for column in columns_of(table)}
                plan = _plan_or_none(state, config, name)
                tables.append(SpaceTable(name, exact, columns, files_of(table, exact), plan))
    return tables


def _plan_or_none(state: State, config: Config, table: str) -> TablePlan | None:
    """Return the plan of a table by the newest definitions; None if none exist, or if they contradict each other."""
    try:
        return current_table_plan(state, config, table)
    except UnsupportedError:
        return None


def columns_check(tables: Sequence[SpaceTable]) -> Check:
    """Return the check of the column types of all tables of spaces."""
    import great_expectations.expectations as gxe

    rows = [
        {
            "table": table.name,
            "column": name,
            "expected_type": _type_name(expected, name),
            "found_type": _type_name(table.actual_columns, name),
        }
        for table in tables
        if (expected := table.expected_columns())
        for name in dict.fromkeys([*expected, *table.actual_columns])
    ]
    types_are_equal = gxe.ExpectColumnPairValuesToBeEqual(
        column_A="found_type",
        column_B="expected_type",
        description="each column has the type of its field in the newest definition",
    )
    keys = ("table", "column", "expected_type", "found_type")
    return Check("_schema_columns", table_of_rows(rows, _COLUMN_TYPES_SCHEMA), (types_are_equal,), keys)


def _type_name(columns: Mapping[str, DataType], name: str) -> str:
    return columns[name].simpleString() if name in columns else _MISSING_COLUMN_TYPE


def spaces_check(
    location: WarehouseLocation,
    tables: Sequence[SpaceTable],
    facts: CheckFacts,
    start_spark: Callable[[], SparkSession],
) -> TablesCheck:
    """Return the check of the rows of all tables of spaces."""
    files = [(table.row_checks(), file) for table in tables for file in table.files]
    is_small = sum(file.size for _checks, file in files) <= LARGEST_COMPUTED_HERE_BYTES
    rows = (
        rows_computed_here(location, files)
        if is_small
        else rows_computed_by_spark(start_spark(), location, files)
    )
    names = tuple(table.name for table in tables)
    return TablesCheck("_spaces", rows, names, partial(_space_expectations, facts))


CheckedFile = tuple[RowChecks, TableFile]


def rows_computed_here(location: WarehouseLocation, files: Sequence[CheckedFile]) -> pa.Table:
    """Return the `COMPUTED_COLUMNS` of the rows of files (`observe.validation.spaces`), computed in threads."""

    def compute(checked: CheckedFile) -> list[pa.RecordBatch]:
        return list(compute_file_columns(location, *checked))

    is_small = sum(file.size for _checks, file in files) < MIN_BYTES_FOR_THREADS * len(files)
    with ThreadPoolExecutor(1 if is_small else os.cpu_count()) as pool:
        batches = [batch for computed in pool.map(compute, files) for batch in computed]
    return pa.Table.from_batches(batches, ARROW_SCHEMA)


def rows_computed_by_spark(
    spark: SparkSession, location: WarehouseLocation, files: Sequence[CheckedFile]
) -> DataFrame:
    """Return the `COMPUTED_COLUMNS` of the rows of files (`observe.validation.spaces`), computed by a job."""
    tasks = max(1, min(-(-len(files) // MIN_FILES_PER_TASK), 4 * spark.sparkContext.defaultParallelism))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column("id").to_pylist():
                for checks, file in files[task::tasks]:
                    yield from compute_file_columns(location, checks, file)

    return spark.range(0, tasks, 1, tasks).mapInArrow(read, COMPUTED_COLUMNS)


def _space_expectations(facts: CheckFacts, *, is_single_table: bool) -> list[Any]:
    import great_expectations.expectations as gxe

    # Minus the id marks a row that a policy made.
    replicaset_ids = [sign * id_ for id_ in facts.replicaset_ids for sign in (1, -1)]
    description = "no two rows have one primary key"
    return [
        expect_unique("_key", description)
        if is_single_table
        else gxe.ExpectCompoundColumnsToBeUnique(column_list=["table", "_key"], description=description),
        *(expect_not_null(column) for column in ("_key", "_tuple", "_replicaset_id")),
        expect_known_ids("_global_id", facts),
        gxe.ExpectColumnValuesToBeInSet(
            column="_replicaset_id",
            value_set=replicaset_ids,
            description="_replicaset_id is a replicaset that was followed",
        ),
        *expect_not_in_future("_timestamp", facts),
        *expect_not_in_future("_created", facts),
        gxe.ExpectColumnValuesToBeNull(
            column=DIFFERING_COLUMNS, description="typed columns say what _tuple says"
        ),
        gxe.ExpectColumnValuesToBeNull(
            column=NULL_COLUMNS, description="columns of fields that are not nullable are never null"
        ),
    ]

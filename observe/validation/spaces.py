"""Expectations of the tables of spaces, from the newest definitions of the spaces in `_schema`.

All tables are checked together: `observe.validation.space_rows` computes the same columns from the files of each table,
in parallel (in threads of this process, or as a Spark job for large tables), and every table has the same expectations.
Unique secondary indexes are checked in `observe.validation.secondary_keys`, the user's expectations in
`observe.validation.user_suites`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StringType, StructField, StructType

from config.deployment import Config
from observe.validation.check import Check, CheckFacts, TablesCheck, table_of_rows
from observe.validation.space_rows import (
    ARROW_SCHEMA,
    COMPUTED_COLUMNS,
    DIFFERING_COLUMNS,
    NULL_COLUMNS,
    RowChecks,
    compute_file_columns,
)
from observe.validation.suites import expect_known_ids, expect_not_in_future, expect_not_null, expect_unique
from pipeline.encode.columns import encoding_of
from pipeline.plan.spaces.tables import TablePlan, current_table_plan
from pipeline.state import State
from pipeline.write.changes import table_schema
from schemas.errors import UnsupportedError
from schemas.layout import MISFITS_COLUMN, is_nested
from schemas.names import table_of_exact_tuples
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.read import columns_of
from warehouse.delta.table_files import TableFile, files_of

LARGEST_WITHOUT_SPARK_BYTES = 64 * 2**20
"""Larger tables of spaces, together, are read by a Spark job."""

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
    """The columns of the exact table."""
    files: Sequence[TableFile]
    """The files of the exact table."""
    plan: TablePlan | None
    """How the newest definitions of the space are written to the table; None if no replicaset defines the space, or if
    two definitions contradict each other.
    """

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
    is_small = sum(file.size for _checks, file in files) <= LARGEST_WITHOUT_SPARK_BYTES
    rows = (
        rows_computed_here(location, files)
        if is_small
        else rows_computed_by_spark(start_spark(), location, files)
    )
    names = tuple(table.name for table in tables)
    return TablesCheck("_spaces", rows, names, partial(_space_expectations, facts))


CheckedFile = tuple[RowChecks, TableFile]
"""A file, and what is checked in its rows."""


def rows_computed_here(location: WarehouseLocation, files: Sequence[CheckedFile]) -> pa.Table:
    """Return the `COMPUTED_COLUMNS` of the rows of files (`observe.validation.space_rows`), computed in threads."""

    def compute(checked: CheckedFile) -> list[pa.RecordBatch]:
        return list(compute_file_columns(location, *checked))

    is_small = sum(file.size for _checks, file in files) < MIN_BYTES_FOR_THREADS * len(files)
    with ThreadPoolExecutor(1 if is_small else os.cpu_count()) as pool:
        batches = [batch for computed in pool.map(compute, files) for batch in computed]
    return pa.Table.from_batches(batches, ARROW_SCHEMA)


def rows_computed_by_spark(
    spark: SparkSession, location: WarehouseLocation, files: Sequence[CheckedFile]
) -> DataFrame:
    """Return the `COMPUTED_COLUMNS` of the rows of files (`observe.validation.space_rows`), computed by a job."""
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

"""Expectations of the tables of spaces, from the newest definitions of their spaces in `_schema`.

All tables are checked together: their files are read in parallel and give the columns of
`observe.validation.space_rows`; every table has the same expectations. Unique secondary indexes are in
`observe.validation.secondary_keys`, the user's expectations in `observe.validation.user_suites`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StringType, StructField, StructType

from config.deployment import Config
from observe.validation.check import Check, CheckFacts, TablesCheck, frame_of
from observe.validation.space_rows import COLUMNS, NULLS, UNLIKE, Look, looked_at
from observe.validation.suites import known_ids, no_later, present, unique
from pipeline.encode.columns import encoding_of
from pipeline.plan.tables import TablePlan, current_table_plan
from pipeline.state import State
from pipeline.write.table_change import table_schema
from schemas.errors import UnsupportedError
from schemas.field_types import ColumnStorage
from schemas.layout import MISFITS_COLUMN
from schemas.names import table_of_exact_tuples
from warehouse.commits import TableFile, columns_of, files_of
from warehouse.place import Place

FILES_A_TASK = 16
"""Minimum number of files per task, since a task costs more than a small file."""

_ABSENT = "none"
_COLUMNS = StructType(
    [StructField(name, StringType()) for name in ("table", "column", "expected_type", "found_type")]
)


@dataclass(frozen=True)
class SpaceTable:
    """A space's table at the newest epoch, and its expected columns.

    Parameters
    ----------
    name : str
    held : str
        The table with the exact tuples.
    found : mapping of str to DataType
        The columns of the table.
    files : sequence of TableFile
    plan : TablePlan or None
        None if no replicaset defines the space, or two contradict each other.

    """

    name: str
    held: str
    found: Mapping[str, DataType]
    files: Sequence[TableFile]
    plan: TablePlan | None

    def wanted(self) -> Mapping[str, DataType]:
        """Return the columns that the table must have; empty if its plan is unknown."""
        if self.plan is None:
            return {}
        wanted = {one.name: one.dataType for one in table_schema(encoding_of(self.plan))}
        if MISFITS_COLUMN not in self.found:
            # No batch of this release has written the table yet: all of its rows fit.
            del wanted[MISFITS_COLUMN]
        return wanted

    def look(self) -> Look:
        """Return what to check in its rows."""
        if self.plan is None:
            return Look(self.name, self.held, None)
        layout = self.plan.layout
        typed = {one.name: one.dataType for one in layout.spark_schema()}
        compared = tuple(name for name, kind in typed.items() if self.found.get(name) == kind)
        # A field of type any may be nil.
        filled = tuple(
            name
            for name, one in zip(layout.names, layout.fields, strict=True)
            if not one.is_nullable
            and layout.storage_of(one) is not ColumnStorage.VARIANT
            and name in self.found
        )
        return Look(self.name, self.held, encoding_of(self.plan), compared, filled)


def space_tables(place: Place, state: State, config: Config, names: Iterable[str]) -> list[SpaceTable]:
    """Return the tables of spaces at the state's versions, with their plans from the newest definitions."""
    found = []
    for name in names:
        held = table_of_exact_tuples(state.versions, name)
        table = place.open(held, state.versions[held])
        if table is not None:
            columns = {one.name: one.dataType for one in columns_of(table)}
            found.append(SpaceTable(name, held, columns, files_of(table, held), _plan(state, config, name)))
    return found


def _plan(state: State, config: Config, table: str) -> TablePlan | None:
    try:
        return current_table_plan(state, config, table)
    except UnsupportedError:
        return None


def columns_check(spark: SparkSession, tables: Sequence[SpaceTable]) -> Check:
    """Return the check of the column types of all tables of spaces."""
    import great_expectations.expectations as gxe

    rows = [
        {
            "table": one.name,
            "column": name,
            "expected_type": _said(wanted, name),
            "found_type": _said(one.found, name),
        }
        for one in tables
        if (wanted := one.wanted())
        for name in dict.fromkeys([*wanted, *one.found])
    ]
    same = gxe.ExpectColumnPairValuesToBeEqual(
        column_A="found_type",
        column_B="expected_type",
        description="each column has the type of its field in the newest definition",
    )
    frame = frame_of(spark, rows, _COLUMNS)
    return Check("_schema_columns", frame, (same,), ("table", "column", "expected_type", "found_type"))


def _said(columns: Mapping[str, DataType], name: str) -> str:
    return columns[name].simpleString() if name in columns else _ABSENT


def spaces_check(
    spark: SparkSession, place: Place, tables: Sequence[SpaceTable], facts: CheckFacts
) -> TablesCheck:
    """Return the check of the rows of all tables of spaces."""
    names = tuple(one.name for one in tables)
    return TablesCheck("_spaces", space_rows(spark, place, tables), names, partial(_expected, facts))


def space_rows(spark: SparkSession, place: Place, tables: Sequence[SpaceTable]) -> DataFrame:
    """Return the checked columns of the rows of all tables (`observe.validation.space_rows`)."""
    looks = [one.look() for one in tables]
    files = [(number, one.path) for number, table in enumerate(tables) for one in table.files]
    tasks = max(1, min(-(-len(files) // FILES_A_TASK), 4 * spark.sparkContext.defaultParallelism))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for look, path in files[number::tasks]:
                    yield from looked_at(place, looks[look], path)

    return spark.range(0, tasks, 1, tasks).mapInArrow(read, COLUMNS)


def _expected(facts: CheckFacts, *, alone: bool) -> list[Any]:
    import great_expectations.expectations as gxe

    signs = [sign * one for one in facts.replicasets for sign in (1, -1)]
    said = "no two rows have one primary key"
    both = ["table", "_key"]
    return [
        unique("_key", said)
        if alone
        else gxe.ExpectCompoundColumnsToBeUnique(column_list=both, description=said),
        *(present(column) for column in ("_key", "_tuple", "_replicaset_id")),
        known_ids("_global_id", facts),
        gxe.ExpectColumnValuesToBeInSet(
            column="_replicaset_id",
            value_set=signs,
            description="_replicaset_id is a replicaset that was followed",
        ),
        *no_later("_timestamp", facts),
        *no_later("_created", facts),
        gxe.ExpectColumnValuesToBeNull(column=UNLIKE, description="typed columns say what _tuple says"),
        gxe.ExpectColumnValuesToBeNull(
            column=NULLS, description="columns of fields that are not nullable are never null"
        ),
    ]

"""Checks (a DataFrame with its expectations) and their results (one for each expectation).

Great Expectations supports neither binary columns nor variants, so they are converted to text.
`observe.validation.validator` runs the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType, VariantType

OpenTable = Callable[[str], DataFrame]
"""Returns the rows of a table, by its name, at the Delta version that the newest epoch names."""

FindExamples = Callable[[], list[str]]
"""Returns examples of failing rows; called only for a failed expectation."""


class MakeExpectations(Protocol):
    """Function that returns the expectations of a `TablesCheck`."""

    def __call__(self, *, is_single_table: bool) -> Sequence[Any]:
        """Return the expectations for the rows of one table, or of several tables in one DataFrame."""


MAX_EXAMPLES = 5
"""Maximum number of failing rows that a result shows."""


@dataclass(frozen=True)
class CheckFacts:
    """Facts that the checks of all tables use."""

    global_ids: tuple[int, ...]
    """All global ids in `_cluster`."""
    replicaset_ids: tuple[int, ...]
    """Ids of the replicasets that the aggregator reads."""
    latest_allowed_time: datetime | None = None
    """The latest time that a row may have; None: times are not checked."""


@dataclass(frozen=True)
class Check:
    """A table's rows, and the expectations that they must fulfil."""

    name: str
    """Name of the table, and of the suite in Great Expectations."""
    rows: DataFrame
    """Rows with column types that Great Expectations supports (`readable_frame`)."""
    expectations: tuple[Any, ...]
    """Great Expectations' expectations; users see their `description`."""
    key_columns: tuple[str, ...] = ()
    """Columns that identify a row, for examples of failing rows."""
    find_examples: Mapping[str, FindExamples] = field(default_factory=dict)
    """By column of `rows`: a function that returns examples of failing rows. It is needed for a column with counts of
    rows of another table, since the failing rows are in that table.
    """


@dataclass(frozen=True)
class TablesCheck:
    """The rows of many tables in one DataFrame, and the expectations that those of each table must fulfil."""

    name: str
    """Name of the suite."""
    rows: DataFrame
    """Rows of all tables; the column `table` has the name of the row's table."""
    tables: tuple[str, ...]
    make_expectations: MakeExpectations
    """Returns the expectations for one table, or for several tables together, which correspond one by one."""

    def check_of(self, tables: Sequence[str]) -> Check:
        """Return the check of some of the tables, together."""
        is_single = len(tables) == 1
        rows = self.rows if len(tables) == len(self.tables) else self.rows.where(F.col("table").isin(*tables))
        name = tables[0] if is_single else self.name
        return Check(name, rows, tuple(self.make_expectations(is_single_table=is_single)), ("_key",))


@dataclass(frozen=True)
class CheckResult:
    """The result of one expectation."""

    table: str
    expectation: str
    """The description of the expectation."""
    holds: bool
    """Whether the rows fulfil the expectation."""
    checked_row_count: int | None = None
    failing_row_count: int | None = None
    """Number of checked rows, and of failing rows; None if Great Expectations has not counted them. If the expectation
    holds, `checked_row_count` is None and `failing_row_count` is 0.
    """
    examples: tuple[str, ...] = ()
    """Some of the failing rows."""
    error: str | None = None
    """Why the expectation could not be checked; None if it was checked."""
    source: str | None = None
    """The user's file with the expectation; None for the aggregator's own."""

    def __str__(self) -> str:
        text = f"{self.table}: {self.expectation}"
        if self.error is not None:
            text += f": cannot be checked: {self.error}"
        elif self.failing_row_count is not None:
            text += f": fails in {self.failing_row_count}" + (
                "" if self.checked_row_count is None else f" of {self.checked_row_count} rows"
            )
        elif not self.holds:
            text += ": fails"
        if self.examples:
            text += (": " if self.failing_row_count is None else ", such as ") + "; ".join(self.examples)
        return text if self.source is None else f"{text} ({self.source})"


def frame_of_rows(spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: StructType) -> DataFrame:
    """Return rows that are in the driver's memory as a DataFrame with a schema."""
    arrow = pa.Table.from_pylist([dict(row) for row in rows], schema=to_arrow_schema(schema, timezone="UTC"))
    return spark.createDataFrame(arrow, schema)


def readable_column(name: str, kind: DataType) -> Column:
    """Return a column with a type that Great Expectations supports: bytes as hex, nested values as JSON."""
    column = F.col(f"`{name}`")
    if isinstance(kind, BinaryType):
        return F.hex(column).alias(name)
    if isinstance(kind, VariantType | MapType | ArrayType | StructType):
        return F.to_json(column).alias(name)
    return column


def readable_frame(rows: DataFrame) -> DataFrame:
    """Return the DataFrame with column types that Great Expectations supports."""
    return rows.select(*[readable_column(column.name, column.dataType) for column in rows.schema])

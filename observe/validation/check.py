"""Checks (a DataFrame with its expectations) and their results (one for each expectation).

Great Expectations supports neither binary columns nor variants, so they are converted to text.
`observe.validation.validator` runs the checks.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType, VariantType

Rows: TypeAlias = DataFrame | pa.Table
"""Rows that are checked: few ones, or those of a table that Spark reads."""


class OpenTable(Protocol):
    """Reads tables at the Delta versions that the newest epoch names."""

    def __call__(self, table: str) -> DataFrame:
        """Return the rows of a table, by its name."""

    def readable(self, table: str) -> Rows:
        """Return the rows of a table as Great Expectations takes them, without Spark if they are few."""

    def rows(self, table: str) -> pa.Table:
        """Return the rows of a small table."""

    def query(self, sql: str) -> pa.Table:
        """Return the result of a query on `{changelog}`, in the SQL of `observe.query_engines`."""


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
    replicaset_ids: tuple[int, ...]
    latest_allowed_time: datetime | None = None
    """The latest time that a row may have; None: times are not checked."""


@dataclass(frozen=True)
class Check:
    """A table's rows, and the expectations that they must fulfil."""

    name: str
    """Name of the table, and of the suite in Great Expectations."""
    rows: Rows
    """Rows with column types that Great Expectations supports (`readable_frame`, `readable_table`)."""
    expectations: tuple[Any, ...]
    """Great Expectations' expectations; users see their `description`."""
    key_columns: tuple[str, ...] = ()
    """Columns that identify a row, for examples of failing rows."""
    find_examples: Mapping[str, FindExamples] = field(default_factory=dict)
    """By column of `rows`: a function that returns examples of failing rows. It is needed for a column with counts of
    rows of another table, since the failing rows are in that table."""


@dataclass(frozen=True)
class TablesCheck:
    """The rows of many tables in one DataFrame, and the expectations that those of each table must fulfil."""

    name: str
    rows: Rows
    """Rows of all tables; the column `table` has the name of the row's table."""
    tables: tuple[str, ...]
    make_expectations: MakeExpectations
    """Returns the expectations for one table, or for several tables together, which correspond one by one."""

    def check_of(self, tables: Sequence[str]) -> Check:
        """Return the check of some of the tables, together."""
        is_single = len(tables) == 1
        rows = self.rows if len(tables) == len(self.tables) else _rows_of_tables(self.rows, tables)
        name = tables[0] if is_single else self.name
        return Check(name, rows, tuple(self.make_expectations(is_single_table=is_single)), ("_key",))


@dataclass(frozen=True)
class CheckResult:
    """The result of one expectation."""

    table: str
    expectation: str
    holds: bool
    checked_row_count: int | None = None
    failing_row_count: int | None = None
    """Number of checked rows, and of failing rows; None if Great Expectations has not counted them. If the expectation
    holds, `checked_row_count` is None and `failing_row_count` is 0."""
    examples: tuple[str, ...] = ()
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


def _rows_of_tables(rows: Rows, tables: Sequence[str]) -> Rows:
    if isinstance(rows, pa.Table):
        return rows.filter(pc.is_in(rows["table"], pa.array(tables)))
    return rows.where(F.col("table").isin(*tables))


def table_of_rows(rows: Sequence[Mapping[str, Any]], schema: StructType) -> pa.Table:
    """Return rows as an Arrow table with a schema."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=to_arrow_schema(schema, timezone="UTC"))


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


def readable_table(rows: pa.Table) -> pa.Table:
    """Return an Arrow table with column types that Great Expectations supports, as `readable_frame` does."""
    columns = {field.name: _readable_values(rows[field.name]) for field in rows.schema}
    return pa.table(columns)


def _readable_values(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array(
            [None if one is None else one.hex().upper() for one in column.to_pylist()], pa.string()
        )
    if pa.types.is_nested(kind):
        texts = [None if one is None else json.dumps(one, default=str) for one in column.to_pylist()]
        return pa.array(texts, pa.string())
    return column

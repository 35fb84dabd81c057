"""A check is a frame with its expectations; a result belongs to one expectation.

Great Expectations supports neither binary columns nor variants, so frames have them as text.
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
"""Returns the rows of a table at its version of the newest epoch."""

Explain = Callable[[], list[str]]
"""Returns examples of failing rows; called only for a failed expectation."""


class Expected(Protocol):
    """Makes the expectations of a `TablesCheck`."""

    def __call__(self, *, alone: bool) -> Sequence[Any]:
        """Return the expectations for one table's rows, or for several tables' rows."""


EXAMPLES = 5
"""Number of shown examples of failing rows."""


@dataclass(frozen=True)
class CheckFacts:
    """Facts that the checks of all tables use.

    Parameters
    ----------
    global_ids : tuple of int
        The ids in `_cluster`.
    replicasets : tuple of int
        Ids of the followed replicasets.
    latest : datetime or None
        No row may be later; None: times are not checked.

    """

    global_ids: tuple[int, ...]
    replicasets: tuple[int, ...]
    latest: datetime | None = None


@dataclass(frozen=True)
class Check:
    """The expectations of one frame.

    Parameters
    ----------
    name : str
        Name of the suite: the table's.
    rows : DataFrame
        In the form of `readable`.
    expectations : tuple
        Great Expectations' expectations; users see their `description`.
    keys : tuple of str
        Columns that identify a row in examples.
    explain : mapping of str to callable
        By column: how to find examples if those with `keys` are not enough.

    """

    name: str
    rows: DataFrame
    expectations: tuple[Any, ...]
    keys: tuple[str, ...] = ()
    explain: Mapping[str, Explain] = field(default_factory=dict)


@dataclass(frozen=True)
class TablesCheck:
    """The expectations of many tables whose rows are in one frame.

    Parameters
    ----------
    name : str
        Name of the suite.
    rows : DataFrame
        With a column `table`.
    tables : tuple of str
    expected : callable
        Returns the expectations for the rows of one table, or of several tables; the same number in the same order.

    """

    name: str
    rows: DataFrame
    tables: tuple[str, ...]
    expected: Expected

    def of(self, tables: Sequence[str]) -> Check:
        """Return the check for some of the tables."""
        alone = len(tables) == 1
        rows = self.rows if len(tables) == len(self.tables) else self.rows.where(F.col("table").isin(*tables))
        name = tables[0] if alone else self.name
        return Check(name, rows, tuple(self.expected(alone=alone)), ("_key",))


@dataclass(frozen=True)
class CheckResult:
    """The result of one expectation.

    Parameters
    ----------
    table : str
    expected : str
        In words.
    holds : bool
    rows, unexpected : int or None
        Number of checked rows, and of failing ones; None if it is not counted; `rows` also if the expectation holds.
    examples : tuple of str
        Some of the failing rows.
    error : str or None
        Why it could not be checked.
    source : str or None
        The user's file with the expectation; None for the aggregator's own.

    """

    table: str
    expected: str
    holds: bool
    rows: int | None = None
    unexpected: int | None = None
    examples: tuple[str, ...] = ()
    error: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        text = f"{self.table}: {self.expected}"
        if self.error is not None:
            text += f": cannot be looked at: {self.error}"
        elif self.unexpected is not None:
            text += f": not so in {self.unexpected}" + ("" if self.rows is None else f" of {self.rows} rows")
        elif not self.holds:
            text += ": not so"
        if self.examples:
            text += (": " if self.unexpected is None else ", such as ") + "; ".join(self.examples)
        return text if self.source is None else f"{text} ({self.source})"


def frame_of(spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: StructType) -> DataFrame:
    """Return a frame of rows in the driver's memory."""
    arrow = pa.Table.from_pylist([dict(row) for row in rows], schema=to_arrow_schema(schema, timezone="UTC"))
    return spark.createDataFrame(arrow, schema)


def shown(name: str, kind: DataType) -> Column:
    """Return a column in a form that Great Expectations can read: bytes in hex, nested values as JSON."""
    column = F.col(f"`{name}`")
    if isinstance(kind, BinaryType):
        return F.hex(column).alias(name)
    if isinstance(kind, VariantType | MapType | ArrayType | StructType):
        return F.to_json(column).alias(name)
    return column


def readable(rows: DataFrame) -> DataFrame:
    """Return a frame whose columns Great Expectations can read."""
    return rows.select(*[shown(one.name, one.dataType) for one in rows.schema])

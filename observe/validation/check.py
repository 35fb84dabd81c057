"""A check: a frame and its expectations; a verdict: the result of one expectation.

Great Expectations knows neither binary columns nor variants, so frames show them as text. Not here: the expectations
of each table, and the run itself (`observe.validation.validator`).
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
"""Table to its rows at the versions of the newest epoch."""

Explain = Callable[[], list[str]]
"""Returns examples of what does not hold; asked only then."""


class Expected(Protocol):
    """Makes the expectations of a `TablesCheck`."""

    def __call__(self, *, alone: bool) -> Sequence[Any]:
        """Return what is expected of one table's rows, or of several tables'."""


EXAMPLES = 5
"""So many examples are told of what does not hold."""


@dataclass(frozen=True)
class CheckFacts:
    """What checks of all tables need to know.

    Parameters
    ----------
    global_ids : tuple of int
        Those that `_cluster` has.
    replicasets : tuple of int
        Ids of the replicasets that were followed.
    latest : datetime or None
        No row may be of a later time; None: times are not looked at.

    """

    global_ids: tuple[int, ...]
    replicasets: tuple[int, ...]
    latest: datetime | None = None


@dataclass(frozen=True)
class Check:
    """What is expected of one frame.

    Parameters
    ----------
    name : str
        The suite's: that of the table it is about.
    rows : DataFrame
        As `readable` shows it.
    expectations : tuple
        Great Expectations' expectations; their `description` is what people read.
    keys : tuple of str
        Columns that name a row in examples.
    explain : mapping of str to callable
        By column: how to find examples where those that `keys` give say too little.

    """

    name: str
    rows: DataFrame
    expectations: tuple[Any, ...]
    keys: tuple[str, ...] = ()
    explain: Mapping[str, Explain] = field(default_factory=dict)


@dataclass(frozen=True)
class TablesCheck:
    """What is expected of each of many tables whose rows are in one frame.

    Parameters
    ----------
    name : str
        The suite's.
    rows : DataFrame
        With a column `table`.
    tables : tuple of str
    expected : callable
        Returns the expectations: of the rows of one table alone, or of several tables' rows; the same number of them
        in the same order.

    """

    name: str
    rows: DataFrame
    tables: tuple[str, ...]
    expected: Expected

    def of(self, tables: Sequence[str]) -> Check:
        """Return what is expected of some of the tables."""
        alone = len(tables) == 1
        rows = self.rows if len(tables) == len(self.tables) else self.rows.where(F.col("table").isin(*tables))
        name = tables[0] if alone else self.name
        return Check(name, rows, tuple(self.expected(alone=alone)), ("_key",))


@dataclass(frozen=True)
class CheckResult:
    """What came of one expectation.

    Parameters
    ----------
    table : str
    expected : str
        In words.
    holds : bool
    rows, unexpected : int or None
        How many rows were looked at, and how many of them are not as expected; None where that is not counted, and
        the first also where all is well.
    examples : tuple of str
        Some of the rows that are not as expected.
    error : str or None
        Why it could not be looked at.
    source : str or None
        The user's file that expects it; None for what the aggregator expects itself.

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
        told = f"{self.table}: {self.expected}"
        if self.error is not None:
            told += f": cannot be looked at: {self.error}"
        elif self.unexpected is not None:
            told += f": not so in {self.unexpected}" + ("" if self.rows is None else f" of {self.rows} rows")
        elif not self.holds:
            told += ": not so"
        if self.examples:
            told += (": " if self.unexpected is None else ", such as ") + "; ".join(self.examples)
        return told if self.source is None else f"{told} ({self.source})"


def few(spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: StructType) -> DataFrame:
    """Return rows that the driver holds as a frame."""
    arrow = pa.Table.from_pylist([dict(row) for row in rows], schema=to_arrow_schema(schema, timezone="UTC"))
    return spark.createDataFrame(arrow, schema)


def shown(name: str, kind: DataType) -> Column:
    """Return a column as Great Expectations can read it: bytes in hex, what has parts as JSON."""
    column = F.col(f"`{name}`")
    if isinstance(kind, BinaryType):
        return F.hex(column).alias(name)
    if isinstance(kind, VariantType | MapType | ArrayType | StructType):
        return F.to_json(column).alias(name)
    return column


def readable(rows: DataFrame) -> DataFrame:
    """Return a frame whose columns Great Expectations can read."""
    return rows.select(*[shown(one.name, one.dataType) for one in rows.schema])

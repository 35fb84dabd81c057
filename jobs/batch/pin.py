"""Holding on to a frame that several later steps read, so that it is computed once.

A small one is brought to the driver and becomes a local relation: the steps behind it then start no Python worker and
plan with exact sizes. A large one is cached where it was computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tables.warehouse import Warehouse

SMALL_ROWS = 20_000
"""Up to so many rows of a batch its frames are pinned in the driver,"""

SMALL_BYTES = 8 * 1024 * 1024
"""if they have no more bytes of log than that."""


@dataclass(frozen=True)
class Pinned:
    """A frame that was computed.

    Parameters
    ----------
    frame : DataFrame
    rows : pyarrow.Table or None
        The same, where the driver holds it.

    """

    frame: DataFrame
    rows: pa.Table | None = None


def local(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Return rows of the driver as a frame of one partition: what follows needs no exchange, and writes one file."""
    if not rows.num_rows:
        return spark.createDataFrame([], schema).coalesce(1)
    return spark.createDataFrame(rows, schema).coalesce(1)


def append(warehouse: Warehouse, table: str, rows: Pinned, instead_of: str | None = None) -> None:
    """Append rows to a system table, from where they are.

    Parameters
    ----------
    instead_of : str, optional
        A condition in SQL, true of the new rows: those of which it was true go in the same commit.

    """
    if rows.rows is not None:
        warehouse.append_arrow(table, rows.rows, instead_of)
    elif instead_of is None:
        warehouse.append(table, rows.frame)
    else:
        warehouse.replace(table, rows.frame, instead_of)


def by_key(rows: DataFrame) -> DataFrame:
    """Return the rows, those of a key in one partition, for all that comes: reductions, unions, windows.

    By the key alone, which all of them have in common. Into a fixed number of partitions: what Spark would join
    afterwards it would have to bring apart again. Before a reduction: else Spark reduces first, sorted for that.
    """
    partitions = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 0)
    return rows.repartition(partitions, "_key")


class Pins:
    """The frames that one batch holds, released together.

    Parameters
    ----------
    is_small : bool
        Whether the batch is small enough for the driver.

    """

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self._cached: list[DataFrame] = []

    def pin(self, frame: DataFrame) -> Pinned:
        """Return the same rows, computed once."""
        if self.is_small:
            rows = frame.toArrow()
            return Pinned(local(frame.sparkSession, rows, frame.schema), rows)
        return Pinned(self.cache(frame))

    def here(self, frame: DataFrame) -> Pinned:
        """Return the same rows, in the driver if the batch is small, else not computed yet."""
        return self.pin(frame) if self.is_small else Pinned(frame)

    def near(self, frame: DataFrame) -> DataFrame:
        """Return the same rows, which one step reads: from the driver where all other rows are there too."""
        return self.here(frame).frame

    def beside(self, one: DataFrame, other: DataFrame) -> DataFrame:
        """Return the rows of both, those of a key in one partition, as those of the first are already."""
        if self.is_small:
            return one.unionByName(other, allowMissingColumns=True).coalesce(1)
        return one.unionByName(by_key(other), allowMissingColumns=True)

    def cache(self, frame: DataFrame) -> DataFrame:
        """Return the same rows, computed once where they are: for columns that Arrow does not bring back."""
        cached = frame.persist(StorageLevel.MEMORY_AND_DISK_DESER)
        self._cached.append(cached)
        return cached

    def release(self) -> None:
        """Give the memory back."""
        for frame in self._cached:
            frame.unpersist()

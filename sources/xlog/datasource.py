"""Spark's data source `format("xlog")`: Tarantool's logs as a table and as a stream.

A thin layer: options are checked in `sources.xlog.options`, offsets and segments come from `sources.xlog.stream.follow`
and `sources.xlog.stream.batch`, rows from `sources.xlog.stream.read`. It defines no `pushFilters`, because that makes
every read fail while filter pushdown for Python data sources is off, which is Spark's default; options filter instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from schemas.errors import ConfigurationError
from sources.xlog.directory.offset import Offset, from_document, to_document
from sources.xlog.options import XlogOptions, parse_options
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.follow import Follower
from sources.xlog.stream.instants import follower_of
from sources.xlog.stream.read import read_range, schema_of
from sources.xlog.stream.segment import ByteRange

_SPARK_TYPES = {
    pa.string(): StringType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.binary(): BinaryType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema with the types of `schemas.xrow`; every column is nullable."""
    return StructType([StructField(f.name, _SPARK_TYPES[f.type], nullable=True) for f in schema])


PROJECT = str(Path(__file__).resolve().parents[2])
"""The folder or zip that the project is imported from."""


@dataclass
class XlogPartition(InputPartition):
    """The byte ranges that one task reads."""

    ranges: tuple[ByteRange, ...]


def _partitions(follower: Follower, start: Offset, end: Offset) -> list[XlogPartition]:
    return [XlogPartition(task) for task in tasks_of(follower, segments_between(follower, start, end))]


def _read(partition: InputPartition, options: XlogOptions) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, XlogPartition):
        raise TypeError(f"not a partition of this data source: {partition!r}")
    for piece in partition.ranges:
        yield from read_range(piece, options)


class XlogReader(DataSourceReader):
    """Reads the rows that are there now, or between two offsets."""

    def __init__(self, options: XlogOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[XlogPartition]:
        """Return the partitions: the byte ranges of each task."""
        follower = Follower(self._options, is_final=self._options.end_offset is None)
        start = self._options.start_offset
        start = follower.initial() if start is None else start
        end = self._options.end_offset
        found = _partitions(follower, start, follower.latest(start) if end is None else end)
        return found or [XlogPartition(())]  # Spark refuses a table without partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return _read(partition, self._options)


class XlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows growing logs; Spark calls it in one long-lived process on the driver."""

    def __init__(self, options: XlogOptions) -> None:
        if options.bounded_by:
            name = options.bounded_by[0]
            raise ConfigurationError(f"option {name} bounds a batch read, not a stream", option=name)
        self._options = options
        self._follower = follower_of(options)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_follower": follower_of(self._options)}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset in which no replicaset has begun.

        Spark does not log it, and calls this again to repeat the first batch, so it must not depend on the files.
        In the first batch, which has no rows, every replicaset begins.
        """
        return to_document({})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that `maxBytesPerTrigger` sets."""
        limit = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends: whole transactions, within the limit."""
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return to_document(self._follower.latest(from_document(start), max_bytes))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the last known end of the logs, and the sources that cannot be read: for progress and lag."""
        if not self._follower.newest and not self._follower.unreadable:
            return None
        report = to_document(self._follower.newest)
        unreadable = self._follower.unreadable
        return report | ({"unreadable": dict(sorted(unreadable.items()))} if unreadable else {})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end: rows that are written later are left to the next run."""
        self._follower.fix_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[XlogPartition]:
        """Return the partitions of a batch; they depend on the offsets alone."""
        return _partitions(self._follower, from_document(start), from_document(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return _read(partition, self._options)


class XlogDataSource(DataSource):
    """`spark.read.format("xlog")` and `spark.readStream.format("xlog")`; options in `XlogOptions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "xlog"

    @cached_property
    def _parsed(self) -> XlogOptions:
        return parse_options(self.options)

    def schema(self) -> StructType:
        """Return the columns: `schemas.xrow`, as the options select them."""
        return spark_schema(schema_of(self._parsed))

    def reader(self, schema: StructType) -> XlogReader:  # noqa: ARG002
        """Return the reader of a batch query."""
        return XlogReader(self._parsed)

    def streamReader(self, schema: StructType) -> XlogStreamReader:  # noqa: ARG002, N802
        """Return the reader of a streaming query."""
        return XlogStreamReader(self._parsed)


def register(spark: SparkSession) -> None:
    """Register `format("xlog")` with a session."""
    # Spark computes a stream's offsets in a separate process on the driver, without the files of --py-files.
    environment = spark.sparkContext.environment
    known = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys([*known, PROJECT])))
    spark.dataSource.register(XlogDataSource)

"""Spark's readers of `format("xlog")`: the partitions and rows of a batch query, the offsets of a stream.

A thin layer: offsets and segments come from `sources.xlog.stream.log_stream` and `sources.xlog.stream.batch`, rows from
`sources.xlog.stream.read`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from schemas.errors import ConfigurationError
from sources.xlog.directory.offset import Offset, from_document, to_document
from sources.xlog.options import XlogOptions
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.instants import log_stream_of
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.read import read_range
from sources.xlog.stream.segment import ByteRange


@dataclass
class XlogPartition(InputPartition):
    """The byte ranges that one task reads."""

    ranges: tuple[ByteRange, ...]


def _partitions(log_stream: LogStream, start: Offset, end: Offset) -> list[XlogPartition]:
    return [XlogPartition(task) for task in tasks_of(log_stream, segments_between(log_stream, start, end))]


def _read(partition: InputPartition, options: XlogOptions) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, XlogPartition):
        raise TypeError(f"not a partition of this data source: {partition!r}")
    for byte_range in partition.ranges:
        yield from read_range(byte_range, options)


class XlogReader(DataSourceReader):
    """Reads the rows of a batch query: those that the files have now, or those between two offsets."""

    def __init__(self, options: XlogOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[XlogPartition]:
        """Return the partitions: the byte ranges of each task."""
        log_stream = LogStream(self._options, ignores_growth=self._options.end_offset is None)
        start = self._options.start_offset
        start = log_stream.initial() if start is None else start
        end = self._options.end_offset
        found = _partitions(log_stream, start, log_stream.latest(start) if end is None else end)
        return found or [XlogPartition(())]  # Spark refuses a table without partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return _read(partition, self._options)


class XlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads growing logs as a stream. Spark calls it in one long-lived process on the driver."""

    def __init__(self, options: XlogOptions) -> None:
        if options.batch_only_options:
            name = options.batch_only_options[0]
            raise ConfigurationError(f"option {name} bounds a batch read, not a stream", option=name)
        self._options = options
        self._log_stream = log_stream_of(options)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_log_stream": log_stream_of(self._options)}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the empty offset.

        Spark does not write this offset to its log, but calls the method again to repeat the first batch. So the result
        must not depend on the files. The first batch has no rows: it ends at the position where reading begins in each
        replicaset.
        """
        return to_document({})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that `maxBytesPerTrigger` sets."""
        limit = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset at which the next batch ends; it has about `limit` bytes, and whole transactions."""
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return to_document(self._log_stream.latest(from_document(start), max_bytes))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the last known end of the logs, and the sources that cannot be read; None if neither is known.

        Spark adds it to the query's progress, from which the lag is computed.
        """
        if not self._log_stream.newest_offset and not self._log_stream.unreadable_sources:
            return None
        report = to_document(self._log_stream.newest_offset)
        unreadable = self._log_stream.unreadable_sources
        return report | ({"unreadable": dict(sorted(unreadable.items()))} if unreadable else {})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the stream: rows that are written later are read by the next run."""
        self._log_stream.fix_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[XlogPartition]:
        """Return the partitions of a batch; they depend on the offsets alone."""
        return _partitions(self._log_stream, from_document(start), from_document(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return _read(partition, self._options)

"""Spark's reader of the stream `xlog_cells`: the offsets of `format("xlog")`, and the rows as log cells."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pipeline.executors.choice import cells_hold_rows
from pipeline.executors.row_counts import counted_cells, stored_row_counts
from pipeline.plan.rows.position import with_spaced_numbers
from sources.xlog.directory.offset import from_document
from sources.xlog.options import XlogOptions
from sources.xlog.spark_readers import XlogPartition, XlogStreamReader
from sources.xlog.stream.batch import segments_between, tasks_of


@dataclass
class CellPartition(XlogPartition):
    """The byte ranges that one task reads."""

    number: int
    """The task's number in the batch, in the order of the log."""
    holds_rows: bool = True
    """Whether its cells hold their rows (`pipeline.executors.choice.cells_hold_rows`)."""
    counts_folder: str | None = None
    """Where the driver stores the counts of rows that it has read itself (`pipeline.executors.row_counts`)."""


class CellStreamReader(XlogStreamReader):
    """Reads growing logs as a stream of log cells (`pipeline.executors.cells.LOG_CELLS`)."""

    def __init__(self, options: XlogOptions, counts_folder: str | None) -> None:
        super().__init__(options)
        self._counts_folder = counts_folder

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_counts_folder": self._counts_folder}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[CellPartition]:
        """Return the partitions of a batch; they depend on the offsets alone."""
        found = segments_between(self._log_stream, from_document(start), from_document(end))
        holds_rows = cells_hold_rows(found, is_cluster=self._counts_folder is None)
        tasks = tasks_of(self._log_stream, with_spaced_numbers(found))
        return [
            CellPartition(task, number, holds_rows, self._counts_folder) for number, task in enumerate(tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the cells of one partition, and empty rows: as many rows of Spark as the log has."""
        if not isinstance(partition, CellPartition):
            raise TypeError(f"not a partition of this data source: {partition!r}")
        counts = {} if partition.counts_folder is None else stored_row_counts(partition.counts_folder)
        counted = counted_cells(partition.ranges, counts, partition.number)
        if counted is not None:
            return counted
        from pipeline.executors.log_cells import log_cells  # only tasks need it, not the planning process

        return log_cells(
            *(partition.ranges, self._options, partition.number),
            counts_rows=True,
            holds_rows=partition.holds_rows,
        )

"""Spark's reader of the stream `xlog_cells`: the offsets of `format("xlog")`, and the rows as log cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pipeline.executors.cell_files import CellFiles
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
    folder: str | None = None
    """Where the rows are stored as files (`pipeline.executors.cell_files`)."""


class CellStreamReader(XlogStreamReader):
    """Reads growing logs as a stream of log cells (`pipeline.executors.cells.LOG_CELLS`)."""

    def __init__(self, options: XlogOptions, files: CellFiles | None) -> None:
        super().__init__(options)
        self._files = files

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_files": self._files}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[CellPartition]:
        """Return the partitions of a batch; they depend on the offsets alone."""
        found = segments_between(self._log_stream, from_document(start), from_document(end))
        folder = None if self._files is None else self._files.folder_for(found)
        tasks = tasks_of(self._log_stream, with_spaced_numbers(found))
        return [CellPartition(task, number, folder) for number, task in enumerate(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the cells of one partition, and empty rows: as many rows of Spark as the log has."""
        if not isinstance(partition, CellPartition):
            raise TypeError(f"not a partition of this data source: {partition!r}")
        from pipeline.executors.log_cells import log_cells  # only tasks need it, not the planning process

        return log_cells(
            partition.ranges, self._options, partition.number, counts_rows=True, folder=partition.folder
        )

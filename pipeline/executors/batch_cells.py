"""The log cells of a batch, as Spark gives them: checked to be complete, and decoded.

The stream's DataFrame has the cells of each batch (`pipeline.executors.cell_source`); the cells of other batches, such
as a backfill's, are read here by tasks of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.executors.cells import LOG_CELLS_SPARK_SCHEMA, decode_cell
from pipeline.executors.log_cells import log_cells
from schemas.errors import OffsetError
from sources.xlog.stream.batch import tasks_of
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.segment import Segment


def with_rows(frame: DataFrame) -> DataFrame:
    """Return the cells of a frame, without the empty rows between them (`log_cells(counts_rows=True)`)."""
    return frame.where(F.col("rows").isNotNull())


def read_cells(spark: SparkSession, log_stream: LogStream, segments: Sequence[Segment]) -> DataFrame:
    """Return the cells of some segments."""
    tasks, options = tasks_of(log_stream, segments), log_stream.options

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from log_cells(tasks[number], options, number)

    return spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(read, LOG_CELLS_SPARK_SCHEMA)


def rows_of_cells(cells: pa.Table, segments: Sequence[Segment]) -> dict[int, list[pa.RecordBatch]]:
    """Decode cells; return the rows of each segment in log order, by the segment's number.

    Args:
        cells: `LOG_CELLS`, in the order of `ordinal`.
    """
    found: dict[int, list[pa.RecordBatch]] = {segment.number: [] for segment in segments}
    for number, data in zip(cells["segment"].to_pylist(), cells["rows"], strict=True):
        found[number] += decode_cell(data.as_buffer()).to_batches()
    return found


def refuse_missing_cells(cells: pa.Table, segments: Sequence[Segment]) -> None:
    """Check that cells are those of the segments, and of all of their bytes.

    The cells are planned in another process than the segments, from the same offsets. If a file was replaced in
    between, the two may differ.

    Args:
        cells: At least the columns `segment`, `file`, `position` and `end` of `LOG_CELLS`.

    Raises:
        OffsetError: The cells of a segment are missing, or are of another one.
    """
    columns = ("segment", "file", "position", "end")
    given = set(zip(*(cells[name].to_pylist() for name in columns), strict=True))
    read: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for number, file, position, end in given:
        read.setdefault((number, file), []).append((position, end))
    for segment in segments:
        ranges = sorted(read.pop((segment.number, segment.file), []))
        begins = [begin for begin, _ in ranges] + [segment.end]
        ends = [segment.begin] + [end for _, end in ranges]
        if begins != ends:
            raise _planned_otherwise(segment.file, segment.source)
    if read:
        (_, file), _ranges = read.popitem()
        raise _planned_otherwise(file, None)


def _planned_otherwise(file: str, source: str | None) -> OffsetError:
    return OffsetError(
        "its rows were read for another part of the log than the batch was planned for",
        file=file,
        source=source,
        advice="a file was replaced while the batch was planned: start again, which repeats the batch",
    )

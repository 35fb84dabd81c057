"""The log cells of a batch, as Spark gives them: checked to be complete, and decoded.

The stream's DataFrame has the cells of each batch (`pipeline.executors.cell_source`); the cells of other batches, such
as a backfill's, are read here by tasks of their own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pipeline.executors.cells import LOG_CELLS_SPARK_SCHEMA
from pipeline.executors.choice import cells_hold_rows, runs_on_cluster
from pipeline.executors.log_cells import CellDigest, log_cells, rows_of_cell
from pipeline.executors.log_piece import LogPiece
from pipeline.plan.rows.summary import Summary
from schemas.errors import OffsetError
from sources.xlog.stream.batch import tasks_of
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.segment import Segment


def read_cells(spark: SparkSession, log_stream: LogStream, segments: Sequence[Segment]) -> DataFrame:
    """Return the cells of some segments."""
    tasks, options = tasks_of(log_stream, segments), log_stream.options
    holds_rows = cells_hold_rows(segments, is_cluster=runs_on_cluster(spark))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from log_cells(tasks[number], options, number, holds_rows=holds_rows)

    return spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(read, LOG_CELLS_SPARK_SCHEMA)


@dataclass(frozen=True)
class CollectedCells:
    """The cells of a batch in the driver, in log order."""

    pieces: Sequence[LogPiece]
    table: pa.Table
    """`LOG_CELLS`."""

    @property
    def decoded_bytes(self) -> int:
        """The size of the rows in memory."""
        return sum(piece.bytes for piece in self.pieces)

    def summaries(self) -> dict[int, list[Summary]]:
        """Return the summaries of the cells in log order, by segment number."""
        found: dict[int, list[Summary]] = {}
        for piece, digest in zip(self.pieces, self.table["digest"].to_pylist(), strict=True):
            found.setdefault(piece.segment, []).append(CellDigest.decoded(digest).summary)
        return found

    def rows(self, segments: Sequence[Segment]) -> dict[int, list[pa.RecordBatch]]:
        """Decode the cells; return the rows of each segment in log order."""
        found: dict[int, list[pa.RecordBatch]] = {segment.number: [] for segment in segments}
        for piece, cell in zip(self.pieces, self.table["rows"], strict=True):
            found[piece.segment] += rows_of_cell(piece, cell.as_buffer())
        return found


def collect_cells(frame: DataFrame, segments: Sequence[Segment], title: str) -> CollectedCells:
    """Let Spark's tasks read the cells of a frame, and return them.

    Raises:
        OffsetError: The cells are not those of the segments.
    """
    return CollectedCells(*_collected(frame, segments, f"{title}: read"))


def read_pieces(frame: DataFrame, segments: Sequence[Segment], job: str) -> None:
    """Let Spark's tasks read a frame whose cells the driver does not need.

    Raises:
        OffsetError: The cells are not those of the segments.
    """
    _collected(frame.select("piece"), segments, job)


def _collected(cells: DataFrame, segments: Sequence[Segment], job: str) -> tuple[list[LogPiece], pa.Table]:
    cells.sparkSession.sparkContext.setJobDescription(job)
    pieces, found = in_log_order(cells.toArrow())
    refuse_missing_pieces(pieces, segments)
    return pieces, found


def in_log_order(cells: pa.Table) -> tuple[list[LogPiece], pa.Table]:
    """Return the pieces of cells in log order, and the cells in the same order."""
    pieces = [LogPiece.decoded(text) for text in cells["piece"].to_pylist()]
    order = sorted(range(len(pieces)), key=lambda i: pieces[i].ordinal)
    return [pieces[i] for i in order], cells.take(pa.array(order, pa.int64()))


def refuse_missing_pieces(pieces: Iterable[LogPiece], segments: Sequence[Segment]) -> None:
    """Check that pieces are those of the segments, and of all of their bytes.

    The cells are planned in another process than the segments, from the same offsets. If a file was replaced in
    between, the two may differ.

    Raises:
        OffsetError: The pieces of a segment are missing, or are of another one.
    """
    given = {(piece.segment, piece.file, piece.position, piece.end) for piece in pieces}
    ranges: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for number, file, position, end in given:
        ranges.setdefault((number, file), []).append((position, end))
    for segment in segments:
        own = sorted(ranges.pop((segment.number, segment.file), []))
        if [begin for begin, _ in own] + [segment.end] != [segment.begin] + [end for _, end in own]:
            raise _planned_otherwise(segment.file, segment.source)
    for _, file in ranges:
        raise _planned_otherwise(file, None)


def _planned_otherwise(file: str, source: str | None) -> OffsetError:
    return OffsetError(
        "its rows were read for another part of the log than the batch was planned for",
        file=file,
        source=source,
        advice="a file was replaced while the batch was planned: start again, which repeats the batch",
    )

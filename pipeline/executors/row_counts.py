"""Lets Spark count the rows of a batch that the driver has read itself, without a second reading of its logs.

On one machine large log cells would take longer than the driver's own reading. There the driver stores how many rows
it has read from each byte range, and the tasks of the stream's DataFrame yield that many empty rows. So Spark's
progress and its UI are right, and planning still checks that Spark means the same bytes.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.executors.cells import LOG_CELLS, with_empty_rows
from pipeline.executors.log_piece import CELLS_PER_TASK, LogPiece
from sources.xlog.stream.segment import ByteRange, Segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

FILE = "row-counts.json"


@dataclass(frozen=True)
class RangeCount:
    """How much the driver has read from one byte range."""

    path: str
    begin: int
    end: int
    rows: int
    bytes: int
    """The size of the rows in memory."""


def store_row_counts(folder: str, counts: Iterable[RangeCount]) -> None:
    """Store the counts of a batch for its tasks; if that fails, they read the log to count."""
    path = Path(folder) / FILE
    text = json.dumps([[one.path, one.begin, one.end, one.rows, one.bytes] for one in counts])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(path)
    except OSError as error:
        log.warning("counts of rows cannot be stored, so Spark reads the log again: %s", error)


def stored_row_counts(folder: str) -> Mapping[tuple[str, int, int], RangeCount]:
    """Return the counts of the batch in progress by path, begin and end; none if the driver has not read it."""
    try:
        text = (Path(folder) / FILE).read_text()
    except OSError:
        return {}
    return {
        (path, begin, end): RangeCount(path, begin, end, *sizes)
        for path, begin, end, *sizes in json.loads(text)
    }


def remove_row_counts(folder: str) -> None:
    """Remove the counts of a batch that has ended."""
    shutil.rmtree(folder, ignore_errors=True)


def counted_cells(
    ranges: Sequence[ByteRange], counts: Mapping[tuple[str, int, int], RangeCount], task: int
) -> Iterator[pa.RecordBatch] | None:
    """Return log cells that have no rows, each with empty rows after it; None if a byte range is not counted."""
    found = [counts.get((one.segment.path, one.begin, one.end)) for one in ranges]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    return (
        _counted_cell(byte_range, count, task * CELLS_PER_TASK + index)
        for index, (byte_range, count) in enumerate(zip(ranges, known, strict=True))
    )


def _counted_cell(byte_range: ByteRange, count: RangeCount, ordinal: int) -> pa.RecordBatch:
    piece = LogPiece.of(byte_range, byte_range.segment.instance_uuid, ordinal, count.rows, count.bytes)
    cell = pa.RecordBatch.from_arrays(
        [pa.array([piece.encoded()]), *(pa.nulls(1, field.type) for field in list(LOG_CELLS)[1:])],
        schema=LOG_CELLS,
    )
    return with_empty_rows(cell, count.rows)


class SparkCount:
    """A job of Spark that counts the rows of a batch, while the driver processes it."""

    def __init__(
        self,
        frame: DataFrame,
        segments: Sequence[Segment],
        folder: str,
        counts: Iterable[RangeCount],
        title: str,
    ) -> None:
        from pyspark.util import inheritable_thread_target

        from pipeline.executors.batch_cells import read_pieces

        def count() -> None:
            read_pieces(frame, segments, f"{title}: count")

        store_row_counts(folder, counts)
        pool = ThreadPoolExecutor(1, thread_name_prefix="count")
        self._job: Future[None] = pool.submit(inheritable_thread_target(frame.sparkSession)(count))
        pool.shutdown(wait=False)

    def wait(self) -> None:
        """Wait for the job's end, and raise its error if it has failed."""
        self._job.result()

    def close(self) -> None:
        """Wait for the job's end."""
        self._job.exception()

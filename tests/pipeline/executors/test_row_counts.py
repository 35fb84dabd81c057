"""Spark's tasks count the rows that the driver has stored, and read the log where it has stored none."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from config.lookups import KeyCache
from pipeline.executors.batch_cells import read_cells
from pipeline.executors.cell_reader import CellPartition, CellStreamReader
from pipeline.executors.local import read_locally
from pipeline.executors.log_piece import LogPiece
from pipeline.executors.row_counts import RangeCount, SparkCount, remove_row_counts, store_row_counts
from schemas.errors import OffsetError
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.segment import Segment
from tests.truth import own


@pytest.fixture(scope="module")
def stream() -> LogStream:
    return LogStream(parse_options({"path": str(own().directory("a1")), "start": "history"}))


@pytest.fixture(scope="module")
def segments(stream: LogStream) -> tuple[Segment, ...]:
    start = stream.initial()
    return segments_between(stream, start, stream.latest(start))


def read(stream: LogStream, segments: Sequence[Segment], folder: Path) -> tuple[int, list[LogPiece], bool]:
    """Return the number of Spark's rows, the pieces, and whether some have rows of the log."""
    reader = CellStreamReader(stream.options, str(folder))
    count, pieces, has_rows = 0, [], False
    for number, task in enumerate(tasks_of(stream, segments)):
        for cells in reader.read(CellPartition(task, number, counts_folder=str(folder))):
            count += cells.num_rows
            pieces += [LogPiece.decoded(text) for text in cells.column("piece").drop_null().to_pylist()]
            has_rows |= cells.column("rows").null_count < cells.num_rows
    return count, pieces, has_rows


def total(pieces: Sequence[LogPiece]) -> tuple[int, int]:
    return sum(piece.rows for piece in pieces), sum(piece.bytes for piece in pieces)


def test_counted_rows_are_those_of_the_log(
    stream: LogStream, segments: tuple[Segment, ...], tmp_path: Path
) -> None:
    found = read_locally(stream, segments, 1 << 30)
    assert found is not None
    _, pieces, has_rows = read(stream, segments, tmp_path / "none")
    assert has_rows
    store_row_counts(str(tmp_path / "all"), found.counts)
    counted, counted_pieces, has_rows = read(stream, segments, tmp_path / "all")
    assert not has_rows
    assert total(counted_pieces) == total(pieces)
    assert counted >= total(pieces)[0] > 1000
    assert {(one.file, one.position, one.end) for one in counted_pieces} == {
        (one.file, one.position, one.end) for one in pieces
    }


def test_what_the_driver_has_not_counted_is_read(
    stream: LogStream, segments: tuple[Segment, ...], tmp_path: Path
) -> None:
    found = read_locally(stream, segments, 1 << 30)
    assert found is not None
    others = [RangeCount(one.path, one.begin, one.end + 1, 7, 7) for one in found.counts]
    store_row_counts(str(tmp_path), others)
    assert read(stream, segments, tmp_path)[2]
    remove_row_counts(str(tmp_path))
    assert not tmp_path.exists()


def test_counts_that_cannot_be_stored_are_no_error(
    stream: LogStream, segments: tuple[Segment, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As nothing is one that is wrong with the folder of key copies."""
    (tmp_path / "taken").write_text("no folder")
    folder = tmp_path / "taken" / "counts"
    store_row_counts(str(folder), [RangeCount("a", 0, 1, 1, 1)])
    assert "Spark reads the log again" in caplog.text
    assert read(stream, segments, folder)[2]
    remove_row_counts(str(folder))


def test_rows_that_need_more_memory_than_the_limit_are_left_to_tasks(
    stream: LogStream, segments: tuple[Segment, ...]
) -> None:
    assert read_locally(stream, segments, 1000) is None


@pytest.mark.spark
def test_a_count_of_other_bytes_is_an_error(
    spark: SparkSession, stream: LogStream, segments: tuple[Segment, ...], tmp_path: Path
) -> None:
    frame = read_cells(spark, stream, segments[:1])
    count = SparkCount(frame, segments, str(tmp_path), [], "batch 1")
    count.close()
    with pytest.raises(OffsetError, match="another part of the log"):
        count.wait()


def test_deployments_with_one_cache_have_folders_of_their_own() -> None:
    cache = KeyCache(path="/cache")
    one, other = cache.counts_folder("/checkpoints/one"), cache.counts_folder("/checkpoints/other")
    assert one != other
    assert {Path(folder).parent for folder in (one, other)} == {Path("/cache/counts")}

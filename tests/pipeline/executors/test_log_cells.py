"""Log cells have all rows of the log, and what planning needs of them; cells of another part of a log are refused."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.executors import log_cells as module
from pipeline.executors.batch_cells import in_log_order, refuse_missing_pieces
from pipeline.executors.choice import (
    CELL_LOG_BYTES,
    DRIVER_LOG_BYTES_ON_CLUSTER,
    is_read_by_driver,
    max_driver_log_bytes,
)
from pipeline.executors.log_cells import CellDigest, CellLog, CellRows, log_cells, rows_of_cell
from pipeline.executors.log_piece import LogPiece
from pipeline.plan.rows.position import with_spaced_numbers
from pipeline.plan.rows.summary import concat_summaries, summarize_rows
from schemas.errors import OffsetError
from sources.xlog.options import XlogOptions, parse_options
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.read import read_range
from sources.xlog.stream.segment import ByteRange, Segment
from tests.truth import own

MIB = 1 << 20


@pytest.fixture(scope="module")
def tasks() -> tuple[XlogOptions, tuple[Segment, ...], list[tuple[ByteRange, ...]]]:
    """Return the tasks of a batch that reads a whole recording: one task a block or so."""
    path = str(own().directory("a1"))
    stream = LogStream(parse_options({"path": path, "start": "history", "splitBytes": "2000"}))
    start = stream.initial()
    segments = with_spaced_numbers(segments_between(stream, start, stream.latest(start)))
    return stream.options, segments, tasks_of(stream, segments)


def cells_of(
    options: XlogOptions, tasks: Sequence[Sequence[ByteRange]], *, holds_rows: bool = True
) -> pa.Table:
    return pa.Table.from_batches(
        [
            cell
            for number, task in enumerate(tasks)
            for cell in log_cells(task, options, number, holds_rows=holds_rows)
        ]
    )


@pytest.fixture(params=[module.MAX_DECODED_BYTES, 5_000])
def _cells_of_two_sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DECODED_BYTES", request.param)


@pytest.mark.usefixtures("_cells_of_two_sizes")
def test_cells_have_the_rows_of_the_log(
    tasks: tuple[XlogOptions, tuple[Segment, ...], list[tuple[ByteRange, ...]]],
) -> None:
    options, segments, parts = tasks
    pieces, cells = in_log_order(cells_of(options, parts))
    refuse_missing_pieces(pieces, segments)
    assert len(pieces) >= len(parts) > len(segments)
    read = pa.Table.from_batches(
        [
            rows
            for task in parts
            for one in task
            for rows in read_range(one, replace(options, with_replicaset=False))
        ]
    )
    found = [
        rows
        for piece, cell in zip(pieces, cells["rows"], strict=True)
        for rows in rows_of_cell(piece, cell.as_buffer())
    ]
    assert pa.Table.from_batches(found).equals(read)
    assert sum(piece.rows for piece in pieces) == read.num_rows
    digests = [CellDigest.decoded(data) for data in cells["digest"].to_pylist()]
    whole = [
        summarize_rows(rows, one.segment.number)
        for task in parts
        for one in task
        for rows in read_range(one, replace(options, with_replicaset=False))
    ]
    assert concat_summaries([one.summary for one in digests]) == concat_summaries(whole)
    writers = [
        (run["replica_id"], run["first_lsn"] + i)
        for runs in cells["writers"].to_pylist()
        for run in runs
        for i in range(run["rows"])
    ]
    named = pc.fill_null(read["replica_id"], 0).to_numpy()
    assert [one for one, _ in writers] == named.tolist()
    assert [lsn for one, lsn in writers if one > 0] == read["lsn"].to_numpy()[named > 0].tolist()


@pytest.mark.usefixtures("_cells_of_two_sizes")
def test_rows_that_cells_do_not_hold_are_read_again(
    tasks: tuple[XlogOptions, tuple[Segment, ...], list[tuple[ByteRange, ...]]],
) -> None:
    options, segments, parts = tasks
    held, kept = cells_of(options, parts), cells_of(options, parts, holds_rows=False)
    pieces = [LogPiece.decoded(text) for text in kept["piece"].to_pylist()]
    assert kept.drop_columns("rows").equals(held.drop_columns("rows"))
    assert [cell.as_buffer() is None for cell in kept["rows"]] == [piece.rows > 0 for piece in pieces]
    cell_rows = CellRows(CellLog({one.number: one for one in segments}, options))
    for piece, one, other in zip(pieces, kept["rows"], held["rows"], strict=True):
        assert cell_rows.of(piece, one.as_buffer()) == rows_of_cell(piece, other.as_buffer())
    first = next(piece for piece in pieces if piece.rows)
    other = replace(first, rows=first.rows + 1)
    with pytest.raises(OffsetError, match="other rows than when the batch was planned"):
        cell_rows.of(other, None)


def test_each_row_of_the_log_is_a_row_of_spark(
    tasks: tuple[XlogOptions, tuple[Segment, ...], list[tuple[ByteRange, ...]]],
) -> None:
    options, _, parts = tasks
    counted = pa.Table.from_batches(
        [
            cell
            for number, task in enumerate(parts)
            for cell in log_cells(task, options, number, counts_rows=True)
        ]
    )
    with_cells = counted.filter(pc.is_valid(counted["rows"]))
    rows = [LogPiece.decoded(text).rows for text in with_cells["piece"].to_pylist()]
    assert counted.num_rows == sum(max(one, 1) for one in rows)
    assert with_cells.combine_chunks().equals(cells_of(options, parts).combine_chunks())
    assert len(rows) == sum(len(task) for task in parts), "a small part of a log is one cell"


def piece_of(segment: Segment, position: int, end: int) -> LogPiece:
    return LogPiece(
        segment.replicaset_uuid, segment.source, None, segment.file, segment.number, position, end, 0, 1, 1
    )


@pytest.mark.parametrize(
    "ranges",
    [[], [(10, 20)], [(0, 10)], [(0, 9), (10, 20)], [(0, 10), (10, 21)], [(0, 12), (10, 20)]],
)
def test_a_missing_part_is_refused(
    ranges: list[tuple[int, int]],
    tasks: tuple[XlogOptions, tuple[Segment, ...], list[tuple[ByteRange, ...]]],
) -> None:
    segment = replace(tasks[1][0], begin=0, end=20)
    refuse_missing_pieces([piece_of(segment, 10, 20), piece_of(segment, 0, 10)], [segment])
    with pytest.raises(OffsetError, match="another part of the log"):
        refuse_missing_pieces([piece_of(segment, *one) for one in ranges], [segment])


def test_a_piece_of_another_file_is_refused(
    tasks: tuple[XlogOptions, tuple[Segment, ...], list[tuple[ByteRange, ...]]],
) -> None:
    segment = replace(tasks[1][0], begin=0, end=20)
    other = replace(segment, file="other.xlog")
    with pytest.raises(OffsetError, match="another part of the log"):
        refuse_missing_pieces([piece_of(segment, 0, 20), piece_of(other, 0, 20)], [segment])


@pytest.mark.parametrize(
    ("choice", "is_cluster", "expected"),
    [
        ("auto", False, 256 * MIB),
        ("auto", True, DRIVER_LOG_BYTES_ON_CLUSTER),
        ("driver", True, 256 * MIB),
        ("tasks", False, 0),
    ],
)
def test_where_a_batch_is_processed(choice: str, is_cluster: bool, expected: int) -> None:
    assert max_driver_log_bytes(choice, 256 * MIB, is_cluster=is_cluster) == expected  # type: ignore[arg-type]
    assert max_driver_log_bytes("auto", 1, is_cluster=is_cluster) == 1
    assert np.iinfo(np.int32).max > expected


@pytest.mark.parametrize(
    ("choice", "log_bytes", "is_cluster", "is_first", "expected"),
    [
        ("auto", CELL_LOG_BYTES, False, False, False),
        ("auto", CELL_LOG_BYTES + 1, False, False, True),
        ("driver", CELL_LOG_BYTES + 1, False, False, True),
        ("auto", 1, False, True, True),
        ("driver", CELL_LOG_BYTES + 1, True, True, False),
        ("tasks", CELL_LOG_BYTES + 1, False, True, False),
    ],
)
def test_when_the_driver_reads_a_batch_itself(
    choice: str, log_bytes: int, is_cluster: bool, is_first: bool, expected: bool
) -> None:
    found = is_read_by_driver(choice, log_bytes, is_cluster=is_cluster, is_first=is_first)  # type: ignore[arg-type]
    assert found is expected

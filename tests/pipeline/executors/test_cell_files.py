"""Rows of cells in files are those that were written, also after the files are gone; without a folder they stay."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from config.lookups import KeyCache
from pipeline.executors.cell_files import CellFiles, read_cell_file, remove_cell_files, write_cell_file
from pipeline.executors.log_cells import LogPiece, log_cells, rows_of_cell
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.log_stream import LogStream
from tests.truth import own


def test_rows_stay_readable_after_their_file_is_removed(tmp_path: Path) -> None:
    rows = pa.table({"lsn": range(1000), "tuple": [b"x" * n for n in range(1000)]})
    folder = str(tmp_path / "cells")
    path = write_cell_file(folder, rows)
    assert path is not None
    found = read_cell_file(path)
    remove_cell_files(folder)
    assert not Path(path).exists()
    assert found.equals(rows)


def test_cells_hold_their_rows_if_no_file_can_be_written(tmp_path: Path) -> None:
    stream = LogStream(parse_options({"path": str(own().directory("a1")), "start": "history"}))
    start = stream.initial()
    segments = segments_between(stream, start, stream.latest(start))
    (tmp_path / "taken").write_text("no folder")
    found = {}
    for folder in (str(tmp_path / "cells"), str(tmp_path / "taken"), None):
        pieces, cells = [], []
        for number, task in enumerate(tasks_of(stream, segments)):
            for cell in log_cells(task, stream.options, number, folder=folder):
                pieces.append(LogPiece.decoded(cell.column("piece")[0].as_py()))
                cells.append(cell.column("rows")[0].as_buffer())
        assert all(
            (piece.path is None) is (cell is not None) for piece, cell in zip(pieces, cells, strict=True)
        )
        assert (pieces[0].path is not None) is (folder == str(tmp_path / "cells"))
        read = [rows_of_cell(*one) for one in zip(pieces, cells, strict=True)]
        found[folder] = pa.Table.from_batches([batch for rows in read for batch in rows])
    first, *others = found.values()
    assert first.num_rows > 1000
    assert all(first.equals(other) for other in others)


def test_only_batches_between_two_sizes_have_files() -> None:
    stream = LogStream(parse_options({"path": str(own().directory("a1")), "start": "history"}))
    start = stream.initial()
    segments = segments_between(stream, start, stream.latest(start))
    size = sum(segment.end - segment.begin for segment in segments)
    folders = [
        CellFiles("f", *limits).folder_for(segments) for limits in ((0, size), (0, size - 1), (size, size))
    ]
    assert folders == ["f", None, None]


def test_deployments_with_one_cache_have_folders_of_their_own() -> None:
    cache = KeyCache(path="/cache")
    one, other = cache.cell_folder("/checkpoints/one"), cache.cell_folder("/checkpoints/other")
    assert one != other
    assert {Path(folder).parent for folder in (one, other)} == {Path("/cache/cells")}

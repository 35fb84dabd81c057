"""Every row and column of real servers' files, against the plain reader."""

from pathlib import Path

import pytest

from sources.xlog.reader import reader
from tests.sources.xlog import plain, samples

FILES = samples.recordings()


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
def test_every_row_is_what_the_plain_reader_reads(path: Path) -> None:
    expected = plain.read(path.read_bytes(), path.name)
    assert samples.table(str(path)).to_pylist() == expected


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
def test_the_end_is_behind_the_last_block(path: Path) -> None:
    data = path.read_bytes()
    *_, (position, _) = [(len(data[: data.index(b"\n\n") + 2]), b""), *plain.blocks_of(data)]
    end = reader.end_of_complete_blocks(*reader.open_fs(str(path)))
    assert end.has_eof_marker == data.endswith(bytes.fromhex("d510aded"))
    assert end.position == len(data) - (4 if end.has_eof_marker else 0) > position - 1


def test_headers_are_the_same_numbers() -> None:
    for path in FILES:
        rows = plain.read(path.read_bytes(), path.name)
        parts = list(reader.read_headers(*reader.open_fs(str(path))))
        for name in ("position", "row", "lsn", "tsn", "replica_id", "group_id", "space_id"):
            found = [value for part in parts for value in getattr(part, name).tolist()]
            assert found == [-1 if row[name] is None else row[name] for row in rows], (path, name)
        assert [v for part in parts for v in part.is_commit.tolist()] == [row["is_commit"] for row in rows]

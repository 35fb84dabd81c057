"""Rows in pure Python: equal to the compiled reader's and to the server's own, damage named, a torn tail waited for."""

import io
import shutil
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import XlogChecksumError, XlogError, XlogMagicError
from sources.xlog.reader.plain_rows import PlainRow, decode_rows, read_blocks, read_meta
from tests.sources.xlog import samples
from tests.sources.xlog.format.test_pairs import LOGS, compare, pairs

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SAME = (
    *("position", "row", "type", "replica_id", "group_id", "lsn", "tsn", "is_commit"),
    *("space_id", "index_base", "key", "tuple", "operations"),
)


def plain(path: Path) -> list[PlainRow]:
    with path.open("rb") as stream:
        meta = read_meta(stream, path.name)
        found = read_blocks(stream, meta.length, path.name)
        return [row for begin, data, _ in found for row in decode_rows(data, begin, path.name)]


@pytest.mark.parametrize(
    "path", [one for one in samples.recordings() if one.suffix in (".xlog", ".snap")], ids=lambda p: p.name
)
def test_rows_are_those_of_the_compiled_reader(path: Path) -> None:
    expected = samples.table(str(path)).to_pylist()
    found = plain(path)
    assert [[getattr(row, name) for name in SAME] for row in found] == [
        [row[name] for name in SAME] for row in expected
    ]
    for one, other in zip(found, expected, strict=True):
        if one.timestamp is not None:
            assert EPOCH + timedelta(microseconds=one.timestamp) == other["timestamp"]


@pytest.mark.live
@pytest.mark.skipif(shutil.which("tarantool") is None, reason="there is no tarantool on PATH")
def test_rows_are_those_of_the_servers_own_reader(tmp_path: Path) -> None:
    assert LOGS
    for path, theirs in zip(LOGS, pairs(tmp_path, LOGS), strict=True):
        compare([as_reader_has_it(row) for row in plain(path)], theirs)


def as_reader_has_it(row: PlainRow) -> dict[str, Any]:
    found = asdict(row)
    found["timestamp"] = None if row.timestamp is None else EPOCH + timedelta(microseconds=row.timestamp)
    if row.key is not None or row.tuple is not None:
        found["body"] = None
    return found


def read(data: bytes) -> list[int]:
    stream = io.BytesIO(data)
    meta = read_meta(stream, "x.xlog")
    found = read_blocks(stream, meta.length, "x.xlog")
    return [row.lsn or 0 for begin, block, _ in found for row in decode_rows(block, begin, "x.xlog")]


def test_a_torn_tail_is_not_there_yet() -> None:
    whole = samples.log(*samples.blocks(2), marker=False)
    lsns = read(whole)
    assert len(lsns) == 4
    last = len(samples.blocks(2)[1])
    for cut in range(1, last + 1):
        assert read(whole[:-cut]) == lsns[:2]
    assert read(whole + bytes(64)) == lsns


@pytest.mark.parametrize(("index", "kind"), [(-1, XlogChecksumError), (0, XlogMagicError)])
def test_damage_is_named_with_its_position(index: int, kind: type[XlogError]) -> None:
    parts = samples.blocks(2)
    whole = bytearray(samples.log(*parts, marker=False))
    begin = len(whole) - len(parts[1])
    whole[begin if index == 0 else len(whole) - 1] ^= 1
    with pytest.raises(kind, match=f"offset {begin}"):
        read(bytes(whole))

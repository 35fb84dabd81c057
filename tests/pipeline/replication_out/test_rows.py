"""Rows of the stream as bytes: our own reader, as a log's block, reads what was meant."""

from pathlib import Path
from typing import Any

import msgpack
import pyarrow.fs
import pytest

from pipeline.replication_out import rows
from pipeline.replication_out.rows import OutgoingRow, pack
from schemas.iproto import RequestType
from schemas.space import KeyPart
from sources.xlog.format.meta import Meta
from sources.xlog.format.writer import XlogWriter
from sources.xlog.reader import reader


def read(tmp_path: Path, data: bytes) -> list[dict[str, Any]]:
    path = tmp_path / "00000000000000000000.xlog"
    meta = Meta("XLOG", "0.13", "a0000000-0000-4000-8000-000000000001", {})
    with XlogWriter(path, meta, replace=True) as writer:
        writer.write_block(data)
    batches = reader.read_rows(pyarrow.fs.LocalFileSystem(), str(path))
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("first", [1, 200, 2**40])
def test_a_transaction(tmp_path: Path, first: int) -> None:
    changes = [
        rows.replace_row(512, pack([1, "x"])),
        rows.delete_row(70_000, pack([7])),
        OutgoingRow(RequestType.NOP),
    ]
    found = read(tmp_path, rows.encode_transaction(changes, 3, first, 1.5))
    assert [row["type"] for row in found] == ["REPLACE", "DELETE", "NOP"]
    assert [row["lsn"] for row in found] == [first, first + 1, first + 2]
    assert {row["tsn"] for row in found} == {first}
    assert [row["is_commit"] for row in found] == [False, False, True]
    assert {row["replica_id"] for row in found} == {3}
    assert [row["space_id"] for row in found] == [512, 70_000, None]
    assert found[0]["tuple"] == pack([1, "x"])
    assert found[1]["key"] == pack([7])
    assert found[0]["timestamp"].timestamp() == 1.5


def test_nops(tmp_path: Path) -> None:
    last = 2**33 + 300
    found = read(tmp_path, rows.nop_rows(31, 2**33, last, 2.0).tobytes())
    assert [row["lsn"] for row in found] == list(range(2**33, last + 1))
    assert {row["tsn"] for row in found} == {2**33}
    assert [row["is_commit"] for row in found] == [False] * 300 + [True]
    assert {(row["type"], row["replica_id"]) for row in found} == {("NOP", 31)}


def test_one_row_is_a_transaction(tmp_path: Path) -> None:
    (row,) = read(tmp_path, rows.encode_transaction([rows.replace_row(512, pack([1]))], 1, 9, 1.0))
    assert (row["lsn"], row["tsn"], row["is_commit"]) == (9, 9, True)
    (nop,) = read(tmp_path, rows.nop_rows(2, 5, 5, 1.0).tobytes())
    assert (nop["lsn"], nop["tsn"], nop["is_commit"]) == (5, 5, True)


@pytest.mark.parametrize(
    ("fields", "indices", "key"),
    [
        ([1, "b"], [0], [1]),
        ([1, {"deep": [1, [2]]}, "b", None, 4.0], [4, 2], [4.0, "b"]),
        ([msgpack.ExtType(2, bytes(16)), b"bin"], [0, 1], [msgpack.ExtType(2, bytes(16)), b"bin"]),
        (list(range(40)), list(range(20)), list(range(20))),
    ],
)
def test_keys(fields: list[Any], indices: list[int], key: list[Any]) -> None:
    parts = [KeyPart(index, "scalar") for index in indices]
    assert rows.key_of(pack(fields), parts) == pack(key)


def test_a_key_stays_as_it_stands() -> None:
    """An unsigned key of another width is another key to Tarantool's oldest indexes."""
    assert rows.key_of(b"\x92\xcd\x00\x02\x01", [KeyPart(0, "unsigned")]) == b"\x91\xcd\x00\x02"


def test_rows_of_a_snapshot() -> None:
    found = list(rows.snapshot_rows([(280, pack([1])), (512, pack([2]))], 1.5))
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(b"".join(found))
    assert list(unpacker) == [
        {0: 2, 3: 1, 4: 1.5},
        {0x10: 280, 0x21: [1]},
        {0: 2, 3: 2, 4: 1.5},
        {0x10: 512, 0x21: [2]},
    ]

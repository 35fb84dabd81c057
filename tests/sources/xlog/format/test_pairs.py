"""Compares the reader with Tarantool's own `xlog.pairs`: on real servers' files, and on files that the writer makes."""

import base64
import datetime
import itertools
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgpack
import pytest

from schemas.iproto import RequestType
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import Meta
from sources.xlog.format.writer import XlogWriter
from tests.bodies import encode_body
from tests.sources.xlog import samples

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("tarantool") is None, reason="there is no tarantool on PATH"),
]

SCRIPT = """
local xlog, msgpack, digest = require('xlog'), require('msgpack'), require('digest')
for _, path in ipairs(arg) do
    print('file')
    for lsn, row in xlog.pairs(path) do
        print(digest.base64_encode(msgpack.encode(row), {nowrap = true}))
    end
end
"""
LOGS = [path for path in samples.recordings() if "2.6.0" in path.parts and path.suffix in (".xlog", ".snap")]
OF_XLOG = {
    "tuple": "tuple",
    "key": "key",
    "operations": "operations",
    "space_id": "space_id",
    "index_base": "index_base",
}


def pairs(folder: Path, paths: list[Path]) -> list[list[dict[str, Any]]]:
    """Return what `xlog.pairs` yields for each file."""
    script = folder / "pairs.lua"
    script.write_text(SCRIPT)
    command = ["tarantool", str(script), *map(str, paths)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    files: list[list[dict[str, Any]]] = []
    for line in output.split():
        if line == "file":
            files.append([])
        else:
            files[-1].append(decoded(base64.b64decode(line)))
    return files


def decoded(data: bytes) -> Any:
    return msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape")


def seen_by_pairs(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of ours in the shape and words of `xlog.pairs`."""
    header = {name: row[name] for name in ("type", "replica_id", "group_id", "lsn") if row[name] is not None}
    if row["timestamp"] is not None:
        header["timestamp"] = (row["timestamp"] - EPOCH) / datetime.timedelta(seconds=1)
    body = {}
    for name in OF_XLOG:
        value = row[name]
        if value is not None:
            body[name] = decoded(value) if isinstance(value, bytes) else value
    return {"HEADER": header, "BODY": body}


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def compare(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert len(ours) == len(theirs)
    for row, pair in zip(ours, theirs, strict=True):
        found, header, body = seen_by_pairs(row), pair["HEADER"], pair.get("BODY", {})
        body = {} if isinstance(body, list) else dict(body)  # a body of the protocol has numbers for keys
        if row["type"] == "UPDATE":  # by its key's number, an UPDATE's operations are called tuple there
            body["operations"] = body.pop("tuple")
        assert found["HEADER"].pop("timestamp") == pytest.approx(header["timestamp"], abs=1e-6)
        # What 2.6 has no name for, it shows as a number.
        assert header["type"] in (name := found["HEADER"].pop("type"), int(RequestType[name]))
        for name, value in found["HEADER"].items():
            assert header[name] == value, name
        if row["body"] is None:
            assert set(found["BODY"]) == {name for name in body if name in OF_XLOG}
            for name, value in found["BODY"].items():
                assert normal(body[name]) == normal(value), (name, row)


def normal(value: Any) -> Any:
    """Return a comparable value: in Lua an empty map equals an empty array, and NaN does not equal itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return [] if not value else {key: normal(inner) for key, inner in value.items()}
    return [normal(inner) for inner in value] if isinstance(value, list) else value


def test_recordings_read_as_tarantool_reads_them(tmp_path: Path) -> None:
    if not LOGS:
        pytest.skip("there are no recordings")
    for path, theirs in zip(LOGS, pairs(tmp_path, LOGS), strict=True):
        compare(samples.table(str(path)).to_pylist(), theirs)


def transactions() -> list[list[bytes]]:
    """Return transactions of all kinds of rows."""
    pack = msgpack.packb
    wide = pack(
        [1, "text", b"\x00\xff", -1, 2**64 - 1, 1.5, None, True, [1, [2]], {"a": {"b": 1}}, "x" * 3000]
    )
    bodies = [
        (RequestType.INSERT, encode_body(space_id=512, tuple_=wide)),
        (RequestType.REPLACE, encode_body(space_id=70000, tuple_=pack([2]))),
        (RequestType.DELETE, encode_body(space_id=512, key=pack([1]))),
        (
            RequestType.UPDATE,
            encode_body(
                space_id=512, index_base=1, key=pack([1]), operations=pack([["+", 2, 1]]), is_update=True
            ),
        ),
        (
            RequestType.UPSERT,
            encode_body(space_id=512, index_base=1, tuple_=pack([1, 2]), operations=pack([["=", 2, 1]])),
        ),
        (RequestType.NOP, b""),
    ]
    time = 1700000000.25
    single = [
        [encode_row(kind, body, lsn=lsn, replica_id=1, timestamp=time)]
        for lsn, (kind, body) in enumerate(bodies, 6)
    ]
    several = [
        encode_row(kind, body, lsn=lsn, tsn=20, replica_id=31, is_commit=lsn == 25, timestamp=time)
        for lsn, (kind, body) in enumerate(bodies, 20)
    ]
    local = [
        encode_row(
            RequestType.INSERT,
            encode_body(space_id=600, tuple_=b"\x91\x01"),
            lsn=3,
            group_id=1,
            timestamp=time,
        )
    ]
    return [*single, several, local]


WAYS = list(itertools.product(("XLOG", "SNAP"), (None, True, False), (True, False)))


def test_tarantool_reads_what_the_writer_writes(tmp_path: Path) -> None:
    paths = []
    for signature, (filetype, compress, one_a_block) in enumerate(WAYS):
        path = tmp_path / f"{signature:020}.{filetype.lower()}"
        with XlogWriter(path, Meta(filetype, "0.13", samples.INSTANCE, {1: 5}), compress=compress) as log:
            for rows in transactions() * 5:
                log.write(rows)
                if one_a_block:
                    log.flush()
        paths.append(path)
    for path, theirs in zip(paths, pairs(tmp_path, paths), strict=True):
        compare(samples.table(str(path), closed=True).to_pylist(), theirs)
        assert all("tuple" in row["BODY"] for row in theirs if row["HEADER"]["type"] == "INSERT")
        lsns = [6, 7, 8, 9, 10, 11, *range(20, 26), 3]
        assert [row["HEADER"].get("lsn") for row in theirs] == lsns * 5

"""A second reader of log files, as plain as can be: struct, msgpack, crcmod, one Python object after another.

It shares no code with the reader that it checks, reads whole files only, and knows no damage.
"""

import datetime
from collections.abc import Iterator
from typing import Any

import crcmod
import msgpack
import zstandard

crc32c = crcmod.mkCrcFun(0x11EDC6F41, initCrc=0, rev=True, xorOut=0)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NAMES = {
    0: "OK",
    2: "INSERT",
    3: "REPLACE",
    4: "UPDATE",
    5: "DELETE",
    9: "UPSERT",
    12: "NOP",
    17: "INSERT_ARROW",
    18: "DELETE_RANGE",
    30: "RAFT",
    31: "RAFT_PROMOTE",
    32: "RAFT_DEMOTE",
    40: "RAFT_CONFIRM",
    41: "RAFT_ROLLBACK",
    100: "RUNINFO",
    101: "PAGEINFO",
    102: "ROWINDEX",
}


def blocks_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (position, rows) of the blocks of a whole file."""
    position = data.index(b"\n\n") + 2
    while position < len(data) and data[position : position + 4] != bytes.fromhex("d510aded"):
        magic = data[position : position + 4]
        numbers = msgpack.Unpacker()
        numbers.feed(data[position + 4 : position + 19])
        length, _, crc = (numbers.unpack() for _ in range(3))
        rows = data[position + 19 : position + 19 + length]
        assert crc32c(rows) == crc
        if magic == bytes.fromhex("d5ba0bba"):
            rows = zstandard.ZstdDecompressor().decompressobj().decompress(rows)
        yield position, rows
        position += 19 + length


def signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def row_of(header: dict[int, Any], body: dict[int, bytes] | None, whole: bytes | None) -> dict[str, Any]:
    """Return a row's columns, from `type` on."""
    kind, lsn, flags = header.get(0), header.get(3), header.get(9, 0)
    fields: dict[int, Any] = body or {}
    changed = {} if kind is not None and kind >= 30 else fields
    by_fields = changed if kind in (2, 3, 4, 5, 9) else {}
    update = kind == 4
    key, tuple_ = by_fields.get(0x20), None if update else by_fields.get(0x21)
    operations = by_fields.get(0x21, by_fields.get(0x28)) if update else by_fields.get(0x28)
    has_more = kind in (4, 9) and 0x2D in changed
    time = header.get(4)
    return {
        "type": None if kind is None else NAMES.get(kind, f"TYPE_{kind}"),
        "replica_id": header.get(2),
        "group_id": header.get(7),
        "lsn": lsn,
        "tsn": None if lsn is None else signed(lsn - header.get(8, 0)),
        "is_commit": bool(flags & 1) or 8 not in header,
        "wait_sync": bool(flags & 2),
        "wait_ack": bool(flags & 4),
        "timestamp": None if time is None else EPOCH + datetime.timedelta(microseconds=round(time * 1e6)),
        "space_id": None if 0x10 not in changed else msgpack.unpackb(changed[0x10]),
        "index_base": None if 0x15 not in changed else msgpack.unpackb(changed[0x15]),
        "key": key,
        "tuple": tuple_,
        "operations": operations,
        "body": whole if has_more or (key is None and tuple_ is None and operations is None) else None,
    }


def rows_of(rows: bytes) -> Iterator[dict[str, Any]]:
    at = 0
    while at < len(rows):
        unpacker = msgpack.Unpacker(strict_map_key=False, raw=True)
        unpacker.feed(rows[at:])
        header = unpacker.unpack()
        begin = unpacker.tell()
        if header.get(0) == 12 or at + begin == len(rows):
            yield row_of(header, None, None)
            at += begin
            continue
        body = {}
        for _ in range(unpacker.read_map_header()):
            key = unpacker.unpack()
            first = unpacker.tell()
            unpacker.skip()
            body[key] = rows[at + first : at + unpacker.tell()]
        yield row_of(header, body, rows[at + begin : at + unpacker.tell()])
        at += unpacker.tell()


def read(data: bytes, file: str) -> list[dict[str, Any]]:
    """Return all rows of a whole file, with all columns."""
    lines = data[: data.index(b"\n\n")].decode().split("\n")[2:]
    instance = next((line.split(": ")[1] for line in lines if line.startswith(("Instance", "Server"))), None)
    return [
        {"file": file, "position": position, "row": number, "instance_uuid": instance, **row}
        for position, rows in blocks_of(data)
        for number, row in enumerate(rows_of(rows))
    ]

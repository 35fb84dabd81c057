"""Builds the bytes of a master's stream with the `msgpack` package, and the same rows encoded as in a log."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgpack

SYNC = 2
INSERT, REPLACE, NOP = 2, 3, 12


@dataclass(frozen=True)
class Row:
    replica: int
    lsn: int
    tsn: int
    is_commit: bool
    time: float
    body: bytes | None


def with_length(message: bytes) -> bytes:
    return b"\xce" + struct.pack(">I", len(message)) + message


def header_map(row: Row) -> dict[int, int | float]:
    header: dict[int, int | float] = {
        0: NOP if row.body is None else REPLACE,
        2: row.replica,
        3: row.lsn,
        4: row.time,
    }
    if row.tsn != row.lsn or not row.is_commit:
        header[8] = row.lsn - row.tsn
        if row.is_commit:
            header[9] = 1
    return header


def packet_bytes(row: Row) -> bytes:
    header = header_map(row)
    return with_length(msgpack.packb({0: header.pop(0), 1: SYNC, **header}) + (row.body or b""))


def log_bytes(rows: Iterable[Row]) -> bytes:
    return b"".join(msgpack.packb(header_map(row)) + (row.body or b"") for row in rows)


def heartbeat(time: float = 1.5, replica: int = 1) -> bytes:
    return with_length(msgpack.packb({0: 0, 1: SYNC, 2: replica, 4: time}))


def transaction(replica: int, first: int, size: int, time: float = 1.0, payload: bytes = b"x") -> list[Row]:
    body = msgpack.packb({0x10: 512, 0x21: [1, payload]})
    return [
        Row(replica, first + k, first, k == size - 1, time, None if k % 5 == 4 else body) for k in range(size)
    ]


def stream(transactions: Sequence[Sequence[Row]]) -> bytes:
    return b"".join(packet_bytes(row) for rows in transactions for row in rows)

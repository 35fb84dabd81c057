"""Encodes the rows of the stream: transactions of one instance, with consecutive lsns, and snapshots.

Pure. All headers have the same size, so that many rows are encoded quickly; Tarantool reads integers of any width.
Source: `xrow_header_encode` in Tarantool's `src/box/xrow.c`.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from schemas.iproto import BodyKey, HeaderKey, RequestType, RowFlag
from schemas.space import KeyPart
from sources.xlog.format.arrays import Bytes
from sources.xlog.format.encode import encode_row

NOPS_PER_TRANSACTION = 10_000
"""The maximum number of rows of a transaction of NOPs."""

_HEADER_FORMAT = struct.Struct(">3B 2B BBQ BBd BBI 2B")
HEADER_BYTES = _HEADER_FORMAT.size
"""The size of a row without its body."""

_MAP_OF_6, _UINT64, _UINT32, _DOUBLE = 0x86, 0xCF, 0xCE, 0xCB


@dataclass(frozen=True)
class OutgoingRow:
    """One row without its header."""

    kind: RequestType
    body: bytes = b""


def pack(value: Any) -> bytes:
    """Return a value as MessagePack; a decoded text becomes its original bytes, even if these are not UTF-8."""
    packed: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogateescape")
    return packed


def replace_row(space_id: int, tuple_: bytes) -> OutgoingRow:
    """Return the row that puts a tuple into a space."""
    return OutgoingRow(RequestType.REPLACE, _body(space_id, BodyKey.TUPLE, tuple_))


def delete_row(space_id: int, key: bytes) -> OutgoingRow:
    """Return the row that removes a key from a space."""
    return OutgoingRow(RequestType.DELETE, _body(space_id, BodyKey.KEY, key))


def encode_transaction(
    changes: Sequence[OutgoingRow], replica_id: int, first_lsn: int, timestamp: float
) -> bytes:
    """Return the encoded rows of one transaction, with consecutive lsns."""
    if len(changes) == 1:
        (one,) = changes
        return encode_row(one.kind, one.body, timestamp=timestamp, replica_id=replica_id, lsn=first_lsn)
    last = len(changes) - 1
    return b"".join(
        _header(one.kind, replica_id, first_lsn + i, timestamp, i, is_last=i == last) + one.body
        for i, one in enumerate(changes)
    )


def nop_rows(replica_id: int, first_lsn: int, last_lsn: int, timestamp: float) -> Bytes:
    """Return the encoded rows of one transaction: a NOP for each lsn from `first_lsn` to `last_lsn`."""
    count = last_lsn - first_lsn + 1
    row = _header(RequestType.NOP, replica_id, 0, timestamp, 0, is_last=False)
    rows = np.tile(np.frombuffer(row, np.uint8), (count, 1))
    lsns = np.arange(first_lsn, last_lsn + 1, dtype=">u8")
    rows[:, 7:15] = lsns.view(np.uint8).reshape(count, 8)
    positions = np.arange(count, dtype=">u4")
    rows[:, 27:31] = positions.view(np.uint8).reshape(count, 4)
    rows[-1, -1] = int(RowFlag.COMMIT)
    return rows.reshape(-1)


def key_of(tuple_: bytes, parts: Sequence[KeyPart]) -> bytes:
    """Return the key of a tuple, as MessagePack with the tuple's own bytes."""
    last = max(part.field for part in parts)
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(tuple_)
    unpacker.read_array_header()
    starts = [unpacker.tell()]
    for _ in range(last + 1):
        unpacker.skip()
        starts.append(unpacker.tell())
    found = [tuple_[starts[part.field] : starts[part.field + 1]] for part in parts]
    return _array_header(len(found)) + b"".join(found)


def snapshot_rows(tuples: Iterable[tuple[int, bytes]], timestamp: float) -> Iterable[bytes]:
    """Yield the encoded rows of a snapshot; their lsns count from 1 on, as in Tarantool's checkpoints."""
    head = struct.pack(">3B", 0x83, HeaderKey.TYPE, RequestType.INSERT)
    time = struct.pack(">BBd", HeaderKey.TIMESTAMP, _DOUBLE, timestamp)
    for number, (space_id, tuple_) in enumerate(tuples, 1):
        lsn = struct.pack(">BBQ", HeaderKey.LSN, _UINT64, number)
        yield head + lsn + time + _body(space_id, BodyKey.TUPLE, tuple_)


def _body(space_id: int, key: BodyKey, value: bytes) -> bytes:
    return struct.pack(">BBBIB", 0x82, BodyKey.SPACE_ID, _UINT32, space_id, key) + value


def _array_header(count: int) -> bytes:
    return bytes([0x90 | count]) if count < 16 else struct.pack(">BH", 0xDC, count)


def _header(
    kind: RequestType, replica_id: int, lsn: int, timestamp: float, row_index: int, *, is_last: bool
) -> bytes:
    """Return the header of a row of a transaction with several rows; `row_index` is the row's index in it."""
    return _HEADER_FORMAT.pack(
        *(_MAP_OF_6, HeaderKey.TYPE, kind),
        *(HeaderKey.REPLICA_ID, replica_id),
        *(HeaderKey.LSN, _UINT64, lsn),
        *(HeaderKey.TIMESTAMP, _DOUBLE, timestamp),
        *(HeaderKey.TSN, _UINT32, row_index),
        *(HeaderKey.FLAGS, RowFlag.COMMIT if is_last else 0),
    )

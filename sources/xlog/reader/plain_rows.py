"""Reads the rows of one log file in pure Python, one at a time, for a person who looks at a log.

It imports neither numpy nor compiled kernels, so the first row is ready at once, whatever the file's size. Reading a
whole file takes many times as long as with `reader`; the rows are equal. Damage is an error.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import msgpack
import zstandard

from schemas.iproto import BodyKey, HeaderKey, RequestType, RowFlag, type_name
from sources.xlog.format.block import (
    BLOCK_LIMIT,
    FIXED_HEADER_SIZE,
    MAGIC_EOF,
    MAGIC_PLAIN,
    MAGIC_SIZE,
    MAGIC_ZSTD,
    checksum,
)
from sources.xlog.format.damage import WalkStatus, damage_error
from sources.xlog.format.meta import META_LIMIT, Meta, parse_meta

_UNWRITTEN_MAGIC = bytes(MAGIC_SIZE)


@dataclass(frozen=True, slots=True)
class PlainRow:
    """One row, with the columns of `schemas.xrow`."""

    position: int
    row: int
    """Byte offset of the row's block, and the row's number in the block."""
    type: str
    """The name of the request type (`schemas.iproto.type_name`)."""
    replica_id: int | None
    group_id: int | None
    lsn: int | None
    tsn: int | None
    """Numbers of the header; `tsn` is the lsn of the transaction's first row."""
    is_commit: bool
    """Whether the row is the last of its transaction."""
    flags: int
    """The bits of `RowFlag` in the header."""
    timestamp: int | None
    """Microseconds since 1970."""
    space_id: int | None
    index_base: int | None
    """Numbers of the body."""
    key: bytes | None
    tuple: bytes | None
    operations: bytes | None
    """MessagePack arrays of the body. The array under the key TUPLE is in `operations` for an UPDATE."""
    new_tuple: bytes | None
    """The tuple after the change, which a server logs if `wal_ext` is set."""
    body: bytes | None
    """The whole body as MessagePack, or None if the row has no body."""


def read_meta(stream: BinaryIO, file: str) -> Meta:
    """Return the header of a file that is open at its beginning.

    Raises:
        XlogMetaIncompleteError: If the file is still being created.
        XlogMetaError: If it is not a log file.
    """
    return parse_meta(stream.read(META_LIMIT), file)


class PlainBlock(NamedTuple):
    """One block: where it starts and ends in the file, and the bytes of its rows."""

    start: int
    rows: bytes
    end: int


def read_blocks(stream: BinaryIO, position: int, file: str) -> Iterator[PlainBlock]:
    """Yield each complete block from a position on.

    The last one is that before the end marker, or before a block that is not complete yet.

    Raises:
        XlogError: If a block is damaged.
    """
    decompressor = zstandard.ZstdDecompressor()
    while True:
        stream.seek(position)
        head = stream.read(FIXED_HEADER_SIZE)
        if len(head) < MAGIC_SIZE or head.startswith(_UNWRITTEN_MAGIC):
            return
        magic = int.from_bytes(head[:MAGIC_SIZE], "big")
        if magic == MAGIC_EOF:
            return
        if magic not in (MAGIC_PLAIN, MAGIC_ZSTD):
            raise damage_error(WalkStatus.MAGIC, file, position)
        if len(head) < FIXED_HEADER_SIZE:
            return
        length, expected = _length_and_checksum(head, file, position)
        if length > BLOCK_LIMIT:
            raise damage_error(WalkStatus.TOO_LONG, file, position)
        data = stream.read(length)
        if len(data) < length:
            return
        if checksum(data) != expected:
            raise damage_error(WalkStatus.CHECKSUM, file, position)
        if magic == MAGIC_ZSTD:
            data = _decompressed(decompressor, data, file, position)
        yield PlainBlock(position, data, position + FIXED_HEADER_SIZE + length)
        position += FIXED_HEADER_SIZE + length


def _length_and_checksum(head: bytes, file: str, position: int) -> tuple[int, int]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(head[MAGIC_SIZE:])
    try:
        length, before, own = (unpacker.unpack() for _ in range(3))
    except (ValueError, msgpack.OutOfData):
        raise damage_error(WalkStatus.LENGTH, file, position) from None
    if not isinstance(length, int):
        raise damage_error(WalkStatus.LENGTH, file, position)
    if not isinstance(before, int) or not isinstance(own, int):
        raise damage_error(WalkStatus.CHECKSUM_FIELD, file, position)
    return length, own


def _decompressed(decompressor: zstandard.ZstdDecompressor, data: bytes, file: str, position: int) -> bytes:
    try:
        with decompressor.stream_reader(data) as reader:
            found = bytes(reader.read(BLOCK_LIMIT + 1))
    except zstandard.ZstdError:
        raise damage_error(WalkStatus.FRAME, file, position) from None
    if len(found) > BLOCK_LIMIT:
        raise damage_error(WalkStatus.TOO_BIG, file, position)
    return found


def decode_rows(data: bytes, position: int, file: str) -> Iterator[PlainRow]:
    """Yield the rows of one block; raise XlogRowError if one is damaged."""
    return (row for row, _ in decode_rows_with_bytes(data, position, file))


def decode_rows_with_bytes(data: bytes, position: int, file: str) -> Iterator[tuple[PlainRow, bytes]]:
    """Yield the rows of one block, each with the bytes that it is decoded from; raise XlogRowError as `decode_rows`."""
    unpacker = msgpack.Unpacker(
        strict_map_key=False, max_buffer_size=max(len(data), 1), unicode_errors="surrogateescape"
    )
    unpacker.feed(data)
    number = 0
    while (first := unpacker.tell()) < len(data):
        try:
            header = unpacker.unpack()
        except (ValueError, msgpack.OutOfData):
            raise damage_error(WalkStatus.ROW_HEADER, file, position, number) from None
        if not isinstance(header, dict) or not isinstance(header.get(HeaderKey.TYPE), int):
            raise damage_error(WalkStatus.ROW_HEADER, file, position, number)
        begin = unpacker.tell()
        spans: Mapping[int, bytes] = {}
        if header[HeaderKey.TYPE] != RequestType.NOP and begin < len(data):
            try:
                spans = _packed_values(unpacker, data)
            except (ValueError, msgpack.OutOfData):
                raise damage_error(WalkStatus.ROW_BODY, file, position, number) from None
        end = unpacker.tell()
        yield _plain_row(position, number, header, spans, data[begin:end]), data[first:end]
        number += 1


def _packed_values(unpacker: msgpack.Unpacker, data: bytes) -> dict[int, bytes]:
    found = {}
    for _ in range(unpacker.read_map_header()):
        key, begin = unpacker.unpack(), unpacker.tell()
        unpacker.skip()
        found[key] = data[begin : unpacker.tell()]
    return found


def _plain_row(
    position: int, number: int, header: Mapping[int, Any], body: Mapping[int, bytes], raw: bytes
) -> PlainRow:
    kind, lsn = header[HeaderKey.TYPE], header.get(HeaderKey.LSN)
    ahead, flags = header.get(HeaderKey.TSN), header.get(HeaderKey.FLAGS, 0)
    is_update = kind == RequestType.UPDATE
    tuple_ = body.get(BodyKey.TUPLE)
    return PlainRow(
        position=position,
        row=number,
        type=type_name(kind),
        replica_id=header.get(HeaderKey.REPLICA_ID),
        group_id=header.get(HeaderKey.GROUP_ID),
        lsn=lsn,
        # The tsn of a synchronous transaction can be greater than the lsn: the difference is modulo 2^64.
        tsn=lsn if ahead is None or lsn is None else _as_signed(lsn - ahead),
        is_commit=ahead is None or bool(flags & RowFlag.COMMIT),
        flags=flags,
        timestamp=_microseconds_of(header.get(HeaderKey.TIMESTAMP)),
        space_id=_integer_of(body.get(BodyKey.SPACE_ID)),
        index_base=_integer_of(body.get(BodyKey.INDEX_BASE)),
        key=body.get(BodyKey.KEY),
        tuple=None if is_update else tuple_,
        operations=tuple_ if is_update else body.get(BodyKey.OPS),
        new_tuple=body.get(BodyKey.NEW_TUPLE),
        body=raw or None,
    )


def _integer_of(data: bytes | None) -> int | None:
    value = None if data is None else msgpack.unpackb(data)
    return value if isinstance(value, int) else None


def _as_signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _microseconds_of(seconds: object) -> int | None:
    is_time = isinstance(seconds, int | float) and math.isfinite(seconds)
    return round(seconds * 1e6) if is_time else None  # type: ignore[operator]

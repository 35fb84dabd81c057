"""Encodes and decodes packets of IPROTO: a length, a header map, and a body map or none.

The functions are pure. Rows of SUBSCRIBE and FETCH_SNAPSHOT, the hot path, are decoded by `kernels` instead.
Heartbeats and NOP rows have no body, so the length of a packet shows whether it has one.

Source: `src/box/iproto_constants.h`, `xrow_header_decode` in `src/box/xrow.c`. Bodies are in `messages`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from schemas.errors import ProtocolError
from schemas.iproto import TYPE_ERROR, HeaderKey

PACKET_MAX_BYTES = 1 << 30

ANSWER_MAX_BYTES = 1 << 20
"""Longest accepted packet that is decoded to Python objects, in bytes: nested lists take 75 times as much memory."""

_LENGTH_SIZES = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


@dataclass(frozen=True)
class Packet:
    """One decoded packet: an answer, an error, or a request."""

    type: int
    sync: int = 0
    header: Mapping[int, Any] = field(default_factory=dict)
    body: Mapping[int, Any] = field(default_factory=dict)
    raw_body: bytes = b""
    """The undecoded body, if only the header was decoded (`decode_packet_header`)."""

    @property
    def error_code(self) -> int | None:
        """Tarantool's error code; None if the packet is not an error."""
        return self.type & ~TYPE_ERROR if self.type & TYPE_ERROR else None


def packet_bounds(
    data: bytes | memoryview, begin: int, end: int, limit: int = PACKET_MAX_BYTES
) -> tuple[int, int] | None:
    """Read the length at `begin` and return (begin, end) of the packet after it; None if not all bytes are there.

    Raises:
        ProtocolError: There is no length at `begin`, or it exceeds the limit.
    """
    if begin >= end:
        return None
    length = data[begin]
    size = length_size(length)
    at = begin + 1
    if size:
        if at + size > end:
            return None
        length = int.from_bytes(data[at : at + size], "big")
        at += size
    if not 0 < length <= limit:
        raise ProtocolError(f"a packet of {length} bytes; the limit is {limit}")
    return (at, at + length) if at + length <= end else None


def length_size(first_byte: int) -> int:
    """Return how many bytes of a packet's length follow its first byte; raise ProtocolError if it begins none."""
    if first_byte < 0x80:
        return 0
    size = _LENGTH_SIZES.get(first_byte)
    if size is None:
        raise ProtocolError(f"no packet's length begins with byte {first_byte:#04x}")
    return size


def decode_packet(data: bytes | memoryview) -> Packet:
    """Decode the header and body of a packet; `data` begins after the packet's length."""
    unpacker = msgpack.Unpacker(
        strict_map_key=False, unicode_errors="surrogateescape", max_buffer_size=0, raw=False
    )
    unpacker.feed(data)
    try:
        header: Any = unpacker.unpack()
        body: Any = unpacker.unpack() if unpacker.tell() < len(data) else {}
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"a packet is not MessagePack: {error}") from None
    if not isinstance(header, dict) or not isinstance(body, dict) or unpacker.tell() != len(data):
        raise ProtocolError("a packet is not a header map and a body map")
    kind, sync = header.get(HeaderKey.TYPE, 0), header.get(HeaderKey.SYNC, 0)
    if not isinstance(kind, int) or not isinstance(sync, int) or kind < 0:
        raise ProtocolError("a packet's type or sync is not a number")
    return Packet(kind, sync, header, body)


def decode_packet_header(data: bytes | memoryview) -> Packet:
    """Decode a packet's header and return its body undecoded (`raw_body`); an error packet is decoded completely."""
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    unpacker.feed(data)
    try:
        header: Any = unpacker.unpack()
    except (msgpack.UnpackException, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"a packet is not MessagePack: {error}") from None
    kind = header.get(HeaderKey.TYPE, 0) if isinstance(header, dict) else None
    if not isinstance(kind, int) or kind & TYPE_ERROR:
        return decode_packet(data)
    return Packet(kind, header.get(HeaderKey.SYNC, 0), header, raw_body=bytes(data[unpacker.tell() :]))


def encode_packet(
    kind: int, sync: int, body: Mapping[int, Any] | None = None, header: Mapping[int, Any] | None = None
) -> bytes:
    """Encode one packet: its length, header and body.

    Args:
        body: None: the packet has no body, not even an empty one.
        header: Additional keys of the header.
    """
    message = _pack({HeaderKey.TYPE: int(kind), HeaderKey.SYNC: sync, **(header or {})})
    if body is not None:
        message += _pack(body)
    return b"\xce" + len(message).to_bytes(4, "big") + message


def _pack(value: Mapping[int, Any]) -> bytes:
    return bytes(msgpack.packb(value, use_bin_type=True, unicode_errors="surrogateescape"))

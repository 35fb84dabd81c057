"""MessagePack as raw pieces: arrays and maps are split into the bytes of their items, and joined again.

A tuple must stay equal to the server's byte for byte, so nothing is decoded that is not computed on.
"""

from typing import Any

import msgpack


def unpacker(raw: bytes) -> msgpack.Unpacker:
    """Return an unpacker of the bytes: strings may be anything, maps may have any key."""
    made = msgpack.Unpacker(
        strict_map_key=False, raw=False, unicode_errors="surrogateescape", max_buffer_size=0, use_list=False
    )
    made.feed(raw)
    return made


def decode(raw: bytes) -> Any:
    return unpacker(raw).unpack()


def encode(value: Any) -> bytes:
    """Return the shortest MessagePack of a value; floats are doubles."""
    packed: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogateescape")
    return packed


def split_array(raw: bytes) -> list[bytes]:
    reader = unpacker(raw)
    return _slices(raw, reader, reader.read_array_header())


def split_map(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Return the raw keys and values of a map, in their order, also those that repeat."""
    reader = unpacker(raw)
    pieces = _slices(raw, reader, 2 * reader.read_map_header())
    return list(zip(pieces[::2], pieces[1::2], strict=True))


def join_array(items: list[bytes]) -> bytes:
    header: bytes = msgpack.Packer().pack_array_header(len(items))
    return header + b"".join(items)


def join_map(items: list[tuple[bytes, bytes]]) -> bytes:
    header: bytes = msgpack.Packer().pack_map_header(len(items))
    return header + b"".join(key + value for key, value in items)


def split_objects(raw: bytes) -> list[bytes]:
    """Return the objects that stand one after another."""
    reader = unpacker(raw)
    pieces, start = [], 0
    while start < len(raw):
        reader.skip()
        pieces.append(raw[start : reader.tell()])
        start = reader.tell()
    return pieces


def is_array(raw: bytes) -> bool:
    """Say whether the object is an array."""
    return 0x90 <= raw[0] <= 0x9F or raw[0] in (0xDC, 0xDD)


def is_map(raw: bytes) -> bool:
    """Say whether the object is a map."""
    return 0x80 <= raw[0] <= 0x8F or raw[0] in (0xDE, 0xDF)


def is_string(raw: bytes) -> bool:
    """Say whether the object is a string."""
    return 0xA0 <= raw[0] <= 0xBF or raw[0] in (0xD9, 0xDA, 0xDB)


def _slices(raw: bytes, reader: msgpack.Unpacker, count: int) -> list[bytes]:
    pieces = []
    for _ in range(count):
        start = reader.tell()
        reader.skip()
        pieces.append(raw[start : reader.tell()])
    return pieces

"""Reads a space of a live server page by page, in the order of its primary key.

A page begins after a key, not at an offset, so that changes between two pages neither repeat nor skip a tuple. Tuples
are returned as MessagePack. If the user may run Lua, a page can also be read as one checksum (`PageChecksum`).
`observe.proof` compares pages with the warehouse.

Source: `iproto_reply_select` in Tarantool's `src/box/iproto.cc`, `enum iterator_type` in `src/box/iterator_type.h`.

`PREPARE_LUA` defines a Lua function by which a server computes the checksum of a page, so that equal pages need not be
sent. The function only reads. It is stored in the session, compiled once, and disappears with the connection. The
checksum of a tuple is XXH64 of its MessagePack with seed 42, as in `udfs.keys.row_hash`
(<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>). The checksum of a page is the sum of those of its
tuples modulo 2^64, so it does not depend on their order. A memtx page is a consistent snapshot, because the function
never yields.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from schemas.errors import ConnectionLostError, ProtocolError, ServerError
from schemas.iproto import Command, MessageKey
from sources.iproto.client import Connection

PREPARE_LUA = """
local ffi, bit, buffer, msgpack = require('ffi'), require('bit'), require('buffer'), require('msgpack')
local rol, bxor, rshift = bit.rol, bit.bxor, bit.rshift
local u64, u32 = ffi.typeof('const uint64_t *'), ffi.typeof('const uint32_t *')
local P1, P2, P3 = 11400714785074694791ULL, 14029467366897019727ULL, 1609587929392839161ULL
local P4, P5 = 9650029242287828579ULL, 2870177450012600261ULL

local function round(value, word) return rol(value + word * P2, 31) * P1 end

local function xxh64(p, size)
    local seed, at, h = 42ULL, 0, nil
    if size >= 32 then
        local a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
        while at <= size - 32 do
            local w = ffi.cast(u64, p + at)
            a, b, c, d = round(a, w[0]), round(b, w[1]), round(c, w[2]), round(d, w[3])
            at = at + 32
        end
        h = rol(a, 1) + rol(b, 7) + rol(c, 12) + rol(d, 18)
        h = bxor(h, rol(a * P2, 31) * P1) * P1 + P4
        h = bxor(h, rol(b * P2, 31) * P1) * P1 + P4
        h = bxor(h, rol(c * P2, 31) * P1) * P1 + P4
        h = bxor(h, rol(d * P2, 31) * P1) * P1 + P4
    else
        h = seed + P5
    end
    h = h + size
    while at <= size - 8 do
        h = rol(bxor(h, round(0ULL, ffi.cast(u64, p + at)[0])), 27) * P1 + P4
        at = at + 8
    end
    if at <= size - 4 then
        h = rol(bxor(h, ffi.cast(u32, p + at)[0] * P1), 23) * P2 + P3
        at = at + 4
    end
    while at < size do
        h = rol(bxor(h, p[at] * P5), 11) * P1
        at = at + 1
    end
    h = bxor(h, rshift(h, 33)) * P2
    h = bxor(h, rshift(h, 29)) * P3
    return bxor(h, rshift(h, 32))
end

box.session.storage.page_checksum = function(space_id, after, limit)
    local index = box.space[space_id].index[0]
    local page = index:select(after, {iterator = #after == 0 and 'ALL' or 'GT', limit = limit})
    local out, total, bytes = buffer.ibuf(), 0ULL, 0
    for _, tuple in ipairs(page) do
        out:reset()
        local size = tonumber(msgpack.encode(tuple, out))
        total = total + xxh64(ffi.cast('const uint8_t *', out.rpos), size)
        bytes = bytes + size
    end
    out:recycle()
    return #page, total, bytes, page[#page]
end
"""
"""Lua code that defines the checksum function in a session."""

CHECKSUM_LUA = "return box.session.storage.page_checksum(...)"
"""Lua code that calls the checksum function. Arguments: the space's id, the key after which the page begins (an empty
array for the first page), and the maximum number of tuples. Returns their number, checksum, size in bytes, and the
last tuple."""


EQUAL, ALL, GREATER = 0, 2, 6

PAGE_BYTES = 1 << 20
"""Approximate bytes of a page's tuples."""

PAGE_ROWS = 1000
"""Maximum number of tuples of a page: reading them takes a server one or two milliseconds."""

FIRST_PAGE_ROWS = 50
"""Maximum number of tuples of the first page of a space, whose tuples may be large."""

KEYS_AT_ONCE = 100
"""Number of requests for single keys that are sent before the first answer is awaited."""


@dataclass(frozen=True)
class PageChecksum:
    """The checksum of a page of tuples."""

    row_count: int
    checksum: int
    size_bytes: int
    """The number of tuples, the sum of their hashes modulo 2^64, and their size in bytes."""
    last_tuple: bytes | None
    """The last tuple; None for an empty page."""


class SpacePages:
    """Reads one space through an open connection."""

    def __init__(self, connection: Connection, space_id: int) -> None:
        self._connection, self._space_id = connection, space_id

    async def read_page(self, after: bytes | None, limit: int) -> list[bytes]:
        """Return the tuples that follow a primary key, as MessagePack and in the order of their keys."""
        key = [] if after is None else _decode_key(after)
        return await self._select(ALL if after is None else GREATER, key, limit)

    async def read_checksum(self, after: bytes | None, limit: int) -> PageChecksum:
        """Return the checksum of the page of `read_page`; `prepare_checksums` must have returned True."""
        key = [] if after is None else _decode_key(after)
        body: dict[int, Any] = {
            MessageKey.EXPRESSION: CHECKSUM_LUA,
            MessageKey.TUPLE: [self._space_id, key, limit],
        }
        packet = await self._connection.request(Command.EVAL, body, is_body_raw=True)
        rows, checksum, size, *last = split_values(packet.raw_body)
        return PageChecksum(
            _decode_int(rows),
            _decode_int(checksum),
            _decode_int(size),
            last[0] if _decode_int(rows) else None,
        )

    async def tuples_by_key(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the tuple with each primary key, in the order of the keys; None where no tuple has the key."""
        tuples: list[bytes | None] = []
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            batch = keys[begin : begin + KEYS_AT_ONCE]
            answers = await asyncio.gather(*(self._select(EQUAL, _decode_key(key), 1) for key in batch))
            tuples += [rows[0] if rows else None for rows in answers]
        return tuples

    async def _select(self, iterator: int, key: Sequence[Any], limit: int) -> list[bytes]:
        body: dict[int, Any] = {
            MessageKey.SPACE_ID: self._space_id,
            MessageKey.INDEX_ID: 0,
            MessageKey.LIMIT: limit,
            MessageKey.OFFSET: 0,
            MessageKey.ITERATOR: iterator,
            MessageKey.KEY: key,
        }
        return split_values((await self._connection.request(Command.SELECT, body, is_body_raw=True)).raw_body)


async def prepare_checksums(connection: Connection) -> bool:
    """Define the checksum function in the session; return False if the user may not run Lua."""
    body: dict[int, Any] = {MessageKey.EXPRESSION: PREPARE_LUA, MessageKey.TUPLE: []}
    try:
        await connection.request(Command.EVAL, body)
    except ConnectionLostError:
        raise
    except ServerError:
        return False
    return True


def next_page_limit(row_count: int, size_bytes: int) -> int:
    """Return the maximum number of tuples for the next page, from the number and size of the tuples of this page."""
    return max(
        1,
        min(
            PAGE_ROWS,
            PAGE_BYTES * row_count // size_bytes if size_bytes else PAGE_ROWS,
            4 * row_count + FIRST_PAGE_ROWS,
        ),
    )


def split_values(body: bytes) -> list[bytes]:
    """Return the values of the array `IPROTO_DATA` in a body; raise ProtocolError if there is none."""
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    unpacker.feed(body)
    try:
        for _ in range(unpacker.read_map_header()):
            if unpacker.unpack() != MessageKey.DATA:
                unpacker.skip()
                continue
            values, begin = [], 0
            for number in range(unpacker.read_array_header() + 1):
                if number:
                    unpacker.skip()
                    values.append(body[begin : unpacker.tell()])
                begin = unpacker.tell()
            return values
    except (msgpack.UnpackException, ValueError, TypeError) as error:
        raise ProtocolError(f"an answer is not MessagePack: {error}") from None
    raise ProtocolError("an answer has no data")


def _decode_key(key: bytes) -> Any:
    return msgpack.unpackb(key, strict_map_key=False, unicode_errors="surrogateescape")


def _decode_int(value: bytes) -> int:
    number = msgpack.unpackb(value)
    if not isinstance(number, int):
        raise ProtocolError("the answer's checksum is not a number")
    return number

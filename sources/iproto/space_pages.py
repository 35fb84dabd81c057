"""Reads tuples of a space of a live server, page by page in the order of its primary key.

A page begins after a key, not at an offset, so that changes between two pages neither repeat nor skip a tuple. Tuples
are returned as MessagePack. If the user may run Lua, a page can also be read as one checksum (`PageSum`).
`observe.proof` compares the pages.

Source: `iproto_reply_select` in Tarantool's `src/box/iproto.cc`, `enum iterator_type` in `src/box/iterator_type.h`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from schemas.errors import ConnectionLostError, ProtocolError, ServerError
from schemas.iproto import Command, MessageKey
from sources.iproto.client import Connection
from sources.iproto.page_checksum import CHECKSUM, PREPARE

EQUAL, ALL, GREATER = 0, 2, 6

PAGE_BYTES = 1 << 20
"""Approximate bytes of a page's tuples."""

PAGE_ROWS = 1000
"""Maximum tuples of a page: it keeps a server's thread busy for one or two milliseconds."""

FIRST_ROWS = 50
"""Maximum tuples of the first page of a space, since its tuples may be large."""

KEYS_AT_ONCE = 100
"""Requests for single keys that are sent before the first answer is awaited."""


@dataclass(frozen=True)
class PageSum:
    """The checksum of a page.

    Parameters
    ----------
    rows, checksum, size : int
        The number of tuples, the sum of their hashes modulo 2^64, and their bytes.
    last : bytes or None
        The last tuple; None for an empty page.

    """

    rows: int
    checksum: int
    size: int
    last: bytes | None


class SpacePages:
    """Reads one space through an open connection.

    Parameters
    ----------
    connection : Connection
    space_id : int

    """

    def __init__(self, connection: Connection, space_id: int) -> None:
        self._connection, self._space_id = connection, space_id

    async def page(self, after: bytes | None, limit: int) -> list[bytes]:
        """Return the next tuples after a key, or the first ones.

        Parameters
        ----------
        after : bytes or None
            A key, as a MessagePack array.
        limit : int
            Maximum number of tuples.

        """
        key = [] if after is None else _decoded(after)
        return await self._select(ALL if after is None else GREATER, key, limit)

    async def checksum(self, after: bytes | None, limit: int) -> PageSum:
        """Return the checksum of that page; only after `prepare_checksums` has returned true."""
        key = [] if after is None else _decoded(after)
        body: dict[int, Any] = {
            MessageKey.EXPRESSION: CHECKSUM,
            MessageKey.TUPLE: [self._space_id, key, limit],
        }
        packet = await self._connection.request(Command.EVAL, body, is_raw=True)
        rows, checksum, size, *last = values_in(packet.raw)
        return PageSum(_number(rows), _number(checksum), _number(size), last[0] if _number(rows) else None)

    async def tuples_at(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the tuple of each key, None if there is none."""
        found: list[bytes | None] = []
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            some = keys[begin : begin + KEYS_AT_ONCE]
            answers = await asyncio.gather(*(self._select(EQUAL, _decoded(key), 1) for key in some))
            found += [rows[0] if rows else None for rows in answers]
        return found

    async def _select(self, iterator: int, key: Sequence[Any], limit: int) -> list[bytes]:
        body: dict[int, Any] = {
            MessageKey.SPACE_ID: self._space_id,
            MessageKey.INDEX_ID: 0,
            MessageKey.LIMIT: limit,
            MessageKey.OFFSET: 0,
            MessageKey.ITERATOR: iterator,
            MessageKey.KEY: key,
        }
        return values_in((await self._connection.request(Command.SELECT, body, is_raw=True)).raw)


async def prepare_checksums(connection: Connection) -> bool:
    """Define the checksum function in the session; return false if the user may not run Lua."""
    body: dict[int, Any] = {MessageKey.EXPRESSION: PREPARE, MessageKey.TUPLE: []}
    try:
        await connection.request(Command.EVAL, body)
    except ConnectionLostError:
        raise
    except ServerError:
        return False
    return True


def next_limit(rows: int, size: int) -> int:
    """Return the limit for the next page, from the number of rows and bytes of this one."""
    return max(1, min(PAGE_ROWS, PAGE_BYTES * rows // size if size else PAGE_ROWS, 4 * rows + FIRST_ROWS))


def values_in(body: bytes) -> list[bytes]:
    """Return each value of the array `IPROTO_DATA` of a body, undecoded.

    Raises
    ------
    ProtocolError
        The body has no such array.

    """
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    unpacker.feed(body)
    try:
        for _ in range(unpacker.read_map_header()):
            if unpacker.unpack() != MessageKey.DATA:
                unpacker.skip()
                continue
            found, begin = [], 0
            for number in range(unpacker.read_array_header() + 1):
                if number:
                    unpacker.skip()
                    found.append(body[begin : unpacker.tell()])
                begin = unpacker.tell()
            return found
    except (msgpack.UnpackException, ValueError, TypeError) as error:
        raise ProtocolError(f"an answer is not MessagePack: {error}") from None
    raise ProtocolError("an answer has no data")


def _decoded(key: bytes) -> Any:
    return msgpack.unpackb(key, strict_map_key=False, unicode_errors="surrogateescape")


def _number(value: bytes) -> int:
    number = msgpack.unpackb(value)
    if not isinstance(number, int):
        raise ProtocolError("a page's checksum is no number")
    return number

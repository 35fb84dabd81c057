"""Tuples of a space of a live server, page by page in the order of its primary key, as the server has them.

A page begins behind a key, not at a number, so that changes between two pages neither repeat nor lose a tuple. Tuples
are MessagePack as it came. Where the user may run Lua, a page can also be had as one checksum (`PageSum`). Not here:
what the pages are compared with (`observe.proof`).

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
"""About so many bytes of tuples make a page."""

PAGE_ROWS = 1000
"""The most tuples of a page: a server's thread is busy with one for one or two milliseconds."""

FIRST_ROWS = 50
"""The most tuples of the first page of a space, whose tuples may be large."""

KEYS_AT_ONCE = 100
"""So many requests of single keys are sent before the first answer is waited for."""


@dataclass(frozen=True)
class PageSum:
    """A page as its checksum.

    Parameters
    ----------
    rows, checksum, size : int
        How many tuples it has, the sum of their hashes modulo 2^64, and their bytes.
    last : bytes or None
        The last tuple; None where there is none.

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
        """Return the next tuples behind a key, or the first ones.

        Parameters
        ----------
        after : bytes or None
            A key, as a MessagePack array.
        limit : int
            The most tuples.

        """
        key = [] if after is None else _decoded(after)
        return await self._select(ALL if after is None else GREATER, key, limit)

    async def checksum(self, after: bytes | None, limit: int) -> PageSum:
        """Return the checksum of the same page; only after `prepare_checksums` has returned true."""
        key = [] if after is None else _decoded(after)
        body: dict[int, Any] = {
            MessageKey.EXPRESSION: CHECKSUM,
            MessageKey.TUPLE: [self._space_id, key, limit],
        }
        packet = await self._connection.request(Command.EVAL, body, is_raw=True)
        rows, checksum, size, *last = values_in(packet.raw)
        return PageSum(_number(rows), _number(checksum), _number(size), last[0] if _number(rows) else None)

    async def tuples_at(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the tuple of each key, None where there is none."""
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
    """Define the function of page checksums in the session; false where the user may not run Lua."""
    body: dict[int, Any] = {MessageKey.EXPRESSION: PREPARE, MessageKey.TUPLE: []}
    try:
        await connection.request(Command.EVAL, body)
    except ConnectionLostError:
        raise
    except ServerError:
        return False
    return True


def next_limit(rows: int, size: int) -> int:
    """Return how many tuples the page behind one of so many rows and bytes may have."""
    return max(1, min(PAGE_ROWS, PAGE_BYTES * rows // size if size else PAGE_ROWS, 4 * rows + FIRST_ROWS))


def values_in(body: bytes) -> list[bytes]:
    """Return each value of the array `IPROTO_DATA` of a body, as the MessagePack that it is.

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

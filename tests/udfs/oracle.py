"""Runs UPDATE and UPSERT on a real Tarantool and returns the exact bytes of the resulting tuple.

Requests and answers are raw MessagePack, so that no client changes the encoding. Each case has its own key, so that
the space holds all results at the end, and the log all requests.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import msgpack

from tests.live.client import ERROR_BIT, KEY_DATA, KEY_SYNC, KEY_TYPE, Connection, pack
from tests.live.server import Tarantool

SELECT, REPLACE, UPDATE, UPSERT = 1, 3, 4, 9
SPACE_ID, INDEX_ID, LIMIT, INDEX_BASE, KEY, TUPLE, OPERATIONS = 0x10, 0x11, 0x12, 0x15, 0x20, 0x21, 0x28

SPACE = 512

Answer = bytes | int
"""The tuple, or the code of the error."""


class CrashError(Exception):
    """The server crashed in the middle of a request: 2.6.0 does so (gh-5135, gh-7705, gh-8216)."""


def make_space(names: Sequence[str], types: Sequence[str]) -> str:
    """Return Lua code that makes the space of the cases."""
    fields = ", ".join(
        f"{{'{name}', '{kind}', is_nullable = {str(number > 0).lower()}}}"
        for number, (name, kind) in enumerate(zip(names, types, strict=True))
    )
    return f"""
        local s = box.schema.create_space('cases', {{id = {SPACE}, format = {{{fields}}}, if_not_exists =
        true}}) s:create_index('pk', {{if_not_exists = true}})
    """


class Oracle:
    """A server with one space; it is started again after a crash.

    Args:
        directory: Where its logs go.
        lua: What makes the space.
        binary: The server's program; by default the `tarantool` on PATH.
    """

    def __init__(self, directory: Path, lua: str, binary: str | None = None) -> None:
        self.server = Tarantool(directory, lua=lua, cfg={"log_level": 1}, binary=binary)
        self.keys = itertools.count(1)
        self.crashes = 0

    def __enter__(self) -> Self:
        self.server.start()
        self.connection = Raw(self.server.socket)
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self.server.stop()

    def ask(
        self, kind: int, fields: bytes, count: int, operations: bytes, index_base: int
    ) -> tuple[int, Answer]:
        """Insert a tuple with a new key and `count` more fields, change it, and return the key and the answer."""
        key = next(self.keys)
        old = tuple_of(key, fields, count)
        try:
            code, body = self.connection.ask(REPLACE, _body({SPACE_ID: pack(SPACE), TUPLE: old}))
            if code:
                return key, code
            code, body = self.connection.ask(*request(kind, key, old, operations, index_base))
            if kind == UPSERT and not code:
                code, body = self.connection.ask(SELECT, _select(key))
        except ConnectionError as error:
            self.restart()
            raise CrashError from error
        return key, code or _only(body)

    def restart(self) -> None:
        """Start the server again after a crash, from its log."""
        self.crashes += 1
        self.connection.close()
        self.server.kill()
        self.server.start()
        self.connection = Raw(self.server.socket)

    def held(self) -> Iterator[bytes]:
        body = {SPACE_ID: pack(SPACE), INDEX_ID: pack(0), LIMIT: pack(1 << 30), KEY: b"\x90"}
        code, answer = self.connection.ask(SELECT, _body(body))
        if code:
            raise AssertionError(code)
        yield from _tuples(answer)


def tuple_of(key: int, fields: bytes, count: int) -> bytes:
    head = bytes((0x91 + count,)) if count < 15 else b"\xdc" + (count + 1).to_bytes(2, "big")
    return head + pack(key) + fields


def request(kind: int, key: int, old: bytes, operations: bytes, index_base: int) -> tuple[int, bytes]:
    """Return type and body of an UPDATE or UPSERT."""
    body = {SPACE_ID: pack(SPACE), INDEX_BASE: pack(index_base)}
    if kind == UPDATE:
        return kind, _body(body | {INDEX_ID: pack(0), KEY: pack([key]), TUPLE: operations})
    return kind, _body(body | {TUPLE: old, OPERATIONS: operations})


def _select(key: int) -> bytes:
    return _body({SPACE_ID: pack(SPACE), INDEX_ID: pack(0), LIMIT: pack(1), KEY: pack([key])})


def _body(values: dict[int, bytes]) -> bytes:
    return bytes((0x80 | len(values),)) + b"".join(pack(key) + value for key, value in values.items())


def _only(body: bytes) -> bytes:
    (found,) = _tuples(body)
    return found


def _tuples(body: bytes) -> Iterator[bytes]:
    """Yield the raw tuples of an answer `{KEY_DATA: [tuple, ...]}`."""
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=0)
    unpacker.feed(body)
    if unpacker.read_map_header() != 1 or unpacker.unpack() != KEY_DATA:
        raise AssertionError(body[:40])
    for _ in range(unpacker.read_array_header()):
        start = unpacker.tell()
        unpacker.skip()
        yield body[start : unpacker.tell()]


class Raw(Connection):
    """A connection whose answers stay MessagePack."""

    def ask(self, kind: int, body: bytes) -> tuple[int, bytes]:
        """Send a request; return the error's code, or 0, and the body of the answer."""
        self.send_raw(kind, body)
        answer = self._read(int.from_bytes(self._read(5)[1:], "big"))
        unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
        unpacker.feed(answer)
        header = unpacker.unpack()
        if KEY_SYNC not in header:
            raise AssertionError(header)
        code: int = header[KEY_TYPE]
        return code & ~ERROR_BIT if code & ERROR_BIT else 0, answer[unpacker.tell() :]

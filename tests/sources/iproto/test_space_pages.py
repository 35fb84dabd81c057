"""Pages of a space of a real server: complete, in order, and with the checksum that is computed from the tables."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from observe.proof.sorted_versions import hash_tuples
from sources.iproto.address import Address, PasswordSource, Peer
from sources.iproto.client import Connection, connect
from sources.iproto.space_pages import SpacePages, next_page_limit, prepare_checksums, split_values
from tests.live.server import Tarantool

SPACE = 600
FILL = """
local s = box.schema.space.create('s', {id = 600})
s:create_index('pk', {parts = {{2, 'string'}, {1, 'unsigned'}}})
for i = 1, 2500 do s:insert{i, 'k' .. i % 7, ('x'):rep(i % 100), i / 4, {a = i}} end
box.schema.user.create('reader', {password = 'secret'})
box.session.su('admin', function() box.schema.user.grant('reader', 'read', 'universe') end)
"""

Result = TypeVar("Result")


def run_connected(
    server: Tarantool, work: Callable[[Connection], Awaitable[Result]], user: str | None = None
) -> Result:
    """Connect to a server, call a function with the connection, and return its result."""

    async def run() -> Result:
        password = PasswordSource() if user is None else PasswordSource(env_variable="PASSWORD_OF_READER")
        connection = await connect(Peer("server", Address(path=server.socket), user, password), 20)
        try:
            return await work(connection)
        finally:
            connection.close()

    return asyncio.run(run())


def checksum_of(tuples: list[bytes]) -> int:
    return int(hash_tuples(pa.array(tuples, pa.binary())).view(np.uint64).sum(dtype=np.uint64))


def key_of(tuple_: bytes) -> bytes:
    row = msgpack.unpackb(tuple_)
    return bytes(msgpack.packb([row[1], row[0]]))


async def all_pages(pages: SpacePages, limit: int) -> list[list[bytes]]:
    found, after = [], None
    while page := await pages.read_page(after, limit):
        found.append(page)
        after = key_of(page[-1])
    return found


@pytest.mark.live
def test_pages_have_all_tuples_in_key_order(tarantool: Tarantool) -> None:
    tarantool.eval(FILL)
    pages = run_connected(tarantool, lambda connection: all_pages(SpacePages(connection, SPACE), 400))
    assert [len(page) for page in pages] == [400] * 6 + [100]
    rows = [msgpack.unpackb(one) for page in pages for one in page]
    assert [(row[1], row[0]) for row in rows] == sorted((f"k{i % 7}", i) for i in range(1, 2501))


@pytest.mark.live
def test_a_pages_checksum_is_that_of_its_tuples(tarantool: Tarantool) -> None:
    tarantool.eval(FILL)

    async def work(connection: Connection) -> None:
        assert await prepare_checksums(connection)
        pages, after = SpacePages(connection, SPACE), None
        while page := await pages.read_page(after, 333):
            found = await pages.read_checksum(after, 333)
            assert (found.row_count, found.checksum) == (len(page), checksum_of(page))
            assert (found.last_tuple, found.size_bytes) == (page[-1], sum(map(len, page)))
            after = key_of(page[-1])
        assert (await pages.read_checksum(after, 333)).last_tuple is None

    run_connected(tarantool, work)


@pytest.mark.live
def test_a_user_who_may_only_read_gets_pages_and_no_checksums(
    tarantool: Tarantool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD_OF_READER", "secret")
    tarantool.eval(FILL)

    async def work(connection: Connection) -> tuple[bool, list[bytes]]:
        return await prepare_checksums(connection), await SpacePages(connection, SPACE).read_page(None, 3)

    may, page = run_connected(tarantool, work, "reader")
    assert not may
    assert len(page) == 3


@pytest.mark.live
def test_tuples_by_key_are_in_the_order_of_the_keys(tarantool: Tarantool) -> None:
    tarantool.eval(FILL)
    keys = [msgpack.packb([f"k{i % 7}", i]) for i in (5, 9999, 1, *range(1, 300))]
    found = run_connected(tarantool, lambda connection: SpacePages(connection, SPACE).tuples_by_key(keys))
    assert found[1] is None
    assert [msgpack.unpackb(one)[0] for one in found if one is not None] == [5, 1, *range(1, 300)]


@pytest.mark.live
def test_a_page_may_be_larger_than_other_answers(tarantool: Tarantool) -> None:
    tarantool.eval("box.schema.space.create('s', {id = 600}):create_index('pk')")
    tarantool.eval("for i = 1, 9 do box.space.s:insert{i, ('x'):rep(300000)} end")
    page = run_connected(tarantool, lambda connection: SpacePages(connection, SPACE).read_page(None, 9))
    assert sum(map(len, page)) > 2_700_000


def test_pages_of_large_tuples_have_few_tuples() -> None:
    assert next_page_limit(50, 50 * 100) == 250
    assert next_page_limit(1000, 1000 * 100) == 1000
    assert next_page_limit(1000, 1000 * 10_000) == 104
    assert next_page_limit(1, 50_000_000) == 1


def test_an_answer_is_split_into_undecoded_values() -> None:
    rows = [[1, "a"], [2, {"b": [3]}]]
    assert split_values(msgpack.packb({0x31: [], 0x30: rows})) == [msgpack.packb(row) for row in rows]

"""A whitelist names instances: after a replica id is assigned to another instance, its rows are of that instance."""

import asyncio
from pathlib import Path
from typing import Any, Self

import msgpack
import numpy as np
import pytest

from schemas.errors import ServerError
from schemas.iproto import Command, HeaderKey, MessageKey, RequestType, SystemSpace
from sources.iproto.packet import encode_packet
from sources.relay.server import Relay
from sources.spool.options import SpoolOptions
from sources.spool.spool import Spool
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.sources.relay.spools import DAEMON, REPLICASET, Client, relaying, system_row

A, B, C = (f"{letter}0000000-0000-4000-8000-000000000001" for letter in "abc")
SUBSCRIBER_PREFIX = "00000000-0000-4000-8000-0000000000ee"


class WrittenSpool:
    """Writes a spool row by row; the master has replica id 1."""

    def __init__(self, directory: Path) -> None:
        self.spool = Spool(directory, SpoolOptions(compress=False))
        self.spool.instance_uuid, self.spool.replicaset_uuid = DAEMON, REPLICASET

    def begin(self, members: dict[int, str], vclock: dict[int, int]) -> Self:
        with self.spool.create_snapshot(vclock) as writer:
            writer.write([system_row(0, SystemSpace.SCHEMA, ["cluster", REPLICASET])])
            writer.write([system_row(i, SystemSpace.CLUSTER, [i, uuid]) for i, uuid in members.items()])
        self.spool.continue_from(vclock)
        return self

    def put(self, origin: int, count: int = 1) -> Self:
        for _ in range(count):
            self._append(origin, RequestType.REPLACE, encode_body(space_id=512, tuple_=msgpack.packb([1])))
        return self

    def register(self, id_: int, uuid: str, kind: RequestType = RequestType.INSERT) -> Self:
        tuple_ = msgpack.packb([id_, uuid])
        self._append(1, kind, encode_body(space_id=SystemSpace.CLUSTER, tuple_=tuple_))
        return self

    def replace_in_place(self, id_: int, uuid: str) -> Self:
        operations = msgpack.packb([["=", 1, uuid]])
        body = encode_body(space_id=SystemSpace.CLUSTER, key=msgpack.packb([id_]), tuple_=operations)
        self._append(1, RequestType.UPDATE, body)
        return self

    def expel(self, id_: int) -> Self:
        body = encode_body(space_id=SystemSpace.CLUSTER, key=msgpack.packb([id_]))
        self._append(1, RequestType.DELETE, body)
        return self

    def name_replicaset(self) -> None:
        body = encode_body(space_id=SystemSpace.SCHEMA, tuple_=msgpack.packb(["cluster", REPLICASET]))
        self._append(1, RequestType.REPLACE, body)

    def lsn(self, origin: int) -> int:
        return (self.spool.vclock or {}).get(origin, 0)

    def _append(self, origin: int, type_: int, body: bytes) -> None:
        lsn = self.lsn(origin) + 1
        row = encode_row(type_, body, timestamp=1.5, replica_id=origin, lsn=lsn)
        self.spool.append(np.frombuffer(row, np.uint8), {origin: lsn})


async def receive_rows(
    relay: Relay, origins: list[str], vclock: dict[int, int], until: tuple[int, int]
) -> list[tuple[int, int]]:
    """Subscribe, and return (replica id, lsn) of the received rows up to a given one, except NOPs."""
    async with Client(relay) as client:
        await client.greet()
        body: dict[int, Any] = {
            MessageKey.INSTANCE_UUID: SUBSCRIBER_PREFIX,
            MessageKey.VCLOCK: vclock,
            MessageKey.REPLICA_ANON: True,
            MessageKey.ORIGINS: origins,
        }
        client.writer.write(encode_packet(Command.SUBSCRIBE, 1, body))
        await client.answer()
        found: list[tuple[int, int]] = []
        seen: list[tuple[int, int]] = []
        async with asyncio.timeout(20):
            while until not in found:
                packet = await client.answer()
                if packet.error_code is not None:
                    raise ServerError(packet.body[MessageKey.ERROR_24], code=packet.error_code)
                if packet.type == RequestType.NOP:
                    seen.append((packet.header[HeaderKey.REPLICA_ID], packet.header[HeaderKey.LSN]))
                elif HeaderKey.LSN in packet.header:
                    found.append((packet.header[HeaderKey.REPLICA_ID], packet.header[HeaderKey.LSN]))
        for id_ in {origin for origin, _ in seen + found}:
            lsns = sorted(lsn for origin, lsn in seen + found if origin == id_)
            assert lsns == list(range(lsns[0], lsns[-1] + 1)), f"a hole in {id_}"
        return found


def sent(directory: Path, origins: list[str], vclock: dict[int, int], last: int) -> list[tuple[int, int]]:
    """Return (replica id, lsn) of the rows that a relay sends up to lsn `last` of id 1, except NOPs."""

    async def rows() -> list[tuple[int, int]]:
        async with relaying(directory) as relay:
            return await receive_rows(relay, [A, *origins], vclock, (1, last))

    return asyncio.run(rows())


def received(directory: Path, origins: list[str], vclock: dict[int, int], last: int) -> list[tuple[int, int]]:
    """Return what is sent, without the rows of A."""
    return [row for row in sent(directory, origins, vclock, last) if row[0] != 1]


@pytest.fixture
def written(tmp_path: Path) -> WrittenSpool:
    """Return a spool in which id 2 belongs to B, and from the middle of the log on to C; in one or several blocks."""
    spool_writer = WrittenSpool(tmp_path).begin({1: A, 2: B}, {1: 10}).put(2, 3).put(1)
    spool_writer.expel(2)
    spool_writer.put(2)  # a row after the expulsion is still of the old owner
    spool_writer.register(2, C).put(2, 3).put(1)
    spool_writer.spool.close()
    return spool_writer


ROWS_OF_B, ROWS_OF_C = [(2, n) for n in (1, 2, 3, 4)], [(2, n) for n in (5, 6, 7)]
ROWS_OF_A = [(1, n) for n in (11, 12, 13, 14)]


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    ("origins", "wanted"),
    [([B], ROWS_OF_B), ([C], ROWS_OF_C), ([B, C], ROWS_OF_B + ROWS_OF_C), ([A], ROWS_OF_A)],
)
def test_rows_belong_to_the_owner_of_the_id_at_that_time(
    tmp_path: Path, origins: list[str], wanted: list[tuple[int, int]]
) -> None:
    found = sent(tmp_path, origins, {1: 10}, 14)
    assert [one for one in found if one not in ROWS_OF_A] == [one for one in wanted if one not in ROWS_OF_A]
    assert [one for one in found if one in ROWS_OF_A] == ROWS_OF_A


@pytest.mark.usefixtures("written")
def test_a_subscriber_with_rows_begins_with_the_right_owner(tmp_path: Path) -> None:
    assert sent(tmp_path, [C], {1: 12, 2: 4}, 14) == [(1, 13), *ROWS_OF_C, (1, 14)]
    assert sent(tmp_path, [C], {1: 13, 2: 5}, 14) == [(2, 6), (2, 7), (1, 14)]


async def test_an_id_gets_another_owner_while_rows_are_sent(written: WrittenSpool, tmp_path: Path) -> None:
    async with relaying(tmp_path) as relay:
        waiting = asyncio.create_task(receive_rows(relay, [A, C], {1: 14, 2: 7}, (1, 17)))
        await asyncio.sleep(0)
        with Spool(tmp_path, SpoolOptions(compress=False)) as written.spool:
            written.put(2).replace_in_place(2, B).put(2, 2).register(3, C).put(3).put(1)
        assert await waiting == [(2, 8), (1, 15), (1, 16), (3, 1), (1, 17)]


def test_each_log_begins_with_its_own_owners_of_ids(tmp_path: Path) -> None:
    """A snapshot is between two logs; the second log does not register its instances."""
    spool_writer = WrittenSpool(tmp_path).begin({1: A, 2: B}, {1: 10}).put(2, 2).put(1)
    spool_writer.begin({1: A, 2: C}, {1: 11, 2: 2}).put(2, 2).put(1)
    spool_writer.spool.close()

    async def ran(origin: str) -> list[tuple[int, int]]:
        async with relaying(tmp_path) as relay:
            assert relay.catalog.cluster in ({}, {1: A, 2: C})
            return await receive_rows(relay, [A, origin], {1: 10}, (1, 12))

    assert asyncio.run(ran(B)) == [(2, 1), (2, 2), (1, 11), (1, 12)]
    assert asyncio.run(ran(C)) == [(1, 11), (2, 3), (2, 4), (1, 12)]


def test_several_registrations_in_one_block_are_applied_in_order(tmp_path: Path) -> None:
    spool_writer = WrittenSpool(tmp_path).begin({1: A, 2: B}, {1: 10})
    body = encode_body(space_id=512, tuple_=msgpack.packb([1]))
    members = [[2, C], [2, B]]
    rows, lsn = b"", 0
    for number, member in enumerate(members):
        for _ in range(2):
            lsn += 1
            rows += encode_row(RequestType.REPLACE, body, timestamp=1.5, replica_id=2, lsn=lsn)
        cluster = encode_body(space_id=SystemSpace.CLUSTER, tuple_=msgpack.packb(member))
        rows += encode_row(RequestType.REPLACE, cluster, timestamp=1.5, replica_id=1, lsn=11 + number)
    rows += encode_row(RequestType.REPLACE, body, timestamp=1.5, replica_id=2, lsn=5)
    rows += encode_row(RequestType.REPLACE, body, timestamp=1.5, replica_id=1, lsn=13)
    spool_writer.spool.append(np.frombuffer(rows, np.uint8), {1: 13, 2: 5})
    spool_writer.spool.close()

    assert sent(tmp_path, [C], {1: 10}, 13) == [(1, 11), (2, 3), (2, 4), (1, 12), (1, 13)]
    assert sent(tmp_path, [B], {1: 10}, 13) == [(2, 1), (2, 2), (1, 11), (1, 12), (2, 5), (1, 13)]


def test_rows_before_their_registration_are_of_the_registered_instance(tmp_path: Path) -> None:
    """A spool with `feed: own_peer` may have such rows, also in an earlier log than the registration."""
    spool_writer = WrittenSpool(tmp_path).begin({1: A, 2: B}, {1: 10}).put(3, 2).put(1)
    spool_writer.spool.close()
    spool_writer.put(3).register(3, C).put(3).expel(3)
    spool_writer.register(3, B).put(3).put(1)
    spool_writer.spool.close()
    assert len(list(tmp_path.glob("*.xlog"))) == 2
    assert received(tmp_path, [C], {1: 10}, 15) == [(3, 1), (3, 2), (3, 3), (3, 4)]
    assert received(tmp_path, [B], {1: 10}, 15) == [(3, 5)]
    assert received(tmp_path, [C], {1: 11, 3: 2}, 15) == [(3, 3), (3, 4)]


async def test_rows_of_an_unknown_instance_are_refused_until_it_is_registered(tmp_path: Path) -> None:
    spool_writer = WrittenSpool(tmp_path).begin({1: A, 2: B}, {1: 10}).put(1).put(3)
    spool_writer.put(1)
    spool_writer.spool.close()

    async with relaying(tmp_path) as relay:
        with pytest.raises(ServerError, match="no row of _cluster names the instance of replica id 3"):
            await receive_rows(relay, [A, C], {1: 10}, (1, 12))
        assert await receive_rows(relay, [A, C], {1: 10}, (1, 11)) == [(1, 11)]
        with Spool(tmp_path, SpoolOptions(compress=False)) as spool_writer.spool:
            spool_writer.register(3, C)
        while relay.catalog.vclock.get(1) != 13:
            await asyncio.sleep(0.01)
        assert await receive_rows(relay, [A, C], {1: 10}, (1, 13)) == [(1, 11), (3, 1), (1, 12), (1, 13)]


@pytest.mark.parametrize("change", ["expel", "rename", "replace"])
def test_rows_before_an_id_passes_to_another_instance_are_not_of_that_one(
    tmp_path: Path, change: str
) -> None:
    """The spool begins without a snapshot, so it does not name the first instance of id 2."""
    spool_writer = WrittenSpool(tmp_path)
    spool_writer.spool.begin_at({1: 10})
    spool_writer.name_replicaset()
    spool_writer.register(1, A).put(2)
    if change == "expel":
        spool_writer.expel(2).register(2, C)
    elif change == "rename":
        spool_writer.replace_in_place(2, C)
    else:
        spool_writer.register(2, C, RequestType.REPLACE)
    last = spool_writer.lsn(1)
    spool_writer.put(2).put(1)
    spool_writer.spool.close()
    for origin in (C, B):
        with pytest.raises(ServerError, match="no row of _cluster names the instance of replica id 2"):
            received(tmp_path, [origin], {1: 10}, last + 1)
    assert received(tmp_path, [C], {1: last, 2: 1}, last + 1) == [(2, 2)]


@pytest.mark.parametrize("has_gap", [False, True])
def test_a_snapshot_names_the_instances_of_rows_before_it_unless_rows_are_missing(
    tmp_path: Path, has_gap: bool
) -> None:
    """The spool had another snapshot at its beginning, which is removed."""
    spool_writer = WrittenSpool(tmp_path).begin({1: A, 2: C}, {1: 10}).put(2).put(1)
    spool_writer.begin({1: A, 2: C}, {1: 15 if has_gap else 11, 2: 1}).put(1)
    spool_writer.spool.close()
    min(tmp_path.glob("*.snap")).unlink()
    if has_gap:
        with pytest.raises(ServerError, match="no row of _cluster names the instance of replica id 2"):
            received(tmp_path, [C], {1: 10}, 11)
    else:
        assert received(tmp_path, [C], {1: 10}, 12) == [(2, 1)]
        assert received(tmp_path, [B], {1: 10}, 12) == []


async def test_rows_that_register_define_or_settle_pass_any_whitelist(tmp_path: Path) -> None:
    """The rows are of an instance outside of the whitelist; its other rows become NOPs with the same timestamps."""
    spool_writer = WrittenSpool(tmp_path).begin({1: A, 2: B}, {1: 10})
    defines = encode_body(space_id=SystemSpace.SPACE, tuple_=msgpack.packb([512, 1, "s"]))
    plain = encode_body(space_id=512, tuple_=msgpack.packb([1]))
    rows = [
        (RequestType.INSERT, defines, 1, 1, False),
        (RequestType.REPLACE, plain, 2, 1, False),
        (RequestType.DELETE, encode_body(space_id=512, key=msgpack.packb([1])), 3, 1, True),
        (
            RequestType.REPLACE,
            encode_body(space_id=SystemSpace.SEQUENCE_DATA, tuple_=b"\x91\x01"),
            4,
            4,
            True,
        ),
        (RequestType.RAFT_CONFIRM, msgpack.packb({2: 1, 3: 5}), 5, 5, True),
        (RequestType.NOP, b"", 6, 6, True),
    ]
    packed = b"".join(
        encode_row(kind, body, timestamp=1.5, replica_id=2, lsn=lsn, tsn=tsn, is_commit=last)
        for kind, body, lsn, tsn, last in rows
    )
    spool_writer.spool.append(np.frombuffer(packed, np.uint8), {2: 6})
    spool_writer.put(1)
    spool_writer.spool.close()

    async with relaying(tmp_path) as relay, Client(relay) as client:
        await client.greet()
        body: dict[int, Any] = {
            MessageKey.INSTANCE_UUID: SUBSCRIBER_PREFIX,
            MessageKey.VCLOCK: {1: 10},
            MessageKey.REPLICA_ANON: True,
            MessageKey.ORIGINS: [A],
        }
        client.writer.write(encode_packet(Command.SUBSCRIBE, 1, body))
        await client.answer()
        found: list[tuple[Any, ...]] = []
        async with asyncio.timeout(20):
            while not found or found[-1][1:3] != (1, 11):
                packet = await client.answer()
                header = packet.header
                if HeaderKey.LSN in header:
                    keys = (HeaderKey.REPLICA_ID, HeaderKey.LSN, HeaderKey.TIMESTAMP)
                    optional = (header.get(HeaderKey.TSN, 0), header.get(HeaderKey.FLAGS, 0))
                    found.append((packet.type, *(header[key] for key in keys), *optional, bool(packet.body)))
    nop = int(RequestType.NOP)
    assert found == [
        (RequestType.INSERT, 2, 1, 1.5, 0, 0, True),
        (nop, 2, 2, 1.5, 1, 0, False),
        (nop, 2, 3, 1.5, 2, 1, False),
        (nop, 2, 4, 1.5, 0, 0, False),
        (RequestType.RAFT_CONFIRM, 2, 5, 1.5, 0, 0, True),
        (nop, 2, 6, 1.5, 0, 0, False),
        (RequestType.REPLACE, 1, 11, 1.5, 0, 0, True),
    ]

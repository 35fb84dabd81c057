"""Kinds of cases of the protocol: greetings, streams, a server's answers, and what a relay's clients send."""

import asyncio
import atexit
import shutil
import tempfile
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from schemas.errors import AggregatorError, ProtocolError
from schemas.iproto import Command, HeaderKey, MessageKey, SystemSpace
from sources.iproto.address import Address
from sources.iproto.greeting import parse_greeting
from sources.iproto.messages import (
    answer_vclock,
    parse_ballot,
    parse_cluster,
    parse_cluster_info,
    parse_replica_id,
    parse_replicaset_uuid,
    parse_tuples,
    parse_uuid,
    printable,
)
from sources.iproto.packet import Packet, decode_packet, encode_packet, packet_bounds
from sources.iproto.row_stream import RowStream, SnapshotStream
from sources.relay.admission import AdmittedConnection, ConnectionLimiter
from sources.relay.options import ClientLimits, RelayOptions
from sources.relay.session import RelaySession
from sources.spool.catalog import SpoolCatalog
from tests.fuzz import draw as made
from tests.fuzz.draw import Draw
from tests.sources.iproto.streams import heartbeat, stream, transaction
from tests.sources.relay.spools import A1, REPLICASET, write_spool

LIMIT = 1 << 20


def greetings(draw: Draw) -> None:
    line = b"Tarantool 2.6.0 (Binary) aaaaaaaa-0000-4000-8000-0000000000a1".ljust(63) + b"\n"
    parse_greeting(
        made.mutated(draw, line + b"c2FsdHNhbHRzYWx0c2FsdHNhbHRzYWx0c2FsdHNhbHQ=".ljust(63) + b"\n")
    )


def streams(draw: Draw) -> None:
    """Streams of SUBSCRIBE and FETCH_SNAPSHOT, changed and cut anywhere: the same rows for any cuts."""
    lsn, parts = 1, []
    for _ in range(draw.size(5) + 1):
        size = draw.randrange(1, 4)
        parts.append(transaction(1, lsn, size, 1.5, draw.randbytes(draw.size(40))))
        lsn += size
    data = stream(parts) + (heartbeat() if draw.chance(2) else b"")
    if draw.chance(2):
        data = made.mutated(draw, data)
    is_snapshot = draw.chance(3)
    whole, cut = (
        _fed(data, [], is_snapshot),
        _fed(data, sorted(draw.randrange(len(data) + 1) for _ in range(4)), is_snapshot),
    )
    assert whole == cut, "other rows for other cuts"


def _fed(data: bytes, cuts: list[int], is_snapshot: bool) -> tuple[bytes, str | None]:
    rows = bytearray()
    sink: Any = (
        SnapshotStream(lambda part: rows.extend(part.tobytes()), "peer", 1.0)
        if is_snapshot
        else RowStream({}, lambda part: rows.extend(part.rows.tobytes()), "peer")
    )
    left, edges = b"", [0, *cuts, len(data)]
    try:
        for begin, end in pairwise(edges):
            left += data[begin:end]
            buffer = np.frombuffer(left, np.uint8) if left else np.zeros(1, np.uint8)
            at, _, is_non_row_packet = sink.feed(buffer, 0, len(left))
            left = left[at:]
            if is_non_row_packet:
                break
    except ProtocolError as error:
        return bytes(rows), error.reason
    return bytes(rows), None


# A server's answers.

_VERSION = (2, 11, 0)
_CLUSTER: list[Any] = [[1, A1], [2, "a0000002-0000-4000-8000-000000000002", "name"], [31, A1[:-1] + "9"]]
_BALLOT = {0: True, 1: {0: 3, 1: 8}, 2: {1: 2}, 3: False, 4: True, 5: 1}


def _bodies(draw: Draw) -> dict[int, Any]:
    """Return the body of some answer that a daemon asks for."""
    bodies: tuple[dict[int, Any], ...] = (
        {MessageKey.DATA: _CLUSTER},
        {
            MessageKey.DATA: [
                ["cluster", REPLICASET],
                ["replicaset_uuid", REPLICASET],
                ["version", 2, 11, 0],
            ]
        },
        {MessageKey.BALLOT: _BALLOT},
        {MessageKey.VCLOCK: {0: 1, 1: 5, 31: 2**63 - 1}},
        {MessageKey.REPLICASET_UUID: REPLICASET, MessageKey.VCLOCK: {1: 5}},
        {MessageKey.CLUSTER_LENGTH: 2, MessageKey.REPLICA_ID: 1, MessageKey.INSTANCE_UUID: A1},
        {MessageKey.ERROR_24: "Access is denied"},
    )
    return draw.choice(bodies)


def _frame(draw: Draw, kind: int, body: Any) -> bytes:
    """Return a packet with its length, changed in its tree, its bytes, both or neither."""
    if draw.chance(2):
        body = made.mixed_up(draw, body)
    header = made.mixed_up(draw, {HeaderKey.SCHEMA_VERSION: 80}) if draw.chance(4) else {}
    whole = body if isinstance(body, dict) else {MessageKey.DATA: body}
    try:
        data = encode_packet(kind, draw.randrange(5), whole, header if isinstance(header, dict) else {})
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError):
        data = encode_packet(kind, 1, {})
    return made.mutated(draw, data) if draw.chance(3) else data


def answers(draw: Draw) -> None:
    """Answers of a server to what a daemon asks: read as each of them, whatever they are."""
    packets: list[Packet] = []
    kind, body = draw.choice((0, Command.CLUSTER_INFO, 0x8000 | 32, draw.number() & 0xFFFF)), _bodies(draw)
    for _ in range(draw.size(3) + 1):
        data = _frame(draw, kind, body)
        found = packet_bounds(data, 0, len(data), LIMIT)
        if found is not None:
            packets.append(decode_packet(data[slice(*found)]))
    readers = (
        *(
            lambda packet: parse_ballot(packet, _VERSION),
            lambda packet: parse_cluster(parse_tuples(packet)),
            lambda packet: parse_replicaset_uuid(parse_tuples(packet)),
        ),
        *(
            answer_vclock,
            lambda packet: parse_uuid(packet.body.get(MessageKey.REPLICASET_UUID)),
            lambda packet: parse_replica_id(packet.body.get(MessageKey.REPLICA_ID)),
            lambda packet: printable(packet.body),
        ),
    )
    for packet in packets:
        for reader in readers:
            try:
                reader(packet)
            except AggregatorError:
                continue
    if kind == Command.CLUSTER_INFO:
        found_ids = parse_cluster_info(packets)
        assert found_ids is None or all(0 < one < 32 for one in found_ids)


# A relay's clients.


@lru_cache
def _served() -> tuple[RelayOptions, SpoolCatalog]:
    """Return a relay's options and a spool with some rows: made once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-relay-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_spool(folder / "spool", rows=3)
    address = Address("127.0.0.1", 0)
    options = RelayOptions(
        "a",
        folder / "spool",
        address,
        allows_guest=True,
        heartbeat_seconds=9.0,
        silence_seconds=5.0,
        poll_seconds=0.0,
    )
    catalog = SpoolCatalog(folder / "spool")
    catalog.refresh()
    return options, catalog


class _Writer:
    """Takes what a session sends."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.transport = SimpleNamespace(abort=lambda: None)

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        """Nothing waits here, but others get their turn."""
        await asyncio.sleep(0)

    def get_extra_info(self, _name: str) -> str:
        return "a client"


_SUBSCRIBE: dict[int, Any] = {
    MessageKey.INSTANCE_UUID: A1,
    MessageKey.REPLICASET_UUID: REPLICASET,
    MessageKey.VCLOCK: {1: 6},
    MessageKey.REPLICA_ANON: True,
    MessageKey.ID_FILTER: [2, 3],
    MessageKey.ORIGINS: [A1],
    MessageKey.CLUSTER_CRC32: 7,
}


def clients(draw: Draw) -> None:
    """What a relay's clients send: requests in any order, changed anywhere. The relay's answers are whole packets."""
    requests: tuple[tuple[int, dict[int, Any]], ...] = (
        (Command.PING, {}),
        (Command.VOTE, {}),
        (Command.ID, {MessageKey.VERSION: 5, MessageKey.FEATURES: [0, 1]}),
        (Command.AUTH, {MessageKey.USER_NAME: "u", MessageKey.TUPLE: ["chap-sha1", b"x" * 20]}),
        (Command.SELECT, {0x10: SystemSpace.CLUSTER, 0x11: 0, 0x12: 100, 0x20: []}),
        (Command.FETCH_SNAPSHOT, {}),
        (Command.SUBSCRIBE, _SUBSCRIBE),
        (draw.number() & 0xFF, {}),
    )
    data = b"".join(_frame(draw, *draw.choice(requests)) for _ in range(draw.size(4) + 1))
    if draw.chance(2):
        data += _frame(draw, 0, {MessageKey.VCLOCK: {1: 7}})
    sent = asyncio.run(_answered(data))
    at = 0
    while at < len(sent):
        found = packet_bounds(sent, at, len(sent), LIMIT)
        assert found is not None, "an answer that is cut off"
        decode_packet(sent[slice(*found)])
        at = found[1]


async def _answered(data: bytes) -> bytes:
    options, catalog = _served()
    reader, writer = asyncio.StreamReader(), _Writer()
    reader.feed_data(data)
    reader.feed_eof()
    limiter = ConnectionLimiter(ClientLimits())
    entry = cast(AdmittedConnection, limiter.admit("127.0.0.1", lambda: None))
    session = RelaySession(
        options, catalog, limiter, entry, b"s" * 32, reader, cast(asyncio.StreamWriter, writer)
    )
    try:
        async with asyncio.timeout(10):
            await session.run()
    except AggregatorError:
        pass
    finally:
        limiter.remove(entry)
    return bytes(writer.sent)

"""Each malformed answer of a peer raises a ProtocolError for its connection, and takes little memory."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import IprotoError, ProtocolError, XlogMetaError
from schemas.iproto import Command
from sources.iproto import messages
from sources.iproto.packet import ANSWER_MAX_BYTES, Packet, decode_packet, encode_packet, packet_bounds
from sources.iproto.wire import WireProtocol, server_error
from sources.xlog.format.meta import REPLICASET_KEY, Meta, format_meta
from tests.sources.iproto.streams import with_length

A1 = "a0000001-0000-4000-8000-000000000001"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.integers(0, 130) | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
@settings(deadline=None)
def test_a_malformed_answer_is_a_protocol_error(value: Any) -> None:
    packets = [Packet(0, body=dict.fromkeys((38, 41, 48, 2, 36, 114), value))]
    for read in (
        lambda: messages.answer_vclock(packets[0]),
        lambda: messages.parse_ballot(packets[0], (2, 6, 0)),
        lambda: messages.parse_cluster(messages.parse_tuples(packets[0])),
        lambda: messages.parse_replicaset_uuid(messages.parse_tuples(packets[0])),
        lambda: messages.parse_cluster_info(packets),
    ):
        with contextlib.suppress(ProtocolError):
            read()


@pytest.mark.parametrize(
    "vclock",
    [{1: 2**63}, {1: 2**64 - 1}, {1: True}, {True: 1}, {1: 1.0}, {32: 1}, {1: -1}, {1: 2**62, 2: 2**62}, [1]],
)
def test_a_malformed_vclock_is_refused(vclock: Any) -> None:
    """The sum of the lsns becomes a file's name, so it is limited too."""
    with pytest.raises(ProtocolError):
        messages.parse_vclock_map(vclock)


@pytest.mark.parametrize(
    "row", [[1], [], 7, None, [1, 5], [1, "no uuid"], ["1", A1], [0, A1], [32, A1], [True, A1], {0: 1, 1: A1}]
)
def test_a_malformed_tuple_of_cluster_is_refused(row: Any) -> None:
    with pytest.raises(ProtocolError):
        messages.parse_cluster([row])


def test_a_repeated_replica_id_is_refused() -> None:
    with pytest.raises(ProtocolError):
        messages.parse_cluster([[1, A1], [1, A1]])
    assert messages.parse_cluster([[1, A1.upper()]]) == {1: A1}


@pytest.mark.parametrize("value", [None, 5, "", f"{A1}\nVClock: {{1: 5}}\n", [A1]])
def test_a_malformed_replicaset_uuid_is_refused(value: Any) -> None:
    """The uuid is written into the headers of files, where a line break would add a line."""
    with pytest.raises(ProtocolError):
        messages.parse_replicaset_uuid([["cluster", value]])
    with pytest.raises(ProtocolError):
        messages.parse_replicaset_uuid([[value]])


@pytest.mark.parametrize("value", [f"{A1}\nVClock: {{1: 5}}", "a\n\n"])
def test_a_header_with_a_line_break_is_not_written(value: str) -> None:
    with pytest.raises(XlogMetaError, match="line break"):
        format_meta(Meta("XLOG", "0.13", A1, {}, None, {REPLICASET_KEY: value}))
    with pytest.raises(XlogMetaError, match="line break"):
        format_meta(Meta("XLOG", "0.13", A1, {}, None, {value: A1}))


def test_a_truncated_body_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_packet(b"\x80\x81\x30")


def test_an_error_is_shown_in_one_line_of_bounded_length() -> None:
    text = "no\nERROR forged \x1b[31m" + "x" * 10_000
    printable = str(server_error(Packet(0x8000 | 77, body={0x31: text}), "peer"))
    assert "\n" not in printable
    assert "\x1b" not in printable
    assert len(printable) < 1500


class Transport(asyncio.Transport):
    """Stores the written bytes, and whether the connection was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    family = 1  # AF_UNIX

    def abort(self) -> None:
        self.aborted = True


def feed_answer(
    data: bytes, before: Callable[[WireProtocol], None] = lambda _: None
) -> tuple[WireProtocol, Exception | None]:
    """Feed bytes to a connection with one pending request; return the connection and the request's error."""

    async def run() -> tuple[WireProtocol, Exception | None]:
        wire = WireProtocol("peer")
        wire.connection_made(Transport())
        wire.greeting.set_result(None)  # type: ignore[arg-type]
        answer = wire.expect_answer()
        before(wire)
        left = data
        while left and not wire.closed.done():
            room = wire.get_buffer(-1)
            size = min(len(room), len(left))
            room[:size] = left[:size]
            wire.buffer_updated(size)
            left = left[size:]
        error = answer.exception() if answer.done() else None
        return wire, error if isinstance(error, Exception) else None

    return asyncio.run(run())


INFO = encode_packet(Command.CLUSTER_INFO, 1, {0x72: 1, 2: 1, 0x24: A1})


def test_cluster_information_is_accepted_only_if_requested() -> None:
    wire, error = feed_answer(INFO)
    assert isinstance(error, ProtocolError)
    assert wire.cluster_info == []
    wire, error = feed_answer(31 * INFO, WireProtocol.allow_cluster_info)
    assert (error, len(wire.cluster_info)) == (None, 31)
    _, error = feed_answer(32 * INFO, WireProtocol.allow_cluster_info)
    assert isinstance(error, ProtocolError)


def test_cluster_information_after_the_answer_is_refused() -> None:
    _, error = feed_answer(INFO + encode_packet(0, 1, {}) + INFO, WireProtocol.allow_cluster_info)
    assert error is None
    wire, _ = feed_answer(encode_packet(0, 1, {}) + INFO, WireProtocol.allow_cluster_info)
    assert isinstance(wire.closed.exception(), ProtocolError)


def test_an_answer_beyond_the_limit_is_refused_by_its_length() -> None:
    """Nested lists take 75 times their bytes, so only small answers are accepted."""
    head = b"\xce" + (ANSWER_MAX_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(ProtocolError):
        packet_bounds(head, 0, len(head), ANSWER_MAX_BYTES)
    _, error = feed_answer(head)
    assert isinstance(error, IprotoError)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_random_bytes_raise_protocol_errors_only(noise: bytes) -> None:
    for data in (noise, with_length(noise), with_length(msgpack.packb({0: 0, 1: 1}) + noise)):
        wire, error = feed_answer(data)
        assert error is None or isinstance(error, IprotoError)
        assert wire.received_bytes == len(data) or wire.closed.done()


def test_a_peers_text_is_bounded_in_messages() -> None:
    with pytest.raises(ProtocolError) as error:
        messages.parse_vclock_map(["x" * 100_000])
    assert len(str(error.value)) < 1000

"""Greetings, packets, bodies and addresses: sent bytes equal those that a server accepted; invalid input is refused."""

import pickle
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import (
    AccessError,
    ConfigurationError,
    GapError,
    IprotoError,
    ProtocolError,
    ServerBusyError,
    ServerError,
)
from schemas.iproto import Command
from sources.iproto import messages
from sources.iproto.address import Address, PasswordSource, parse_address
from sources.iproto.greeting import Greeting, format_greeting, parse_greeting, scramble, scramble_matches
from sources.iproto.packet import Packet, decode_packet, encode_packet, packet_bounds
from sources.iproto.wire import server_error

A1 = "a0000001-0000-4000-8000-000000000001"
ME = "00000000-0000-4000-8000-0000000000ff"


def test_a_formatted_greeting_is_parsed_to_the_same() -> None:
    greeting = Greeting((2, 6, 0), A1, bytes(range(32)))
    assert len(format_greeting(greeting)) == 128
    assert parse_greeting(format_greeting(greeting)) == greeting


def test_greetings_of_all_kinds_of_builds_are_parsed() -> None:
    line = f"Tarantool 3.2.0-entrypoint-12-gabc (Binary) {A1.upper()}".ljust(63) + "\n"
    data = line.encode() + format_greeting(Greeting((1, 0, 0), A1, bytes(32)))[64:]
    if len(line) == 64:
        assert parse_greeting(data).version == (3, 2, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n".ljust(128),
        b"Tarantool 2.6.0 (Lua console)\ntype 'help' for interactive help\n".ljust(128),
        format_greeting(Greeting((2, 6, 0), A1, bytes(32)))[:-1],
        format_greeting(Greeting((2, 6, 0), A1, bytes(32)))[:64] + b"!" * 64,
    ],
)
def test_other_bytes_are_not_a_greeting(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_greeting(data)


def test_a_scramble_proves_the_password() -> None:
    salt = bytes(range(32))
    assert len(scramble("secret", salt)) == 20
    assert scramble_matches(scramble("secret", salt), "secret", salt)
    assert not scramble_matches(scramble("Secret", salt), "secret", salt)
    assert not scramble_matches(scramble("secret", salt), "secret", salt[::-1])


@given(st.integers(0, 0xFFFF), st.integers(0, 2**32), st.binary(max_size=20))
def test_packets_are_decoded_as_encoded(kind: int, sync: int, value: bytes) -> None:
    data = encode_packet(kind, sync, {0x26: {1: 5}, 0x21: value.decode("utf-8", "surrogateescape")})
    frame = packet_bounds(data, 0, len(data))
    assert frame == (5, len(data))
    packet = decode_packet(data[5:])
    assert (packet.type, packet.sync, packet.body[0x26]) == (kind, sync, {1: 5})
    assert packet.body[0x21].encode("utf-8", "surrogateescape") == value
    assert all(packet_bounds(data, 0, end) is None for end in range(len(data)))


@pytest.mark.parametrize("data", [b"\xc1", b"\x00", b"\xce\xff\xff\xff\xff"])
def test_an_impossible_length_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        packet_bounds(data, 0, len(data))


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x81\x00", b"\x81\x00\x00\x01", b"\x81\x00\x00\x80\x80"])
def test_a_packet_that_is_not_two_maps_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_packet(data)


def test_subscribe_equals_a_request_that_a_real_server_accepted() -> None:
    subscription = messages.Subscription(A1, ME, {2: 2, 0: 9, 1: 28}, (2, 6, 0), frozenset({1}))
    body = encode_packet(Command.SUBSCRIBE, 2, subscription.body())[5:]
    assert body[:5] == bytes.fromhex("8200420102")
    assert body[5:6] == b"\x86"
    assert bytes.fromhex("26 82 01 1c 02 02 06 ce00020600 50 c3") in body
    assert body.endswith(bytes([0x51, 0xDC, 0, 30, *range(2, 32)]))


@given(st.frozensets(st.integers(1, 31)))
def test_the_id_filter_has_all_other_ids(ids: frozenset[int]) -> None:
    black = messages.excluded_ids(ids)
    assert set(black) | ids == set(range(1, 32))
    assert not set(black) & ids


@pytest.mark.parametrize("vclock", [{32: 1}, {-1: 1}, {1: -1}, {1: 2**63}])
def test_a_vclock_with_an_id_beyond_31_is_not_sent(vclock: dict[int, int]) -> None:
    with pytest.raises(ProtocolError):
        messages.Subscription(A1, ME, vclock, (2, 6, 0)).body()
    with pytest.raises(ProtocolError):
        messages.ack_body(vclock, (3, 0, 0))


def test_a_filter_with_an_id_beyond_31_is_refused() -> None:
    with pytest.raises(ProtocolError):
        messages.excluded_ids({32})


def test_a_subscriber_without_uuid_sends_no_request() -> None:
    with pytest.raises(ProtocolError, match="nil"):
        messages.Subscription(A1, "00000000-0000-0000-0000-000000000000", {}, (3, 3, 0)).body()


@pytest.mark.parametrize(
    ("version", "sent"), [((2, 6, 0), {}), ((2, 8, 4), {}), ((2, 10, 0), {1: 5}), ((3, 3, 0), {1: 5})]
)
def test_acknowledgements_are_empty_where_they_count_for_a_quorum(
    version: tuple[int, int, int], sent: dict[int, int]
) -> None:
    assert messages.ack_body({0: 7, 1: 5}, version) == {0x26: sent}


def test_ballots_of_old_and_new_servers() -> None:
    for is_read_only in (True, False):  # a replica; a master without its peers
        old = Packet(0, body={0x29: {1: is_read_only, 4: True, 2: {0: 9, 1: 24}, 3: {}}})
        assert messages.parse_ballot(old, (2, 6, 0)) == messages.Ballot({1: 24}, {}, is_loading=False)
    empty = Packet(0, body={0x29: {1: True, 4: True, 2: {}, 3: {}}})
    assert messages.parse_ballot(empty, (2, 6, 0)) == messages.Ballot({}, {}, is_loading=True)
    new = Packet(0, body={0x29: {4: True, 2: {1: 24}, 3: {1: 3}, 6: True}})
    assert messages.parse_ballot(new, (2, 11, 0)) == messages.Ballot({1: 24}, {1: 3}, is_loading=False)
    with pytest.raises(ProtocolError):
        messages.parse_ballot(Packet(0), (2, 6, 0))


def error_for(code: int, message: str) -> IprotoError:
    return server_error(
        decode_packet(msgpack.packb({0: 0x8000 | code, 1: 2}) + msgpack.packb({0x31: message})), "a1"
    )


def test_an_answer_of_an_error_has_its_own_class() -> None:
    assert isinstance(error_for(116, "loading"), ServerBusyError)
    assert isinstance(error_for(42, "denied"), AccessError)
    assert "replication" in str(error_for(42, "denied"))
    assert isinstance(error_for(32, "Missing .xlog file between LSN 1 and 5"), GapError)
    assert isinstance(error_for(219, "anything"), GapError)
    assert not isinstance(error_for(32, "another error of Lua"), GapError)
    assert type(error_for(9999, "unknown")) is ServerError


def test_errors_can_be_pickled() -> None:
    error = error_for(42, "denied")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


@pytest.mark.parametrize(
    ("text", "user", "address"),
    [
        ("a1:3301", None, Address("a1", 3301)),
        ("u@[::1]:3301", "u", Address("::1", 3301)),
        ("unix/:/run/a1.sock", None, Address(path="/run/a1.sock")),
    ],
)
def test_addresses_are_parsed(text: str, user: str | None, address: Address) -> None:
    assert parse_address(text) == (user, address)
    assert str(address) == text.rpartition("@")[2]


@pytest.mark.parametrize("text", ["a1", "a1:0", "a1:99999", ":3301", "unix/:rel", "user:pw@a1:3301"])
def test_other_text_is_not_an_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"address"):
        parse_address(text)


def test_passwords_come_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "one")
    (tmp_path / "password").write_text("two\nnot this\n")
    assert PasswordSource(env_variable="SECRET_OF_TEST").read() == "one"
    assert PasswordSource(file=str(tmp_path / "password")).read() == "two"
    assert PasswordSource().read() == ""
    for missing in (
        PasswordSource(env_variable="NOT_SET_ANYWHERE"),
        PasswordSource(file=str(tmp_path / "none")),
    ):
        with pytest.raises(ConfigurationError):
            missing.read()
    assert "two" not in repr(PasswordSource(file=str(tmp_path / "password")))

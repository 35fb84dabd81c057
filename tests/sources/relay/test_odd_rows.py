"""Rows in a spool that no server writes: each is sent as one complete packet, or refused."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from schemas.errors import ProtocolError
from schemas.iproto import HeaderKey, RequestType
from sources.iproto.packet import decode_packet
from sources.relay.outflow import RowFramer

BODY: bytes = msgpack.packb({0x10: 512, 0x21: [1]})


def row(**further: int) -> bytes:
    header = {HeaderKey.TYPE: RequestType.INSERT, HeaderKey.REPLICA_ID: 1, HeaderKey.LSN: 7} | further
    data: bytes = msgpack.packb({int(key): int(value) for key, value in header.items()})
    return data + BODY


def frames_of(data: bytes, *, snapshot: bool = False) -> bytes:
    return b"".join(RowFramer(3, {}).packets(np.frombuffer(data, np.uint8), is_snapshot=snapshot))


@pytest.mark.parametrize("keys", range(12))
def test_a_header_stays_a_map_whatever_it_has(keys: int) -> None:
    """A map's head of one byte counts to 15, and the relay adds the request's number."""
    data = row(**{str(0x40 + key): key for key in range(keys)})
    packet = frames_of(data)
    found = decode_packet(packet[5:])
    assert len(found.header) == keys + 4
    assert (found.header[HeaderKey.SYNC], found.body) == (3, {0x10: 512, 0x21: [1]})


@pytest.mark.parametrize("keys", range(12, 30))
def test_a_header_of_too_many_keys_is_refused(keys: int) -> None:
    with pytest.raises(ProtocolError):
        frames_of(row(**{str(0x40 + key): key for key in range(keys)}))


@pytest.mark.parametrize("kind", [0x7F, 0x80, 0xC1, 0xDF, 0x100, 2**40])
def test_a_type_of_more_than_one_byte_is_not_a_snapshot_row(kind: int) -> None:
    data = row(**{str(int(HeaderKey.TYPE)): kind})
    if kind == 0x7F:
        assert decode_packet(frames_of(data, snapshot=True)[5:]).header[HeaderKey.TYPE] == kind
        return
    with pytest.raises(ProtocolError):
        frames_of(data, snapshot=True)

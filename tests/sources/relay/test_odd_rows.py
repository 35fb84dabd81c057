"""Rows in a spool that no server writes: a relay sends each as one complete packet, or refuses it."""

import msgpack
import numpy as np
import pytest

from schemas.errors import ProtocolError
from schemas.iproto import HeaderKey, RequestType
from sources.iproto.packet import decode_packet
from sources.relay.row_packets import RowFramer

BODY: bytes = msgpack.packb({0x10: 512, 0x21: [1]})


def row(**further: int) -> bytes:
    header = {HeaderKey.TYPE: RequestType.INSERT, HeaderKey.REPLICA_ID: 1, HeaderKey.LSN: 7} | further
    data: bytes = msgpack.packb({int(key): int(value) for key, value in header.items()})
    return data + BODY


def packets_of(data: bytes, *, is_snapshot: bool = False) -> bytes:
    return b"".join(RowFramer(3, {}).packets(np.frombuffer(data, np.uint8), is_snapshot=is_snapshot))


@pytest.mark.parametrize("keys", range(12))
def test_a_header_with_up_to_fourteen_keys_stays_a_valid_map(keys: int) -> None:
    """A map with a one-byte head has up to 15 keys, and the relay adds SYNC."""
    data = row(**{str(0x40 + key): key for key in range(keys)})
    packet = packets_of(data)
    found = decode_packet(packet[5:])
    assert len(found.header) == keys + 4
    assert (found.header[HeaderKey.SYNC], found.body) == (3, {0x10: 512, 0x21: [1]})


@pytest.mark.parametrize("keys", range(12, 30))
def test_a_header_of_too_many_keys_is_refused(keys: int) -> None:
    with pytest.raises(ProtocolError):
        packets_of(row(**{str(0x40 + key): key for key in range(keys)}))


@pytest.mark.parametrize("kind", [0x7F, 0x80, 0xC1, 0xDF, 0x100, 2**40])
def test_a_type_of_more_than_one_byte_is_not_a_snapshot_row(kind: int) -> None:
    data = row(**{str(int(HeaderKey.TYPE)): kind})
    if kind == 0x7F:
        assert decode_packet(packets_of(data, is_snapshot=True)[5:]).header[HeaderKey.TYPE] == kind
        return
    with pytest.raises(ProtocolError):
        packets_of(data, is_snapshot=True)

"""The buffer of a connection shrinks again after a large packet."""

import pytest

from sources.iproto.greeting import Greeting
from sources.iproto.row_stream import RowStream, TransactionChunk
from sources.iproto.wire import BUFFER_BYTES, WireProtocol
from tests.sources.iproto.streams import stream, transaction

LARGE = transaction(1, 1, 1, payload=b"x" * 5 * BUFFER_BYTES)
SMALL = [transaction(1, 2 + k, 1) for k in range(2)]


@pytest.mark.parametrize("left", [0, 10])
async def test_memory_of_a_large_packet_is_freed(left: int) -> None:
    """The buffer is empty after the large packet, or has the beginning of the next one."""
    wire, chunks = WireProtocol("peer"), list[TransactionChunk]()
    wire.greeting.set_result(Greeting((2, 6, 0), "", b""))
    wire._sink = RowStream({}, chunks.append, "peer")
    sizes = []
    data = stream([LARGE]) + stream(SMALL)[:left]
    rest = stream(SMALL)[left:]
    while data:
        buffer = wire.get_buffer(-1)
        count = min(len(buffer), len(data))
        buffer[:count], data = data[:count], data[count:]
        wire.buffer_updated(count)
        sizes.append(wire._buffer.size)
    assert max(sizes) > 5 * BUFFER_BYTES
    assert sizes[-1] == BUFFER_BYTES
    buffer = wire.get_buffer(-1)
    buffer[: len(rest)] = rest
    wire.buffer_updated(len(rest))
    assert [chunk.vclock for chunk in chunks][-1] == {1: 3}

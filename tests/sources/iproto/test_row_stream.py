"""Streams become chunks of complete transactions, encoded as in a log, however the bytes are split into reads."""

import contextlib
from collections.abc import Sequence
from itertools import pairwise

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ProtocolError, StreamGapError, TransactionLimitError
from schemas.iproto import RequestType
from sources.iproto import row_stream
from sources.iproto.row_stream import RowStream, SnapshotStream, TransactionChunk, array_to_vclock
from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.kernels.row import walk_row
from tests.soaked import examples
from tests.sources.iproto.streams import (
    Row,
    heartbeat,
    log_bytes,
    packet_bytes,
    stream,
    transaction,
    with_length,
)


class ReceivedRows:
    """Collects the chunks of a stream."""

    def __init__(self, vclock: dict[int, int] | None = None, limit: int = BLOCK_LIMIT) -> None:
        self.chunks: list[TransactionChunk] = []
        self.rows = RowStream(vclock or {}, self.chunks.append, "peer", limit)

    def feed(self, data: bytes, cuts: Sequence[int] = ()) -> None:
        """Feed bytes in several reads: the unprocessed rest is fed again before new bytes."""
        left = b""
        edges = [0, *sorted(cuts), len(data)]
        for begin, end in pairwise(edges):
            left += data[begin:end]
            buffer = np.frombuffer(left, np.uint8) if left else np.zeros(1, np.uint8)
            at, _, is_non_row_packet = self.rows.feed(buffer, 0, len(left))
            assert not is_non_row_packet
            left = left[at:]

    @property
    def log(self) -> bytes:
        return b"".join(chunk.rows.tobytes() for chunk in self.chunks)


@st.composite
def transaction_lists(draw: st.DrawFn) -> list[list[Row]]:
    lsns = {1: 0, 2: 0, 31: 0}
    transactions = []
    for _ in range(draw(st.integers(0, 8))):
        replica, size = draw(st.sampled_from(sorted(lsns))), draw(st.integers(1, 6))
        payload = draw(st.binary(max_size=300))
        transactions.append(transaction(replica, lsns[replica] + 1, size, draw(st.floats(0, 2e9)), payload))
        lsns[replica] += size
    return transactions


@given(transaction_lists(), st.data())
@settings(deadline=None)
def test_any_cut_gives_the_rows_of_the_log(transactions: list[list[Row]], data: st.DataObject) -> None:
    wire = heartbeat() + stream(transactions) + heartbeat()
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=6))
    received = ReceivedRows()
    received.feed(wire, cuts)
    rows = [row for rows in transactions for row in rows]
    assert received.log == log_bytes(rows)
    ends = [len(log_bytes(t)) for t in transactions]
    assert [int(size) for c in received.chunks for size in np.diff(c.ends, prepend=0)] == ends
    assert [t for c in received.chunks for t in c.timestamps.tolist()] == [t[-1].time for t in transactions]
    assert array_to_vclock(received.rows.vclock) == {
        r: max(x.lsn for x in rows if x.replica == r) for r in {x.replica for x in rows}
    }
    assert sum(received.rows.row_counts) == len(rows)
    assert received.rows.heartbeat_count == 2


@given(transaction_lists(), st.data())
@settings(max_examples=examples(50), deadline=None)
def test_a_stream_that_is_cut_and_restarted_gives_each_row_once(
    transactions: list[list[Row]], data: st.DataObject
) -> None:
    wire = stream(transactions)
    cut = data.draw(st.integers(0, len(wire)))
    first = ReceivedRows()
    first.feed(wire[:cut])
    again = ReceivedRows(array_to_vclock(first.rows.vclock))
    again.feed(wire)
    assert first.log + again.log == log_bytes(row for rows in transactions for row in rows)
    assert again.rows.repeated_rows == sum(first.rows.row_counts)


def test_an_incomplete_transaction_is_not_emitted() -> None:
    rows = transaction(1, 1, 3)
    received = ReceivedRows()
    received.feed(stream([rows[:2]]))
    assert (received.log, array_to_vclock(received.rows.vclock)) == (b"", {})


@pytest.mark.parametrize(
    ("transactions", "what"),
    [
        ([transaction(1, 2, 1)], "missing"),
        ([transaction(1, 1, 1), transaction(1, 3, 2)], "missing"),
        ([transaction(1, 1, 3)[::2]], "missing"),
        ([transaction(1, 1, 3)[1:]], "cut"),
        ([transaction(1, 1, 3)[:2], transaction(2, 1, 1)], "cut"),
        ([transaction(1, 1, 2)[:1], transaction(1, 2, 1)], "cut"),
    ],
)
def test_a_missing_lsn_stops_the_stream(transactions: list[list[Row]], what: str) -> None:
    with pytest.raises(StreamGapError, match=what):
        ReceivedRows().feed(stream(transactions))


def test_a_vclock_inside_a_transaction_is_refused() -> None:
    with pytest.raises(StreamGapError, match="cut"):
        ReceivedRows({1: 2}).feed(stream([transaction(1, 1, 3)]))


def test_rows_before_a_missing_lsn_are_emitted() -> None:
    received = ReceivedRows()
    with pytest.raises(StreamGapError) as error:
        received.feed(stream([transaction(1, 1, 2), transaction(1, 9, 1)]))
    assert received.log == log_bytes(transaction(1, 1, 2))
    assert (error.value.fields["lsn"], error.value.fields["wanted"]) == (9, 3)


def test_a_packet_that_is_not_a_row_stops_the_stream() -> None:
    error = with_length(msgpack.packb({0: 0x8020, 1: 2, 5: 1}) + msgpack.packb({0x31: "Missing .xlog file"}))
    wire = stream([transaction(1, 1, 1)]) + error
    chunks: list[TransactionChunk] = []
    at, _, is_non_row_packet = RowStream({}, chunks.append, "p").feed(
        np.frombuffer(wire, np.uint8), 0, len(wire)
    )
    assert is_non_row_packet
    assert wire[at:] == error
    assert len(chunks) == 1


@pytest.mark.parametrize(
    "row", [Row(0, 1, 1, True, 1.0, None), Row(32, 1, 1, True, 1.0, None), Row(1, 0, 0, True, 1.0, None)]
)
def test_an_id_beyond_the_vclock_is_refused(row: Row) -> None:
    with pytest.raises(ProtocolError, match="replica id"):
        ReceivedRows().feed(packet_bytes(row))


@given(st.binary(max_size=80))
@settings(deadline=None)
def test_random_bytes_raise_protocol_errors_only(noise: bytes) -> None:
    for received in (ReceivedRows(), ReceivedRows({1: 5})):
        buffer = np.frombuffer(noise or b"\0", np.uint8)
        try:
            at, _, _ = received.rows.feed(buffer, 0, len(noise))
        except ProtocolError:
            continue
        assert 0 <= at <= len(noise)


def test_transactions_larger_than_the_buffer_are_emitted_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_stream, "OUTPUT_BYTES", 64)
    monkeypatch.setattr(row_stream, "CHUNK_TRANSACTIONS", 2)
    transactions = [transaction(1, 1 + 40 * k, 40, payload=b"y" * 50) for k in range(5)]
    received = ReceivedRows()
    received.feed(stream(transactions))
    assert received.log == log_bytes(row for rows in transactions for row in rows)


LIMIT = 10_000


@pytest.mark.parametrize("cuts", [range(0), range(0, 200_000, 50)])
def test_the_error_of_a_transaction_beyond_the_limit_names_the_limit(cuts: range) -> None:
    """The transaction has many rows, so the limit is checked while it grows; earlier transactions are emitted."""
    before, large = transaction(1, 1, 3, payload=b"x" * 900), transaction(1, 4, 30, payload=b"x" * 900)
    data = stream([before, large, transaction(1, 34, 1)])
    received = ReceivedRows(limit=LIMIT)
    with pytest.raises(TransactionLimitError, match=r"10000 bytes.*max_block_bytes") as error:
        received.feed(data, [cut for cut in cuts if cut < len(data)])
    assert error.value.fields["peer"] == "peer"
    assert received.log == log_bytes(before)
    whole = ReceivedRows(limit=2 * len(data))
    whole.feed(data)
    assert whole.rows.vclock[1] == 34


def test_small_transactions_may_exceed_the_limit_together() -> None:
    transactions = [transaction(1, 1 + 5 * k, 5, payload=b"x" * 900) for k in range(40)]
    received = ReceivedRows(limit=LIMIT)
    received.feed(stream(transactions))
    assert received.log == log_bytes(row for rows in transactions for row in rows)


def test_a_row_beyond_the_limit_is_refused_before_it_is_received() -> None:
    """Otherwise the complete row would be buffered, up to the longest packet of the protocol."""
    (row,) = transaction(1, 1, 1, payload=b"x" * 3 * LIMIT)
    for received in (ReceivedRows(limit=LIMIT).rows, SnapshotStream(lambda _: None, "peer", limit=LIMIT)):
        data = np.frombuffer(packet_bytes(row)[:20], np.uint8)
        with pytest.raises(TransactionLimitError, match="max_block_bytes"):
            received.feed(data, 0, data.size)


def test_memory_of_a_large_transaction_is_freed() -> None:
    received = ReceivedRows()
    received.feed(stream([transaction(1, 1, 40, payload=b"x" * 100_000)]))
    assert received.rows._buffers.out.size == row_stream.OUTPUT_BYTES
    received.feed(stream([transaction(1, 41, 2)]))
    assert received.rows.vclock[1] == 42


def test_rows_of_a_snapshot_are_numbered_as_a_checkpoint_does() -> None:
    bodies = [msgpack.packb({0x10: 272 + k, 0x21: ["v" * k]}) for k in range(300)]
    wire = b"".join(with_length(msgpack.packb({0: 2, 1: 2}) + body) for body in bodies)
    got: list[bytes] = []
    sink = SnapshotStream(lambda rows: got.append(rows.tobytes()), "p", now=7.25)
    buffer = np.frombuffer(wire, np.uint8)
    half, _, _ = sink.feed(buffer, 0, len(wire) // 2)
    at, _, is_non_row_packet = sink.feed(buffer, half, len(wire))
    assert (at, is_non_row_packet, sink.row_count) == (len(wire), False, 300)
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(b"".join(got))
    for k, body in enumerate(bodies):
        assert unpacker.unpack() == ({0: 2, 3: k, 4: 7.25} if k else {0: 2, 4: 7.25})
        assert msgpack.packb(unpacker.unpack()) == body


def test_a_snapshot_has_inserts_only() -> None:
    wire = packet_bytes(Row(1, 1, 1, True, 1.0, b"\x80"))
    with pytest.raises(ProtocolError, match="not an INSERT"):
        SnapshotStream(lambda _: None, "p").feed(np.frombuffer(wire, np.uint8), 0, len(wire))


@pytest.mark.parametrize("kind", [RequestType.INSERT_ARROW, RequestType.DELETE_RANGE, 19, 29, 33, 42])
def test_rows_of_unknown_newer_types_are_accepted(kind: int) -> None:
    """The stream continues after a row of an unknown type."""
    body = msgpack.packb({0x10: 512, 0x37: [1], 0x38: []})
    header = {2: 1, 3: 1, 4: 1.5}
    row = transaction(1, 2, 1)
    received = ReceivedRows()
    received.feed(with_length(msgpack.packb({0: kind, 1: 2, **header}) + body) + stream([row]))
    assert received.log == msgpack.packb({0: kind, **header}) + body + log_bytes(row)


@pytest.mark.parametrize("kind", [RequestType.INSERT_ARROW, 19])
def test_snapshot_rows_of_unknown_newer_types_keep_their_type(kind: int) -> None:
    body = msgpack.packb({0x10: 512, 0x36: msgpack.ExtType(8, b"arrow")})
    wire = with_length(msgpack.packb({0: kind, 1: 2}) + body)
    got: list[bytes] = []
    buffer = np.frombuffer(wire, np.uint8)
    assert SnapshotStream(lambda rows: got.append(rows.tobytes()), "p", now=7.25).feed(buffer, 0, len(wire))[
        0
    ] == len(wire)
    assert got == [msgpack.packb({0: kind, 4: 7.25}) + body]


SMUGGLED = log_bytes([Row(7, 1000, 1000, True, 1.0, msgpack.packb({0x10: 512, 0x21: [1]}))])
SOUND = msgpack.packb({0x10: 512, 0x21: [1]})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        SOUND[:-1],
        SOUND + b"\xc0",
        SOUND + SMUGGLED,
        b"\x82" + SOUND[1:-2] + b"\xdd\xff\xff\xff\xff",
        msgpack.packb([1, 2]),
        msgpack.packb({0x10: 512, 0x21: 7}),
        msgpack.packb({0x10: 2**40, 0x21: [1]}),
    ],
    ids=["none", "cut", "longer", "smuggles a row", "swallows rows", "no map", "no tuple", "no space"],
)
def test_a_packet_that_is_not_exactly_one_row_is_refused(body: bytes) -> None:
    """The checksum is computed when rows are written, so readers could not detect a damaged body later."""
    row = Row(1, 2, 2, True, 1.0, body)
    received = ReceivedRows()
    with pytest.raises(ProtocolError, match="exactly one row"):
        received.feed(stream([transaction(1, 1, 1), [row], transaction(1, 3, 1)]))
    assert received.log == log_bytes(transaction(1, 1, 1))
    wire = with_length(msgpack.packb({0: 2, 1: 2}) + body)
    with pytest.raises(ProtocolError, match="exactly one row"):
        SnapshotStream(lambda _: None, "p").feed(np.frombuffer(wire, np.uint8), 0, len(wire))


def test_a_nop_with_a_body_is_refused() -> None:
    wire = with_length(msgpack.packb({0: 12, 1: 2, 2: 1, 3: 1, 4: 1.0}) + SOUND)
    with pytest.raises(ProtocolError, match="exactly one row"):
        ReceivedRows().feed(wire)


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -float("inf"), 1e13])
def test_a_timestamp_that_no_log_reader_accepts_is_refused(time: float) -> None:
    with pytest.raises(ProtocolError):
        ReceivedRows().feed(stream([[Row(1, 1, 1, True, time, SOUND)]]))


def test_a_header_leaves_room_for_the_key_that_the_relay_adds() -> None:
    """The relay puts a SYNC before the log's keys, and writes the map's head as one byte."""
    header = {0: 3, 2: 1, 3: 1, 4: 1.0, **{20 + k: 1 for k in range(11)}}
    with pytest.raises(ProtocolError, match="header"):
        ReceivedRows().feed(with_length(msgpack.packb(header) + SOUND))
    del header[30]
    ReceivedRows().feed(with_length(msgpack.packb(header) + SOUND))


@given(transaction_lists(), st.data())
@settings(deadline=None)
def test_a_log_reader_accepts_every_row_that_passes(
    transactions: list[list[Row]], data: st.DataObject
) -> None:
    wire = bytearray(stream(transactions))
    for _ in range(data.draw(st.integers(0, 4)) if wire else 0):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    chunks: list[TransactionChunk] = []
    rows = RowStream({}, chunks.append, "p")
    with contextlib.suppress(ProtocolError):
        rows.feed(np.frombuffer(bytes(wire) or b"\0", np.uint8), 0, len(wire))
    for chunk in chunks:
        at = 0
        numbers, field_bounds = np.zeros(16, np.int64), np.zeros(8, np.int64)
        while at < chunk.rows.size:
            at, _ = walk_row(chunk.rows.ctypes.data, at, chunk.rows.size, numbers, field_bounds)
            assert at > 0
        assert at == chunk.ends[-1]

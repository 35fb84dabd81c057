"""Merging by time: complete transactions, in order, and never before rows that may still come."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sources.iproto.row_stream import TransactionChunk
from sources.subscribe.merge import StreamQueue, merge_by_time

Transaction = tuple[float, int, int, bytes]
"""Timestamp, replica id, lsn, bytes of the rows."""


def chunk(transactions: list[Transaction]) -> TransactionChunk:
    rows = b"".join(t[3] for t in transactions)
    return TransactionChunk(
        np.frombuffer(rows, np.uint8),
        np.cumsum([len(t[3]) for t in transactions]).astype(np.int64),
        np.array([t[0] for t in transactions]),
        np.array([t[1] for t in transactions], np.int64),
        np.array([t[2] for t in transactions], np.int64),
    )


def transactions_in(merged: TransactionChunk | None) -> list[Transaction]:
    if merged is None:
        return []
    begins = [0, *merged.ends[:-1].tolist()]
    return [
        (float(time), int(replica), int(lsn), merged.rows[begin:end].tobytes())
        for begin, end, time, replica, lsn in zip(
            begins, merged.ends.tolist(), merged.timestamps, merged.replica_ids, merged.last_lsns, strict=True
        )
    ]


def queue(*ids: int) -> StreamQueue:
    return StreamQueue(frozenset(ids), {})


def test_a_single_stream_never_waits() -> None:
    one = queue(1)
    one.add(chunk([(5.0, 1, 1, b"a"), (4.0, 1, 2, b"b")]))
    assert [t[3] for t in transactions_in(merge_by_time([one]))] == [b"a", b"b"]


def test_a_timestamp_in_the_future_delays_its_stream_only_by_the_allowed_skew() -> None:
    one, two = queue(1), queue(2)
    ahead = one.add(chunk([(5.0, 1, 1, b"a"), (1e9, 1, 2, b"b")]), max_time=10.0)
    assert ahead == 1e9 - 10.0
    assert one.add(chunk([(6.0, 1, 3, b"c")]), max_time=11.0) == 0
    two.add(chunk([(10.5, 2, 1, b"d")]), max_time=11.0)
    assert [t[3] for t in transactions_in(merge_by_time([one, two]))] == [b"a", b"b", b"c"]
    assert one.size_bytes == 0


def test_rows_wait_for_a_stream_without_rows_or_votes() -> None:
    one, two = queue(1), queue(2)
    one.add(chunk([(5.0, 1, 1, b"a")]))
    assert merge_by_time([one, two]) is None
    two.add(chunk([(3.0, 2, 1, b"b"), (6.0, 2, 2, b"c")]))
    assert [t[3] for t in transactions_in(merge_by_time([one, two]))] == [b"b", b"a"]
    assert (one.size_bytes, two.size_bytes) == (0, 1)


def test_a_vote_releases_rows_only_when_all_rows_of_its_vclock_are_received() -> None:
    one, two = queue(1), queue(2)
    one.add(chunk([(5.0, 1, 1, b"a")]))
    two.record_vote(9.0, {2: 1})
    assert merge_by_time([one, two]) is None
    two.add(chunk([(4.0, 2, 1, b"b")]))
    assert [t[3] for t in transactions_in(merge_by_time([one, two]))] == [b"b", b"a"]


def test_a_vote_of_an_idle_stream_releases_the_others() -> None:
    one, two = queue(1), queue(2)
    one.add(chunk([(5.0, 1, 1, b"a"), (8.0, 1, 2, b"b")]))
    two.record_vote(6.0, {1: 99, 2: 0})
    assert [t[3] for t in transactions_in(merge_by_time([one, two]))] == [b"a"]
    two.record_vote(8.0, {1: 99})
    assert [t[3] for t in transactions_in(merge_by_time([one, two]))] == [b"b"]


@st.composite
def streams(draw: st.DrawFn) -> list[list[Transaction]]:
    merged = []
    for replica in range(1, draw(st.integers(1, 4)) + 1):
        times = sorted(draw(st.lists(st.integers(0, 30), max_size=12)))
        payload = st.binary(min_size=1, max_size=9)
        merged.append([(float(t), replica, k + 1, draw(payload)) for k, t in enumerate(times)])
    return merged


@given(streams(), st.data())
@settings(deadline=None)
def test_rows_are_merged_by_time_however_they_arrive(
    merged: list[list[Transaction]], data: st.DataObject
) -> None:
    queues = [queue(k + 1) for k in range(len(merged))]
    rest = [list(stream) for stream in merged]
    out: list[Transaction] = []
    while any(rest):
        k = data.draw(st.sampled_from([k for k, stream in enumerate(rest) if stream]))
        count = data.draw(st.integers(1, len(rest[k])))
        queues[k].add(chunk(rest[k][:count]))
        del rest[k][:count]
        out += transactions_in(merge_by_time(queues))
        assert [t[0] for t in out] == sorted(t[0] for t in out)
    for k, each in enumerate(queues):
        each.record_vote(1e9, {k + 1: len(merged[k])})
    out += transactions_in(merge_by_time(queues))
    assert sorted(out) == sorted(t for stream in merged for t in stream)
    assert [t[0] for t in out] == sorted(t[0] for t in out)
    for replica in range(1, len(merged) + 1):
        assert [t[2] for t in out if t[1] == replica] == list(range(1, len(merged[replica - 1]) + 1))
    assert all(each.size_bytes == 0 for each in queues)

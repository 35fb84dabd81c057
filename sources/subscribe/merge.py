"""Merges the streams of several peers by time, up to the time until which all streams are complete.

Each stream has a *frontier* (a watermark in stream processing): a time before which it sends no more rows. The frontier
is the later of two times: the timestamp of the newest received transaction; and the time at which the last VOTE was
sent whose vclock the received rows have reached, by the daemon's clock minus the allowed clock skew. A heartbeat does
not move the frontier, since it may overtake rows.

Transactions up to the lowest frontier are merged. So the rows of a key stay in order if the key has one writer at a
time and clocks differ by less than the allowed skew. An idle or slow peer delays the others until it answers. The
module uses neither a clock nor I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from schemas.compiled import kernel
from sources.iproto.row_stream import TransactionChunk
from sources.xlog.format.arrays import Bytes, Int, Ints
from sources.xlog.format.damage import transaction_limit_error
from sources.xlog.format.kernels.native import address_of, copy_bytes

NEVER = float("-inf")
"""A time before all others."""


@dataclass
class StreamQueue:
    """Queues the rows of one stream until the other streams have reached the same time."""

    ids: frozenset[int] | None
    """The replica ids whose rows the stream has; None: all."""
    received_vclock: dict[int, int]
    """The vclock after the received rows."""
    size_bytes: int = 0
    """Size of the queued rows in bytes."""
    _chunks: deque[TransactionChunk] = field(default_factory=deque)
    _newest_time: float = NEVER
    _complete_until: float = NEVER
    """When the last VOTE was sent whose vclock is received."""
    _votes: deque[tuple[float, Mapping[int, int]]] = field(default_factory=deque)
    """(time, vclock) of each VOTE whose vclock is not received yet: when it was sent, and its answer; oldest first."""

    def add(self, chunk: TransactionChunk, max_time: float = float("inf")) -> float:
        """Add a chunk of the stream; return by how many seconds its newest timestamp exceeds `max_time`, or 0.

        A later timestamp counts as `max_time`. Otherwise a row from the future would delay all later rows of the
        stream, because a transaction counts as no older than the one before it.
        """
        ahead = max(0.0, float(chunk.timestamps.max()) - max_time)
        times = np.maximum.accumulate(np.maximum(np.minimum(chunk.timestamps, max_time), self._newest_time))
        self._newest_time = float(times[-1])
        self.received_vclock.update(chunk.vclock)
        self._chunks.append(
            TransactionChunk(chunk.rows, chunk.ends, times, chunk.replica_ids, chunk.last_lsns)
        )
        self.size_bytes += chunk.rows.size
        return ahead

    def record_vote(self, asked_at: float, vclock: Mapping[int, int]) -> None:
        """Record the vclock of a peer's answer to a VOTE that was sent at `asked_at`; it covers all older rows."""
        self._votes.append((asked_at, vclock))

    def frontier(self) -> float:
        """Return the time before which the stream sends no more rows."""
        while self._votes and self._has_received(self._votes[0][1]):
            self._complete_until = max(self._complete_until, self._votes.popleft()[0])
        return max(self._newest_time, self._complete_until)

    def take_until(self, end_time: float) -> list[TransactionChunk]:
        """Remove and return the queued transactions with times up to `end_time`, oldest first."""
        removed = []
        while self._chunks:
            chunk = self._chunks[0]
            count = int(np.searchsorted(chunk.timestamps, end_time, side="right"))
            if count == 0:
                break
            self._chunks.popleft()
            if count < chunk.timestamps.size:
                head, rest = _split_chunk(chunk, count)
                self._chunks.appendleft(rest)
                removed.append(head)
                break
            removed.append(chunk)
        self.size_bytes -= sum(chunk.rows.size for chunk in removed)
        return removed

    def _has_received(self, vclock: Mapping[int, int]) -> bool:
        ids: Collection[int] = vclock if self.ids is None else self.ids
        return all(self.received_vclock.get(i, 0) >= vclock.get(i, 0) for i in ids)


def _split_chunk(chunk: TransactionChunk, count: int) -> tuple[TransactionChunk, TransactionChunk]:
    at = int(chunk.ends[count - 1])
    head = TransactionChunk(
        chunk.rows[:at],
        chunk.ends[:count],
        chunk.timestamps[:count],
        chunk.replica_ids[:count],
        chunk.last_lsns[:count],
    )
    rest = TransactionChunk(
        chunk.rows[at:],
        chunk.ends[count:] - at,
        chunk.timestamps[count:],
        chunk.replica_ids[count:],
        chunk.last_lsns[count:],
    )
    return head, rest


def split_by_size(chunk: TransactionChunk, limit: int) -> list[TransactionChunk]:
    """Split a chunk into chunks of at most `limit` bytes, without splitting a transaction.

    Raises:
        TransactionLimitError: One transaction alone exceeds the limit.
    """
    parts = []
    while chunk.rows.size > limit:
        count = int(np.searchsorted(chunk.ends, limit, side="right"))
        if not count:
            replica_id, lsn = int(chunk.replica_ids[0]), int(chunk.last_lsns[0])
            raise transaction_limit_error(limit, replica_id=replica_id, lsn=lsn)
        head, chunk = _split_chunk(chunk, count)
        parts.append(head)
    return [*parts, chunk] if chunk.rows.size else parts


def merge_by_time(queues: Collection[StreamQueue]) -> TransactionChunk | None:
    """Remove the transactions up to the lowest frontier from their queues, and return them sorted by time.

    There is one queue per running stream. Transactions with equal times are in the order of the queues. The result is
    None if there are no such transactions.
    """
    if not queues:
        return None
    end_time = min(queue.frontier() for queue in queues)
    chunks = [chunk for queue in queues for chunk in queue.take_until(end_time)]
    if len(chunks) < 2:
        return chunks[0] if chunks else None
    offsets = np.cumsum([0, *(chunk.rows.size for chunk in chunks)])
    ends = np.concatenate([chunk.ends + at for chunk, at in zip(chunks, offsets, strict=False)])
    times = np.concatenate([chunk.timestamps for chunk in chunks])
    order = np.argsort(times, kind="stable")
    source = np.concatenate([chunk.rows for chunk in chunks])
    out = np.empty_like(source)
    new_ends = np.empty_like(ends)
    _reorder_transactions(source, ends, order, out, new_ends)
    replicas = np.concatenate([chunk.replica_ids for chunk in chunks])[order]
    lsns = np.concatenate([chunk.last_lsns for chunk in chunks])[order]
    return TransactionChunk(out, new_ends, times[order], replicas, lsns)


@kernel
def _reorder_transactions(source: Bytes, ends: Ints, order: Ints, out: Bytes, new_ends: Ints) -> Int:
    """Copy transactions to `out` in the order of the indexes in `order`, and return the number of copied bytes.

    Transaction i is `source[ends[i - 1]:ends[i]]`. `new_ends` gets the end of each copy in `out`.
    """
    at, to = 0, address_of(out)
    base = address_of(source)
    for k in range(order.size):
        i = order[k]
        begin = ends[i - 1] if i > 0 else 0
        copy_bytes(to + at, base + begin, ends[i] - begin)
        at += ends[i] - begin
        new_ends[k] = at
    return at

"""Merges the streams of several peers by time, up to the time until which each stream is complete.

Each stream has a frontier (as a watermark in stream processing): a time before which no more rows will come. It is the
later of two times: the timestamp of its newest transaction; and the time (by our clock, minus the allowed skew) of the
last VOTE whose vclock is reached by the received rows. A heartbeat does not move the frontier, since it may overtake
rows.

Transactions before the frontiers of all streams are merged. So the rows of a key stay in order if the key has one
writer at a time and clocks differ by less than the allowed skew. An idle or slow peer delays the others until it
answers. The module uses neither a clock nor I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from schemas.compiled import kernel
from sources.iproto.inflow import TransactionChunk
from sources.xlog.format.arrays import Bytes, Int, Ints
from sources.xlog.format.damage import transaction_limit_error
from sources.xlog.format.kernels.native import address_of, copy_bytes

NEVER = float("-inf")


@dataclass
class StreamQueue:
    """Queues the rows of one stream until the other streams have reached the same time.

    Parameters
    ----------
    ids : frozenset of int or None
        The replica ids whose rows the stream has; None: all.
    received : dict
        The vclock of the received rows.

    """

    ids: frozenset[int] | None
    received: dict[int, int]
    size: int = 0
    """Size of the queued rows in bytes."""
    _chunks: deque[TransactionChunk] = field(default_factory=deque)
    _newest: float = NEVER
    _complete_until: float = NEVER
    _votes: deque[tuple[float, Mapping[int, int]]] = field(default_factory=deque)

    def add(self, chunk: TransactionChunk, latest: float = float("inf")) -> float:
        """Add a chunk of the stream; return by how many seconds its newest timestamp exceeds `latest`, or 0.

        Times within a stream are made non-decreasing, so a row with a timestamp in the future would delay all later
        rows: its time counts as `latest`.
        """
        ahead = max(0.0, float(chunk.times.max()) - latest)
        times = np.maximum.accumulate(np.maximum(np.minimum(chunk.times, latest), self._newest))
        self._newest = float(times[-1])
        self.received.update(chunk.vclock)
        self._chunks.append(TransactionChunk(chunk.rows, chunk.ends, times, chunk.replicas, chunk.lsns))
        self.size += chunk.rows.size
        return ahead

    def record_vote(self, moment: float, vclock: Mapping[int, int]) -> None:
        """Record a vclock that the peer reported (VOTE) when asked at `moment`: it covers all earlier rows."""
        self._votes.append((moment, vclock))

    def frontier(self) -> float:
        """Return the time before which no more rows will come from the stream."""
        while self._votes and self._has_received(self._votes[0][1]):
            self._complete_until = max(self._complete_until, self._votes.popleft()[0])
        return max(self._newest, self._complete_until)

    def take_until(self, before: float) -> list[TransactionChunk]:
        """Remove and return the transactions up to a time, in order."""
        removed = []
        while self._chunks:
            chunk = self._chunks[0]
            count = int(np.searchsorted(chunk.times, before, side="right"))
            if count == 0:
                break
            self._chunks.popleft()
            if count < chunk.times.size:
                head, rest = _split_chunk(chunk, count)
                self._chunks.appendleft(rest)
                removed.append(head)
                break
            removed.append(chunk)
        self.size -= sum(chunk.rows.size for chunk in removed)
        return removed

    def _has_received(self, vclock: Mapping[int, int]) -> bool:
        ids: Collection[int] = vclock if self.ids is None else self.ids
        return all(self.received.get(i, 0) >= vclock.get(i, 0) for i in ids)


def _split_chunk(chunk: TransactionChunk, count: int) -> tuple[TransactionChunk, TransactionChunk]:
    at = int(chunk.ends[count - 1])
    head = TransactionChunk(
        chunk.rows[:at], chunk.ends[:count], chunk.times[:count], chunk.replicas[:count], chunk.lsns[:count]
    )
    rest = TransactionChunk(
        chunk.rows[at:],
        chunk.ends[count:] - at,
        chunk.times[count:],
        chunk.replicas[count:],
        chunk.lsns[count:],
    )
    return head, rest


def split_by_size(chunk: TransactionChunk, limit: int) -> list[TransactionChunk]:
    """Split a chunk between transactions into parts of at most `limit` bytes.

    Raises
    ------
    TransactionLimitError
        One transaction alone exceeds the limit.

    """
    parts = []
    while chunk.rows.size > limit:
        count = int(np.searchsorted(chunk.ends, limit, side="right"))
        if not count:
            replica_id, lsn = int(chunk.replicas[0]), int(chunk.lsns[0])
            raise transaction_limit_error(limit, replica_id=replica_id, lsn=lsn)
        head, chunk = _split_chunk(chunk, count)
        parts.append(head)
    return [*parts, chunk] if chunk.rows.size else parts


def merge_by_time(queues: Collection[StreamQueue]) -> TransactionChunk | None:
    """Remove and return the transactions before the frontiers of all streams, sorted by time; None if there are none.

    There is one queue per running stream. Transactions with equal times are in the order of the queues.
    """
    if not queues:
        return None
    before = min(queue.frontier() for queue in queues)
    chunks = [chunk for queue in queues for chunk in queue.take_until(before)]
    if len(chunks) < 2:
        return chunks[0] if chunks else None
    offsets = np.cumsum([0, *(chunk.rows.size for chunk in chunks)])
    ends = np.concatenate([chunk.ends + at for chunk, at in zip(chunks, offsets, strict=False)])
    times = np.concatenate([chunk.times for chunk in chunks])
    order = np.argsort(times, kind="stable")
    source = np.concatenate([chunk.rows for chunk in chunks])
    out = np.empty_like(source)
    new_ends = np.empty_like(ends)
    _reorder_transactions(source, ends, order, out, new_ends)
    replicas = np.concatenate([chunk.replicas for chunk in chunks])[order]
    lsns = np.concatenate([chunk.lsns for chunk in chunks])[order]
    return TransactionChunk(out, new_ends, times[order], replicas, lsns)


@kernel
def _reorder_transactions(source: Bytes, ends: Ints, order: Ints, out: Bytes, new_ends: Ints) -> Int:
    """Copy transactions in another order; transaction i lies in `source[ends[i - 1]:ends[i]]`."""
    at, to = 0, address_of(out)
    base = address_of(source)
    for k in range(order.size):
        i = order[k]
        begin = ends[i - 1] if i > 0 else 0
        copy_bytes(to + at, base + begin, ends[i] - begin)
        at += ends[i] - begin
        new_ends[k] = at
    return at

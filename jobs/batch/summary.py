"""What a stretch of a log holds, in small: lsn runs, counts, the rows that steer the batch.

Pure: columns of rows in, a `Summary` out. A summary is all that the driver sees of a batch's rows; it is made
where the rows are (a task, or the driver itself for a small batch) and joined by `join_summaries`.
Not here: reading (`jobs.batch.scan`), what follows from it (`jobs.batch.settle`, `jobs.batch.control`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jobs.batch.transactions import (
    ASYNCHRONOUS,
    FIRST,
    FLAGGED,
    Order,
    Orders,
    SyncRow,
    Waiting,
    join,
    transactions_of,
)
from schemas.iproto import GROUP_LOCAL, SystemSpace

__all__ = [
    "FIRST",
    "LIMBO_TYPES",
    "LOCAL_ID",
    "ControlRow",
    "Order",
    "Run",
    "Summary",
    "SyncRow",
    "join_summaries",
    "summarize",
]

LOCAL_ID = 0
"""The vclock component of an instance's local changes."""

CONTROL_SPACES = (SystemSpace.SPACE, SystemSpace.INDEX, SystemSpace.CLUSTER, SystemSpace.TRUNCATE)
"""The system spaces whose rows steer the batch; rows of the others are only kept in `_changelog`."""

_CONTROL_COLUMNS = [
    *("type", "replica_id", "lsn", "tsn", "space_id", "index_base"),
    *("key", "tuple", "operations", "body", "timestamp"),
]

LIMBO_TYPES = ("RAFT_PROMOTE", "RAFT_DEMOTE", "RAFT_CONFIRM", "RAFT_ROLLBACK")


@dataclass(frozen=True)
class Run:
    """Consecutive lsns of one origin: from `first` (which stands at `start`) to `last`."""

    replica_id: int
    first: int
    last: int
    start: Order


@dataclass(frozen=True)
class ControlRow:
    """A row that steers the batch: of a control space, or one that settles synchronous transactions."""

    order: Order
    type: str
    replica_id: int | None
    lsn: int | None
    tsn: int | None
    space_id: int | None
    index_base: int
    key: bytes | None
    tuple: bytes | None
    operations: bytes | None
    body: bytes | None
    timestamp: datetime | None = None


@dataclass(frozen=True)
class Summary:
    """What stretches of one replicaset's log hold.

    Parameters
    ----------
    rows : int
        How many rows there are.
    runs : tuple of Run
        In log order of their first rows.
    counts : Counter of (segment, space id or -1, type)
        Rows of each kind.
    control : tuple of ControlRow
        In log order.
    waiting : Waiting
        The transactions that wait.

    """

    rows: int = 0
    runs: tuple[Run, ...] = ()
    counts: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    control: tuple[ControlRow, ...] = ()
    waiting: Waiting = field(default_factory=Waiting)

    @property
    def sync(self) -> tuple[SyncRow, ...]:
        """The transactions that wait, in log order; each one's `lsn` is its last row's, `order` its first row's."""
        return self.waiting.sync


def summarize(batch: pa.RecordBatch, segment: int, sync_spaces: Iterable[int] = ()) -> Summary:
    """Return the summary of some consecutive rows of one file.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        Columns as in `schemas.xrow.XROW_FIELDS`; the binary ones are looked at for control rows only.
    segment : int
        The file's number in the batch.
    sync_spaces : iterable of int
        Ids of spaces that are synchronous at some time in the batch: Tarantool 2.6 and 2.7 log no flag with
        their rows.

    """
    if batch.num_rows == 0:
        return Summary()
    replica = _numbers(batch, "replica_id", LOCAL_ID)
    lsn = _lsns(batch)
    space = _numbers(batch, "space_id", -1)
    position, row = _numbers(batch, "position", 0), _numbers(batch, "row", 0)
    orders = Orders(segment, position, row)
    # An asynchronous transaction that queues behind a synchronous one has WAIT_SYNC alone (`src/box/txn.c`).
    flagged = pc.fill_null(batch.column("wait_ack"), False).to_numpy(zero_copy_only=False)
    listed = np.isin(space, list(sync_spaces))
    waits = np.where(flagged, FLAGGED, np.where(listed, space, ASYNCHRONOUS))
    commits = pc.fill_null(batch.column("is_commit"), True).to_numpy(zero_copy_only=False)
    return Summary(
        rows=batch.num_rows,
        runs=_runs(replica, lsn, np.flatnonzero(space == SystemSpace.CLUSTER), orders),
        counts=_counts(segment, space, batch.column("type")),
        control=_control(batch, space, orders),
        waiting=transactions_of(commits, waits, replica, _numbers(batch, "tsn", -1), lsn, orders),
    )


def _numbers(batch: pa.RecordBatch, name: str, missing: int) -> npt.NDArray[np.int64]:
    column = pc.fill_null(batch.column(name).cast(pa.int64()), missing)
    numbers: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return numbers


def _lsns(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the lsn of each row that has an origin: a snapshot numbers its rows too, which names nothing."""
    unsigned = _numbers(batch, "replica_id", -1) < 0
    local = _numbers(batch, "group_id", 0) == GROUP_LOCAL
    return np.where(unsigned & ~local, -1, _numbers(batch, "lsn", -1))


def _runs(
    replica: npt.NDArray[np.int64],
    lsn: npt.NDArray[np.int64],
    registrations: npt.NDArray[np.int64],
    orders: Orders,
) -> tuple[Run, ...]:
    found: list[Run] = []
    for origin in np.unique(replica):
        at = np.flatnonzero((replica == origin) & (lsn >= 0))
        if at.size == 0:
            continue
        own = lsn[at]
        # An id that another instance gets goes on from the old one's last lsn: only a run that ends at each
        # row of _cluster tells where.
        breaks = np.searchsorted(at, registrations)
        starts = np.concatenate(([0], np.flatnonzero(np.diff(own) != 1) + 1, breaks[breaks < own.size]))
        starts = np.unique(starts)
        ends = np.concatenate((starts[1:] - 1, [own.size - 1]))
        found += [
            Run(int(origin), int(own[a]), int(own[b]), orders.at(at[a]))
            for a, b in zip(starts, ends, strict=True)
        ]
    return tuple(sorted(found, key=lambda run: run.start))


def _counts(segment: int, space: npt.NDArray[np.int64], types: pa.Array) -> Counter[tuple[int, int, str]]:
    encoded = types.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs, numbers = np.unique(space * len(names) + codes, return_counts=True)
    return Counter(
        {
            (segment, int(pair) // len(names), str(names[int(pair) % len(names)])): int(number)
            for pair, number in zip(pairs, numbers, strict=True)
        }
    )


def _control(batch: pa.RecordBatch, space: npt.NDArray[np.int64], orders: Orders) -> tuple[ControlRow, ...]:
    steers = np.isin(space, [int(s) for s in CONTROL_SPACES])
    steers |= pc.is_in(batch.column("type"), pa.array(LIMBO_TYPES)).to_numpy(zero_copy_only=False)
    at = np.flatnonzero(steers)
    rows = batch.take(pa.array(at)).select(_CONTROL_COLUMNS).to_pylist()
    return tuple(
        ControlRow(orders.at(i), **{**row, "index_base": row["index_base"] or 0})
        for i, row in zip(at, rows, strict=True)
    )


def join_summaries(parts: Sequence[Summary]) -> Summary:
    """Return the summary of stretches that follow one another in the log."""
    counts: Counter[tuple[int, int, str]] = Counter()
    runs: list[Run] = []
    last: dict[int, int] = {}
    registrations = [
        row.order for part in parts for row in part.control if row.space_id == SystemSpace.CLUSTER
    ]
    for part in parts:
        counts.update(part.counts)
        for run in part.runs:
            known = last.get(run.replica_id)
            if (
                known is not None
                and runs[known].last + 1 == run.first
                and runs[known].start.segment == run.start.segment
                and not any(runs[known].start < order <= run.start for order in registrations)
            ):
                runs[known] = Run(run.replica_id, runs[known].first, run.last, runs[known].start)
            else:
                last[run.replica_id] = len(runs)
                runs.append(run)
    return Summary(
        rows=sum(part.rows for part in parts),
        runs=tuple(runs),
        counts=counts,
        control=tuple(row for part in parts for row in part.control),
        waiting=join(part.waiting for part in parts),
    )

"""Which transactions of a stretch of a log wait for a quorum, whatever the batches that the stretch is read in.

Pure. A batch of rows may end amid a transaction, so each stretch tells its first and last one, and `join` makes
whole what was cut. Not here: what becomes of those that wait (`jobs.batch.settle`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Order(NamedTuple):
    """Where a row stands in a replicaset's log, within one batch."""

    segment: int
    position: int
    row: int


FIRST = Order(-(2**31), 0, 0)

ASYNCHRONOUS, FLAGGED = -1, 2**31
"""Beside space ids: a row that does not wait, and one whose own flag says that it does."""


class Orders(NamedTuple):
    """Where each row of a batch stands."""

    segment: int
    position: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]

    def at(self, index: Any) -> Order:
        """Return where one row stands."""
        return Order(self.segment, int(self.position[index]), int(self.row[index]))


@dataclass(frozen=True)
class SyncRow:
    """A transaction that waits for a quorum: its first row's place, its last row's lsn.

    `space_id` is the space whose option says so, None where the rows' own flags do (Tarantool 2.8 and later).
    """

    order: Order
    replica_id: int
    tsn: int
    lsn: int
    space_id: int | None = None


class Transaction(NamedTuple):
    """The first or last transaction of a stretch, of which the stretch may hold a part only.

    Its origin and numbers are those of its last row: it is never one of a local space, which others may be
    (`src/box/txn.c`, `txn_journal_entry_new`). `waits` is as in `transactions_of`, `ended` whether its last row
    is here.
    """

    order: Order
    replica_id: int
    tsn: int
    lsn: int
    waits: int
    ended: bool


@dataclass(frozen=True)
class Waiting:
    """The transactions of a stretch that wait, and its first and last one; None where it holds no rows."""

    sync: tuple[SyncRow, ...] = ()
    first: Transaction | None = None
    last: Transaction | None = None


def transactions_of(
    commits: npt.NDArray[np.bool_],
    waits: npt.NDArray[np.int64],
    replica: npt.NDArray[np.int64],
    tsn: npt.NDArray[np.int64],
    lsn: npt.NDArray[np.int64],
    orders: Orders,
) -> Waiting:
    """Return which of some consecutive rows' transactions wait.

    Parameters
    ----------
    commits : array of bool
        Whether a row is the last one of its transaction.
    waits : array of int64
        Of each row: `ASYNCHRONOUS`, `FLAGGED`, or the id of the space that makes it wait.
    replica, tsn, lsn : array of int64
    orders : Orders

    """
    # A transaction waits as a whole as soon as one of its rows does, so its ends are sought among all rows.
    begins = np.flatnonzero(np.concatenate(([True], commits[:-1])))
    ends = np.concatenate((begins[1:] - 1, [commits.size - 1]))
    why = np.maximum.reduceat(waits, begins)
    told = why != ASYNCHRONOUS
    told[[0, -1]] = True
    found = [
        Transaction(orders.at(a), int(replica[b]), int(tsn[b]), int(lsn[b]), int(w), bool(commits[b]))
        for a, b, w in zip(begins[told], ends[told], why[told], strict=True)
    ]
    return Waiting(_sync(found), found[0], found[-1])


def _sync(transactions: Iterable[Transaction]) -> tuple[SyncRow, ...]:
    return tuple(
        SyncRow(*one[:4], None if one.waits == FLAGGED else one.waits)
        for one in transactions
        if one.waits != ASYNCHRONOUS
    )


def join(parts: Iterable[Waiting]) -> Waiting:
    """Return the same of stretches that follow one another in the log."""
    sync: list[SyncRow] = []
    first: Transaction | None = None
    last: Transaction | None = None
    for part in parts:
        if part.first is None:
            continue
        if last is None or last.ended:
            sync += part.sync
            first, last = first or part.first, part.last
            continue
        whole = part.first._replace(order=last.order, waits=max(last.waits, part.first.waits))
        before, behind = len(_sync([last])), len(_sync([part.first]))
        sync = [*sync[: len(sync) - before], *_sync([whole]), *part.sync[behind:]]
        first = whole if first == last else first
        last = whole if part.first == part.last else part.last
    return Waiting(tuple(sync), first, last)

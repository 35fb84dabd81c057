"""Finds the transactions of a log that wait for a quorum, however its rows are divided into record batches.

Pure. A record batch may end inside a transaction, so each part reports its first and last transaction, and
`join_transactions` joins the pieces. `pipeline.plan.ids.settle` decides whether waiting transactions are committed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.plan.rows.position import BEGINNING, Int64s, LogPosition

LOCAL_REPLICA_ID = 0
"""The replica id of rows of local spaces."""

ASYNCHRONOUS, FLAGGED = -1, 2**31
"""Values of `waits` in place of a synchronous space's id: the row does not wait; it waits because of its own flag."""

_WAITS_BY_FLAG: Mapping[int, LogPosition] = {FLAGGED: BEGINNING}
"""`_Transaction.waiting_spaces` of a transaction that waits because a row has the flag."""


@dataclass(frozen=True)
class WaitingTransaction:
    """A transaction that waits for a quorum."""

    position: LogPosition
    """The position of its first row."""
    replica_id: int
    tsn: int
    last_lsn: int
    """From its last row that is not of a local space; in 3.x, rows of local spaces can come last (`src/box/txn.c`,
    `txn_journal_entry_new`)."""
    space_positions: tuple[tuple[int, LogPosition], ...] = ()
    """(space id, position of the transaction's last row in that space): the transaction waits if one of these spaces is
    synchronous at its position. Empty if rows of the transaction have the flag (Tarantool 2.8 and later)."""


class _Transaction(NamedTuple):
    """A transaction in a part of a log; `is_complete` says whether its last row is in the part.

    `replica_id` is `LOCAL_REPLICA_ID` if its rows in the part are all of local spaces. `waiting_spaces` has the
    position of the last row of each synchronous space, by space id. It is `_WAITS_BY_FLAG` if a row has the flag, and
    empty if the transaction does not wait.
    """

    start: LogPosition
    replica_id: int
    tsn: int
    last_lsn: int
    waiting_spaces: Mapping[int, LogPosition]
    is_complete: bool


@dataclass(frozen=True)
class Transactions:
    """The waiting transactions of a part of a log, and its first and last transaction (None if it has no rows)."""

    waiting: tuple[WaitingTransaction, ...] = ()
    first: _Transaction | None = None
    last: _Transaction | None = None


def find_transactions(
    segment: int,
    positions: Int64s,
    rows: Int64s,
    is_last: npt.NDArray[np.bool_],
    waits: Int64s,
    replica_ids: Int64s,
    tsns: Int64s,
    lsns: Int64s,
) -> Transactions:
    """Return the transactions in consecutive rows of a segment.

    Args:
        positions, rows: Of each row, the byte position of its block, and its index in the block (int64[n]).
        is_last: Whether a row is the last one of its transaction (bool[n]).
        waits: For each row, `ASYNCHRONOUS`, `FLAGGED`, or the id of the synchronous space (int64[n]).
    """
    begins = np.flatnonzero(np.concatenate(([True], is_last[:-1])))
    ends = np.concatenate((begins[1:] - 1, [is_last.size - 1]))
    # A transaction waits if any of its rows does.
    why = np.maximum.reduceat(waits, begins)
    reported = why != ASYNCHRONOUS
    reported[[0, -1]] = True
    named = np.maximum.reduceat(
        np.where(replica_ids == LOCAL_REPLICA_ID, -1, np.arange(replica_ids.size)), begins
    )
    named = np.where(named < 0, ends, named)

    def position_of(row: int) -> LogPosition:
        return LogPosition(segment, int(positions[row]), int(rows[row]))

    def reasons(number: int, first: int, last: int) -> Mapping[int, LogPosition]:
        if why[number] in (ASYNCHRONOUS, FLAGGED):
            return {} if why[number] == ASYNCHRONOUS else _WAITS_BY_FLAG
        return {
            space_id: position_of(row)
            for space_id, row in _last_rows_of_spaces(waits[first : last + 1], first)
        }

    found = [
        _Transaction(
            *(
                position_of(a),
                int(replica_ids[n]),
                int(tsns[n]),
                int(lsns[n]),
                reasons(number, a, b),
                bool(is_last[b]),
            )
        )
        for number, a, b, n in zip(
            np.flatnonzero(reported).tolist(), begins[reported], ends[reported], named[reported], strict=True
        )
    ]
    return Transactions(_waiting_transactions(found), found[0], found[-1])


def _last_rows_of_spaces(waits: Int64s, first_row: int) -> Iterator[tuple[int, int]]:
    """Yield (space id, index of its last row) of each synchronous space; `first_row` is the index of the first row."""
    ids, backwards = np.unique(waits[::-1], return_index=True)
    for space_id, index in zip(ids.tolist(), backwards.tolist(), strict=True):
        if space_id != ASYNCHRONOUS:
            yield space_id, first_row + len(waits) - 1 - index


def _waiting_transactions(transactions: Iterable[_Transaction]) -> tuple[WaitingTransaction, ...]:
    return tuple(
        WaitingTransaction(
            *one[:4],
            () if one.waiting_spaces == _WAITS_BY_FLAG else tuple(sorted(one.waiting_spaces.items())),
        )
        for one in transactions
        if one.waiting_spaces
    )


def join_transactions(parts: Iterable[Transactions]) -> Transactions:
    """Join the transactions of consecutive parts of a log."""
    waiting: list[WaitingTransaction] = []
    first: _Transaction | None = None
    last: _Transaction | None = None
    for part in parts:
        if part.first is None:
            continue
        if last is None or last.is_complete:
            waiting += part.waiting
            first, last = first or part.first, part.last
            continue
        name = last if last.replica_id != LOCAL_REPLICA_ID == part.first.replica_id else part.first
        waits = {**last.waiting_spaces, **part.first.waiting_spaces}
        waits = dict(_WAITS_BY_FLAG) if FLAGGED in waits else waits
        whole = name._replace(start=last.start, waiting_spaces=waits, is_complete=part.first.is_complete)
        before, behind = len(_waiting_transactions([last])), len(_waiting_transactions([part.first]))
        del waiting[len(waiting) - before :]
        waiting += [*_waiting_transactions([whole]), *part.waiting[behind:]]
        first = whole if first == last else first
        last = whole if part.first == part.last else part.last
    return Transactions(tuple(waiting), first, last)

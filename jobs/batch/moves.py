"""A space that is renamed, or gets another primary key, after it had rows: where in a log that is done.

Its versions go on in another table or under other keys. That is one step in front of which the replicaset has no row
in the batch: what came before is in the tables then, each version once, so nothing has to be folded under two keys.
Where rows stand in front of it, the batch holds there, and the next one, which needs no further rows, begins with it.
Pure. Not here: the versions themselves (`jobs.batch.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jobs.batch.control import Control, SpaceRows
from jobs.batch.layouts import key_places
from jobs.batch.settle import Settlement
from jobs.batch.summary import Order, Summary
from schemas.space import Space

MOVES = "a space goes to another table or gets other keys: what was in front of it comes first"
"""Why rows wait in front of a move."""


def moves_of(
    spaces: Mapping[int, SpaceRows],
    refused: Mapping[int, str],
    control: Control,
    is_followed: Callable[[Space], bool],
) -> list[Order]:
    """Return where spaces move.

    Parameters
    ----------
    spaces : mapping of int to SpaceRows
        The replicaset's spaces before the batch.
    refused : mapping of int to str
        Those that are followed in `_changelog` only: they do not move.
    control : Control
    is_followed : callable
        Whether a space has a table by rule.

    """
    known = {space_id: rows.decoded() for space_id, rows in spaces.items()}
    had_rows, found = set(known), []
    for change in control.changes:
        space_id = change.space_id
        new = change.rows.decoded()
        if change.kind == "dropped" or not new.primary_key:
            known.pop(space_id, None)
            had_rows.discard(space_id)
            continue
        old = known.get(space_id)
        known[space_id] = new
        if change.kind != "defined" or old is None or not old.primary_key or space_id in refused:
            continue
        if not is_followed(old):
            continue
        renamed = old.name != new.name and space_id in had_rows
        if renamed or key_places(old) != key_places(new):
            found.append(change.order)
    return found


def first_place(summary: Summary, settlement: Settlement, snapshots: frozenset[int]) -> Order | None:
    """Return where the first row of a replicaset's batch stands that was not read before; None in a snapshot.

    Where only a part of a run was read before, it is that run's first row, which is too early, never too late.
    """
    if any(segment in snapshots for segment, _, _ in summary.counts):
        return None
    fresh = [
        run.start
        for run in summary.runs
        if run.last > settlement.floors.get((run.start.segment, run.replica_id), -1)
    ]
    return min(fresh, default=None)


def begins_transaction(summary: Summary, order: Order) -> bool:
    """Whether a control row is the first of its transaction, so that a batch may begin with it."""
    return any(row.order == order and row.tsn == row.lsn for row in summary.control)

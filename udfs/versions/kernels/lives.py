"""The rows of each key, in the order of the log, reduced to what the key's replicaset holds after them.

A key's *life* begins with an insertion where there was no tuple; a DELETE, a truncation, or a snapshot that lacks the
key ends it. Time never runs back within a life. A DELETE leaves a deleted version, which a later truncation does not
change; a truncation itself leaves nothing. A DELETE that finds nothing counts for nothing. Keys with an operation
(UPDATE, UPSERT) are not for here (`pipeline.reduce.fold`).
"""

from __future__ import annotations

from typing import Any

from schemas.compiled import entry, inlined
from udfs.kernels.values import Int

NONE, PRESENT, DELETED, UNFIT = 0, 1, 2, 3
"""States of a version: there is none, a tuple, a deletion, a tuple that is not known."""

PUT, DELETE, OPERATION = 0, 1, 2
"""What a row does: give the whole tuple, delete it, change it."""

NO_TIME = -(2**63)
NO_ROW = -1


@inlined
def _later(time: Int, row: Int) -> Int:
    return row if time == NO_TIME or row > time else time


@entry
def reduce_rows(
    groups: Any,
    actions: Any,
    times: Any,
    truncations: Any,
    is_snapshot: Any,
    is_same: Any,
    all_truncations: Any,
    is_renewed: Any,
    states: Any,
    versions_time: Any,
    versions_created: Any,
    sources: Any,
    events: Any,
    seen: Any,
) -> None:
    """Reduce rows, in the order of the log.

    Parameters
    ----------
    groups : int32[n]
        Number of each row's key, -1 for a row that counts for none.
    actions : int8[n]
        `PUT` or `DELETE`.
    times : int64[n]
        Microseconds since 1970, `NO_TIME` where unknown.
    truncations : int32[n]
        How many truncations of its space stand before the row.
    is_snapshot, is_same : uint8[n]
        Whether the row is of a snapshot; whether it has the tuple that its key has already.
    all_truncations : int32[keys]
        How many truncations of the key's space there are.
    is_renewed : uint8[keys]
        Whether a snapshot says again what the key's space holds: what it lacks is gone.
    states : int8[keys]
        Before: the states of the versions; becomes those after.
    versions_time, versions_created : int64[keys]
        Likewise.
    sources, events : int32[keys]
        Become the row that has the tuple, and the last row that counted; -1 where it is the version before.
    seen : int32[keys]
        Zeros. Used as memory: truncations seen, and in the two lowest bits whether the snapshot had the key, and ended.

    """
    sources[:] = NO_ROW
    events[:] = NO_ROW
    for row in range(groups.size):
        key = groups[row]
        if key < 0:
            continue
        action = actions[row]
        lives = states[key] == PRESENT or states[key] == UNFIT
        if truncations[row] > seen[key] >> 2:
            seen[key] = (truncations[row] << 2) | (seen[key] & 3)
            if lives:
                states[key], lives = NONE, False
        if is_renewed[key] != 0:
            if is_snapshot[row] != 0:
                seen[key] |= 1
                if is_same[row] != 0 and lives:
                    continue
            elif seen[key] & 2 == 0:
                if seen[key] & 1 == 0 and lives:
                    states[key], lives = NONE, False
                seen[key] |= 2
        if action == PUT:
            if lives:
                versions_time[key] = _later(versions_time[key], times[row])
            else:
                versions_time[key] = versions_created[key] = times[row]
            states[key] = PRESENT
            sources[key] = events[key] = row
        elif action == DELETE and lives and is_snapshot[row] != 0:
            # A vinyl run has the DELETE without its lsn: the key is gone, by nobody known.
            states[key], sources[key], events[key] = NONE, NO_ROW, NO_ROW
        elif action == DELETE and lives:
            versions_time[key] = _later(versions_time[key], times[row])
            versions_created[key], states[key] = NO_TIME, DELETED
            sources[key], events[key] = NO_ROW, row
    for key in range(states.size):
        if states[key] == PRESENT or states[key] == UNFIT:
            missed = is_renewed[key] != 0 and seen[key] & 3 == 0
            if all_truncations[key] > seen[key] >> 2 or missed:
                states[key], sources[key], events[key] = NONE, NO_ROW, NO_ROW

"""Applies the rows of each key in the order of the log; the result is the version that the replicaset has after them.

The *life* of a key begins with the insertion of a missing tuple; a DELETE, a truncation, or a snapshot that lacks the
key ends it. Time never goes back within a life. A DELETE leaves a deleted version, which a later truncation does not
change; a truncation itself leaves nothing. A DELETE of a missing tuple has no effect. `pipeline.reduce.fold` handles
keys with an operation (UPDATE, UPSERT).
"""

from __future__ import annotations

from typing import Any

from schemas.compiled import entry, inlined
from udfs.kernels.values import Int

NONE, PRESENT, DELETED, UNFIT = 0, 1, 2, 3
"""States of a version: none, a tuple, a deletion, an unknown tuple."""

PUT, DELETE, OPERATION = 0, 1, 2
"""Actions of a row: write the whole tuple, delete it, change it."""

NO_TIME = -(2**63)
"""In place of an unknown time."""

NO_ROW = -1
"""In place of the number of a row."""


@inlined
def _later(time: Int, row_time: Int) -> Int:
    """Return the time of a version after a row of this time."""
    return row_time if time == NO_TIME or row_time > time else time


@entry
def reduce_rows(
    keys: Any,
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
    """Reduce the rows of each key to one version; rows are in the order of the log.

    Parameters
    ----------
    keys : int32[n]
        Number of each row's key, -1 for a row to ignore.
    actions : int8[n]
        `PUT` or `DELETE`.
    times : int64[n]
        Microseconds since 1970, `NO_TIME` if unknown.
    truncations : int32[n]
        Number of truncations of the row's space before the row.
    is_snapshot, is_same : uint8[n]
        Whether the row is from a snapshot; whether the row's tuple equals the tuple before the rows.
    all_truncations : int32[keys]
        Number of all truncations of the key's space.
    is_renewed : uint8[keys]
        1 if a snapshot replaces the whole content of the key's space; a key that is not in the snapshot is deleted.
    states : int8[keys]
        States of the versions: before the rows on input, after them on return.
    versions_time, versions_created : int64[keys]
        Times and insertion times of the versions, likewise updated.
    sources : int32[keys]
        Receives the row that has the version's tuple; -1 if the tuple is that of the version before the rows.
    events : int32[keys]
        Receives the last row that had an effect; -1 if no row had one.
    seen : int32[keys]
        Working memory, zeroed. Bit 0: the snapshot has the key. Bit 1: a row after the snapshot was applied. The higher
        bits: the number of the space's truncations that were applied so far.

    """
    sources[:] = NO_ROW
    events[:] = NO_ROW
    for row in range(keys.size):
        key = keys[row]
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
            # A vinyl run has the DELETE without its lsn: the key is deleted, but its author is not known.
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

"""Applies the rows of each key in the order of the log; the result is the version that the replicaset has after them.

The *life* of a key begins with the insertion of a missing tuple; a DELETE, a truncation, or a snapshot that lacks the
key ends it. Time never goes back within a life. A DELETE leaves a deleted version, which a later truncation does not
change; a truncation itself leaves nothing. A DELETE of a missing tuple has no effect. `pipeline.reduce.operated_keys`
handles keys with an operation (UPDATE, UPSERT).
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
def _time_after_row(time: Int, row_time: Int) -> Int:
    """Return the time of a version after a row that was written at `row_time`: the later one of the two."""
    return row_time if time == NO_TIME or row_time > time else time


@entry
def reduce_rows(
    keys: Any,
    actions: Any,
    times: Any,
    truncations: Any,
    is_snapshot: Any,
    is_same_tuple: Any,
    total_truncations: Any,
    is_space_renewed: Any,
    states: Any,
    version_times: Any,
    insertion_times: Any,
    tuple_rows: Any,
    effect_rows: Any,
    progress: Any,
) -> None:
    """Reduce the rows of each key to one version; rows are in the order of the log.

    Args:
        keys: Number of each row's key, -1 for a row to ignore (int32[n]).
        actions: `PUT` or `DELETE` (int8[n]).
        times: Microseconds since 1970, `NO_TIME` if unknown (int64[n]).
        truncations: Number of truncations of the row's space before the row (int32[n]).
        is_snapshot, is_same_tuple: Whether the row is from a snapshot (uint8[n]); whether the row's tuple equals the
            tuple before the rows.
        total_truncations: Number of all truncations of the key's space (int32[keys]).
        is_space_renewed: 1 if a snapshot replaces the whole content of the key's space (uint8[keys]); a key that is not
            in the snapshot is deleted.
        states: States of the versions: before the rows on input, after them on return (int8[keys]).
        version_times, insertion_times: Times and insertion times of the versions: before the rows on input, after them
            on return (int64[keys]).
        tuple_rows: Receives the row that has the version's tuple (int32[keys]); -1 if the tuple is that of the version
            before the rows.
        effect_rows: Receives the last row that had an effect (int32[keys]); -1 if no row had one.
        progress: Working memory, zeroed (int32[keys]). Bit 0: the snapshot has the key. Bit 1: a row after the snapshot
            was applied. The higher bits: the number of the space's truncations that were applied so far.
    """
    tuple_rows[:] = NO_ROW
    effect_rows[:] = NO_ROW
    for row in range(keys.size):
        key = keys[row]
        if key < 0:
            continue
        action = actions[row]
        lives = states[key] == PRESENT or states[key] == UNFIT
        if truncations[row] > progress[key] >> 2:
            progress[key] = (truncations[row] << 2) | (progress[key] & 3)
            if lives:
                states[key], lives = NONE, False
        if is_space_renewed[key] != 0:
            if is_snapshot[row] != 0:
                progress[key] |= 1
                if is_same_tuple[row] != 0 and lives:
                    continue
            elif progress[key] & 2 == 0:
                if progress[key] & 1 == 0 and lives:
                    states[key], lives = NONE, False
                progress[key] |= 2
        if action == PUT:
            if lives:
                version_times[key] = _time_after_row(version_times[key], times[row])
            else:
                version_times[key] = insertion_times[key] = times[row]
            states[key] = PRESENT
            tuple_rows[key] = effect_rows[key] = row
        elif action == DELETE and lives and is_snapshot[row] != 0:
            # A vinyl run has the DELETE without its lsn: the key is deleted, but its author is not known.
            states[key], tuple_rows[key], effect_rows[key] = NONE, NO_ROW, NO_ROW
        elif action == DELETE and lives:
            version_times[key] = _time_after_row(version_times[key], times[row])
            insertion_times[key], states[key] = NO_TIME, DELETED
            tuple_rows[key], effect_rows[key] = NO_ROW, row
    for key in range(states.size):
        if states[key] == PRESENT or states[key] == UNFIT:
            missed = is_space_renewed[key] != 0 and progress[key] & 3 == 0
            if total_truncations[key] > progress[key] >> 2 or missed:
                states[key], tuple_rows[key], effect_rows[key] = NONE, NO_ROW, NO_ROW

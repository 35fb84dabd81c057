"""Changed versions and base versions → changed rows of the tables, and rows of `_versions` and `_conflicts`.

Pure. In a table that only one replicaset writes, its version of each key is the row; in a contended table,
before_replace chooses between the versions of all replicasets (`pipeline.resolve.choose`). A version that is not the
row is stored in `_versions`.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.lookup.versions import CHANGES, MERGED, TIME, time_column, times_of
from pipeline.resolve.choose import MADE, NOBODY, Choices, KeyVersions, choose
from pipeline.resolve.records import (
    CONFLICTS_ARROW,
    VERSIONS_ARROW,
    conflict_rows,
    fault_rows,
    null_if_negative,
    table_names,
    undecided_rows,
    version_rows,
)
from pipeline.resolve.resolve_plan import ResolvePlan
from udfs.buffers import as_array
from udfs.keys.grouping import group
from udfs.versions.kernels.lives import DELETED, NO_TIME, NONE, PRESENT, UNFIT

Int64s = NDArray[np.int64]
Flags = NDArray[np.bool_]

PUTS = pa.schema(
    [
        ("table", pa.int32()),
        ("key", pa.binary()),
        ("tuple", pa.binary()),
        ("global_id", pa.int64()),
        ("replicaset_id", pa.int32()),
        ("lsn", pa.int64()),
        ("timestamp", TIME),
        ("created", TIME),
    ]
)
"""New rows of tables; a tuple that a policy made has minus the id of its last writer as `replicaset_id`."""

REMOVED = pa.schema([("table", pa.int32()), ("key", pa.binary()), ("file", pa.int32()), ("row", pa.int64())])
"""Rows to remove from tables: `file` and `row` as in `pipeline.lookup.versions.BASE_VERSIONS`."""


@dataclass(frozen=True)
class Resolved:
    """The changes of tables by a batch."""

    puts: pa.Table
    """`PUTS`, at most one per (table, key)."""
    removed_rows: pa.Table
    """`REMOVED`."""
    versions: pa.Table
    conflicts: pa.Table
    quarantine: pa.Table
    """Rows of `_versions`, `_conflicts`, `_quarantine`."""
    writers: frozenset[tuple[int, int]] = frozenset()
    """(table number, replicaset id) of all changed versions."""
    unfit_tables: frozenset[int] = frozenset()
    """Numbers of the tables in which a changed version is unfit."""


def resolve(changes: pa.Table, base_versions: pa.Table, plan: ResolvePlan) -> Resolved:
    """Resolve changed versions, and return the changes of tables."""
    changes, base_versions = changes.combine_chunks(), base_versions.combine_chunks()
    contended = np.array(plan.is_contended, np.bool_)
    is_contended = contended[changes["table"].to_numpy()] if changes.num_rows else np.zeros(0, np.bool_)
    parts = []
    if not is_contended.all() or not changes.num_rows:
        parts.append(_resolve_single_writer(changes.filter(pa.array(~is_contended)), base_versions, plan))
    if is_contended.any():
        own = (
            contended[base_versions["table"].to_numpy()] if base_versions.num_rows else np.zeros(0, np.bool_)
        )
        parts.append(
            _resolve_contended(
                changes.filter(pa.array(is_contended)),
                base_versions.filter(pa.array(own)).combine_chunks(),
                plan,
            )
        )
    writers, unfit = _writers_and_unfit(changes)
    return Resolved(
        puts=pa.concat_tables([part.puts for part in parts]),
        removed_rows=pa.concat_tables([part.removed_rows for part in parts]),
        versions=pa.concat_tables([part.versions for part in parts]),
        conflicts=pa.concat_tables([part.conflicts for part in parts]),
        quarantine=pa.concat_tables([part.quarantine for part in parts]),
        writers=writers,
        unfit_tables=unfit,
    )


def _writers_and_unfit(changes: pa.Table) -> tuple[frozenset[tuple[int, int]], frozenset[int]]:
    tables, states = changes["table"].to_numpy(), changes["state"].to_numpy()
    wrote = states != NONE
    pairs = (tables[wrote].astype(np.int64) << 32) | changes["replicaset_id"].to_numpy()[wrote]
    writers = frozenset((int(pair) >> 32, int(pair) & 0xFFFFFFFF) for pair in np.unique(pairs))
    return writers, frozenset(np.unique(tables[states == UNFIT]).tolist())


def _resolve_single_writer(changes: pa.Table, base_versions: pa.Table, plan: ResolvePlan) -> Resolved:
    """Resolve changes of tables that one replicaset writes: a present version is the row of its key."""
    changes = changes.combine_chunks()
    states, bases = changes["state"].to_numpy(), changes["base"].to_numpy()
    has_base = bases >= 0
    index = np.maximum(bases, 0)
    is_row, in_versions = (
        _flag_column(base_versions, name)[index] & has_base
        if base_versions.num_rows
        else np.zeros(len(bases), np.bool_)
        for name in ("is_row", "in_versions")
    )
    puts = changes.filter(pa.array(states == PRESENT)).select(PUTS.names).cast(PUTS)
    kept = (states == DELETED) | (states == UNFIT) | ((states == NONE) & in_versions)
    return Resolved(
        puts,
        _rows_to_remove(base_versions, bases[is_row]),
        _version_rows(changes, np.flatnonzero(kept), plan),
        CONFLICTS_ARROW.empty_table(),
        fault_rows(changes, plan),
    )


def _version_rows(changes: pa.Table, rows: NDArray[np.intp], plan: ResolvePlan) -> pa.Table:
    if not len(rows):
        return VERSIONS_ARROW.empty_table()
    own = changes.take(pa.array(rows)).combine_chunks()
    states = own["state"].to_numpy()
    names = ("key", "replicaset_id", "global_id", "lsn", "timestamp", "created")
    columns = {name: as_array(own[name]) for name in names}
    # A later UPDATE must not be applied to a tuple that a fault has made unknown.
    unknown = pa.array(states == UNFIT)
    columns["tuple"] = pc.if_else(unknown, pa.scalar(None, pa.binary()), as_array(own["tuple"]))
    columns["space"] = table_names(own["table"].to_numpy(), plan)
    return version_rows(columns, states, plan)


def _rows_to_remove(base_versions: pa.Table, rows: Int64s) -> pa.Table:
    return base_versions.take(pa.array(rows)).select(REMOVED.names)


def _flag_column(table: pa.Table, name: str) -> Flags:
    found: Flags = as_array(table[name]).to_numpy(zero_copy_only=False)
    return found


@dataclass(frozen=True)
class _ContendedVersions:
    """All current versions of keys of contended tables: the changed ones first, then the unchanged ones."""

    versions: KeyVersions
    keys: pa.Array
    """The canonical key of each version."""
    key_count: int
    is_changed: Flags
    """bool[n]."""
    is_row: Flags
    """Whether the table's row was the replicaset's version of this key before the batch (bool[n])."""
    is_in_versions_table: Flags
    """Whether `_versions` has a row of this key and replicaset (bool[n])."""
    base_versions: pa.Table
    """`pipeline.lookup.versions.BASE_VERSIONS`."""
    base_key_numbers: NDArray[np.int32]
    """The number of each base version's key (int32[base versions])."""


def _resolve_contended(changes: pa.Table, base_versions: pa.Table, plan: ResolvePlan) -> Resolved:
    changes = changes.combine_chunks()
    found = _contended_versions(changes, base_versions)
    choices = choose(found.versions, found.key_count, plan)
    versions, keys, states = found.versions, found.keys, found.versions.states
    wins = choices.winners[versions.key_numbers] == np.arange(len(versions.key_numbers))
    removed = (states == NONE) & found.is_changed & found.is_in_versions_table
    lost = ~wins & (found.is_changed | found.is_row) & (states != MERGED) & (states != NONE)
    is_no_row = wins & (states != PRESENT) & found.is_changed
    return Resolved(
        _new_rows(found, choices),
        _rows_to_remove(found.base_versions, np.flatnonzero(_replaced_rows(found, choices))),
        _contended_version_rows(found, np.flatnonzero(removed | lost | is_no_row), plan),
        conflict_rows(versions, keys, choices, found.is_changed, plan),
        pa.concat_tables([fault_rows(changes, plan), undecided_rows(versions, keys, choices, plan)]),
    )


@dataclass(frozen=True)
class ResolvedAgain:
    """The changes of a table after its policy was replaced by another one."""

    resolved: Resolved
    changed_keys: int
    examples: list[tuple[bytes, bytes | None, bytes | None]]
    """Some of these keys as (key, tuple before, tuple after); a tuple is None if the table has no row of the key."""


def resolve_again(base_versions: pa.Table, plan: ResolvePlan, max_examples: int = 0) -> ResolvedAgain:
    """Resolve the versions of some keys by another policy, without any new rows of the log."""
    found = _contended_versions(CHANGES.empty_table(), base_versions.combine_chunks(), all_keys=True)
    choices = choose(found.versions, found.key_count, plan)
    versions, indices = found.versions, np.arange(len(found.versions.key_numbers))
    rows = np.full(found.key_count, NOBODY, np.int64)
    rows[versions.key_numbers[found.is_row]] = indices[found.is_row]
    won = choices.winners >= 0
    has_row = won & (versions.states[np.maximum(choices.winners, 0)] == PRESENT)
    stays = np.where(won & ~has_row, NOBODY, choices.winners) == rows
    for key in np.flatnonzero(choices.winners == MADE):
        row = rows[key]
        if (
            row != NOBODY
            and versions.replicaset_ids[row] == -versions.replicaset_ids[choices.greatest_versions[key]]
        ):
            stays[key] = versions.tuples[int(row)].as_py() == choices.policy_outcomes[int(key)].tuple
    puts = _new_rows(found, choices)
    made = np.flatnonzero(choices.winners == MADE)
    winners = choices.winners[choices.winners >= 0]
    chosen = winners[~found.is_row[winners] & (versions.states[winners] == PRESENT)]
    is_new = np.concatenate([np.ones(len(chosen), np.bool_), ~stays[made]])
    loses = found.is_row & (versions.states != MERGED) & ~stays[versions.key_numbers]
    resolved = Resolved(
        puts.filter(pa.array(is_new)),
        _rows_to_remove(
            found.base_versions,
            np.flatnonzero(_flag_column(found.base_versions, "is_row") & ~stays[found.base_key_numbers]),
        ),
        _contended_version_rows(found, np.flatnonzero(loses), plan),
        conflict_rows(versions, found.keys, choices, ~stays[versions.key_numbers], plan, "policy"),
        undecided_rows(versions, found.keys, choices, plan),
    )
    changed = np.flatnonzero(~stays)
    return ResolvedAgain(
        resolved, len(changed), _examples(found, rows, resolved.puts, changed[:max_examples])
    )


def _examples(
    contended: _ContendedVersions, rows: Int64s, puts: pa.Table, keys: NDArray[np.intp]
) -> list[tuple[bytes, bytes | None, bytes | None]]:
    result = []
    for key in keys:
        (version,) = np.flatnonzero(contended.versions.key_numbers == key)[:1]
        name = contended.keys[int(version)].as_py()
        before = None if rows[key] == NOBODY else contended.versions.tuples[int(rows[key])].as_py()
        after = puts.filter(pc.equal(puts["key"], pa.scalar(name, pa.binary())))["tuple"].to_pylist()
        result.append((name, before, after[0] if after else None))
    return result


def _contended_versions(
    changes: pa.Table, base_versions: pa.Table, *, all_keys: bool = False
) -> _ContendedVersions:
    """Return the current versions of the keys in `changes`; with `all_keys`, of all keys."""
    tables = np.concatenate([changes["table"].to_numpy(), base_versions["table"].to_numpy()])
    keys = pa.concat_arrays([as_array(changes["key"]), as_array(base_versions["key"])])
    groups = group(tables, keys)
    new = changes.num_rows
    count = len(groups) if all_keys else int(groups.group_numbers[:new].max(initial=-1)) + 1
    # The lookup may have read versions of unchanged keys too.
    wanted = np.flatnonzero(groups.group_numbers[new:] < count)
    base_versions = base_versions.take(pa.array(wanted)).combine_chunks()
    ids = np.concatenate([groups.group_numbers[:new], groups.group_numbers[new:][wanted]])
    replicasets = np.concatenate(
        [changes["replicaset_id"].to_numpy(), base_versions["replicaset_id"].to_numpy()]
    )
    # One number per (key, replicaset); a row that a policy made has a negative id.
    names = (ids.astype(np.int64) << 32) | (replicasets.astype(np.int64) & 0xFFFFFFFF)
    replaced = np.isin(names[new:], names[:new])
    before = np.flatnonzero(~replaced)
    row_of, listed_of = _flag_column(base_versions, "is_row"), _flag_column(base_versions, "in_versions")
    is_row = np.concatenate([np.isin(names[:new], names[new:][row_of]), row_of[before]])
    in_versions = np.concatenate([np.isin(names[:new], names[new:][listed_of]), listed_of[before]])
    chosen = np.concatenate([np.arange(new), new + before])
    columns = ("key", "state", "tuple", "global_id", "lsn", "timestamp", "created")
    both = pa.concat_tables([changes.select(columns), base_versions.select(columns)]).take(pa.array(chosen))
    both = both.combine_chunks()
    states = both["state"].to_numpy()
    is_changed = np.zeros(len(chosen), np.bool_)
    is_changed[:new] = True
    tuples = as_array(both["tuple"])
    unknown = is_changed & (states == UNFIT)
    if unknown.any():
        tuples = pc.if_else(pa.array(unknown), pa.scalar(None, pa.binary()), tuples)
    versions = KeyVersions(
        ids[chosen],
        np.concatenate([changes["table"].to_numpy(), base_versions["table"].to_numpy()])[chosen],
        replicasets[chosen],
        states,
        tuples,
        _int64s(both["global_id"]),
        _int64s(both["lsn"]),
        times_of(both["timestamp"]),
        times_of(both["created"]),
    )
    return _ContendedVersions(
        versions=versions,
        keys=as_array(both["key"]),
        key_count=count,
        is_changed=is_changed,
        is_row=is_row,
        is_in_versions_table=in_versions,
        base_versions=base_versions,
        base_key_numbers=ids[new:],
    )


def _int64s(column: pa.ChunkedArray) -> Int64s:
    found: Int64s = as_array(column).fill_null(-1).to_numpy(zero_copy_only=False)
    return found


def _replaced_rows(contended: _ContendedVersions, choices: Choices) -> Flags:
    """Return for each base version whether it is a row to remove: another version wins the key, or none does."""
    stays = np.zeros(contended.key_count, np.bool_)
    known = np.flatnonzero(choices.winners >= 0)
    winners = choices.winners[known]
    is_same = contended.is_row[winners] & ~contended.is_changed[winners]
    stays[known[is_same & (contended.versions.states[winners] == PRESENT)]] = True
    return _flag_column(contended.base_versions, "is_row") & ~stays[contended.base_key_numbers]


def _new_rows(contended: _ContendedVersions, choices: Choices) -> pa.Table:
    """Return new rows of tables: winners that are not the row already, and tuples that a policy made."""
    versions = contended.versions
    winners = choices.winners[choices.winners >= 0]
    new = contended.is_changed[winners] | ~contended.is_row[winners]
    rows = winners[new & (versions.states[winners] == PRESENT)]
    index = pa.array(rows)
    chosen = pa.Table.from_arrays(
        [
            pa.array(versions.table_numbers[rows]),
            contended.keys.take(index),
            versions.tuples.take(index),
            null_if_negative(versions.global_ids[rows]),
            pa.array(versions.replicaset_ids[rows]),
            null_if_negative(versions.lsns[rows]),
            time_column(versions.times[rows]),
            time_column(versions.created[rows]),
        ],
        schema=PUTS,
    )
    made = np.flatnonzero(choices.winners == MADE)
    return pa.concat_tables([chosen, _made_rows(contended, choices, made)]) if len(made) else chosen


def _made_rows(contended: _ContendedVersions, choices: Choices, keys: NDArray[np.intp]) -> pa.Table:
    """Return tuples that a policy made as rows: origin and time of the greatest version, the earliest `created`."""
    versions, greatest = contended.versions, choices.greatest_versions[keys]
    earliest = np.full(contended.key_count, np.iinfo(np.int64).max, np.int64)
    # Only a version that still exists says when the key began: not a removed one, nor a row that a policy made.
    known = (versions.created != NO_TIME) & np.isin(versions.states, (PRESENT, UNFIT))
    np.minimum.at(earliest, versions.key_numbers[known], versions.created[known])
    created = np.where(earliest[keys] == np.iinfo(np.int64).max, NO_TIME, earliest[keys])
    return pa.Table.from_arrays(
        [
            pa.array(versions.table_numbers[greatest]),
            contended.keys.take(pa.array(greatest)),
            pa.array([choices.policy_outcomes[int(key)].tuple for key in keys], pa.binary()),
            null_if_negative(versions.global_ids[greatest]),
            pa.array(-versions.replicaset_ids[greatest]),
            null_if_negative(versions.lsns[greatest]),
            time_column(versions.times[greatest]),
            time_column(created),
        ],
        schema=PUTS,
    )


def _contended_version_rows(
    contended: _ContendedVersions, rows: NDArray[np.intp], plan: ResolvePlan
) -> pa.Table:
    if not len(rows):
        return VERSIONS_ARROW.empty_table()
    versions, index = contended.versions, pa.array(rows)
    columns = {
        "space": table_names(versions.table_numbers[rows], plan),
        "key": contended.keys.take(index),
        "replicaset_id": pa.array(versions.replicaset_ids[rows]),
        "tuple": versions.tuples.take(index),
        "global_id": null_if_negative(versions.global_ids[rows]),
        "lsn": null_if_negative(versions.lsns[rows]),
        "timestamp": time_column(versions.times[rows]),
        "created": time_column(versions.created[rows]),
    }
    return version_rows(columns, versions.states[rows], plan)

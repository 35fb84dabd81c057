"""before_replace over the versions of contended keys: which version wins, or what tuple a policy makes of them.

Pure, for all tables at once. Versions are compared by the rank that the table's policy gives, then by the configured
sequence, or else by the time, then by the uuids of replicaset and instance, then by the lsn; the greatest wins. So the
result does not depend on the order in which the versions came. A policy that makes tuples is called for contended keys
only.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.resolve.resolve_plan import ResolvePlan, TablePolicy
from udfs.before_replace.policy import Candidate, Outcome, Versions
from udfs.keys.keys import canonical_keys
from udfs.keys.sequence import ranks_of, sequence_bytes
from udfs.versions.kernels.lives import DELETED, NO_TIME, PRESENT, UNFIT

BY_RANK, BY_SEQUENCE, BY_TIME, BY_UUID, BY_RESULT = range(5)
"""The comparison by which a version lost; the first three are indices in the result of `_comparison_columns`."""

NOBODY, MADE = -1, -2
"""In place of the index of a winning version: no version wins; the tuple that the policy made is the table's row."""

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class KeyVersions:
    """Versions of keys, as arrays: each version is one replicaset's tuple of a key, or its deletion.

    A key has at most one version per replicaset.
    """

    key_numbers: Int32s
    """Number of each version's key (int32[n])."""
    table_numbers: Int32s
    """Number of each version's table (int32[n])."""
    replicaset_ids: Int32s
    """int32[n]."""
    states: NDArray[np.int8]
    """As in `pipeline.lookup.versions` (int8[n]). `PRESENT`, `UNFIT` and, if the table's policy compares deletions,
    `DELETED` versions can win. `MERGED` is the result of an earlier batch and not a version."""
    tuples: pa.Array
    global_ids: Int64s
    lsns: Int64s
    """-1 if unknown (int64[n])."""
    times: Int64s
    """When the version was written: microseconds since 1970, `NO_TIME` if unknown (int64[n])."""
    created: Int64s
    """When the tuple was inserted, in the same unit (int64[n])."""


@dataclass(frozen=True)
class Choices:
    """The results of before_replace; n is the number of versions."""

    winners: Int64s
    """For each key, the index of the winning version, or `NOBODY` or `MADE` (int64[keys])."""
    greatest_versions: Int64s
    """For each key, the index of its greatest version in the order of this module (int64[keys]); `NOBODY` if no version
    takes part. It wins, unless the policy decides in another way."""
    has_rivals: Flags
    """Whether versions of several replicasets took part (bool[keys])."""
    lost_comparisons: NDArray[np.int8]
    """The comparison (`BY_…`) by which each version lost (int8[n])."""
    policy_outcomes: dict[int, Outcome] = field(default_factory=dict)
    """By key number: the tuple that the policy made, or why it made none."""


def choose(versions: KeyVersions, key_count: int, plan: ResolvePlan) -> Choices:
    """Choose the winning version of each key."""
    takes_deleted = np.array([table.compares_deleted for table in plan.tables], np.bool_)
    deleted = (versions.states == DELETED) & takes_deleted[versions.table_numbers]
    takes_part = (versions.states == PRESENT) | (versions.states == UNFIT) | deleted
    candidates = np.bincount(versions.key_numbers[takes_part], minlength=key_count)
    is_decision = candidates > 1
    greatest = np.full(key_count, NOBODY, np.int64)
    alone = np.flatnonzero(takes_part & ~is_decision[versions.key_numbers])
    greatest[versions.key_numbers[alone]] = alone
    lost_by = np.full(len(versions.key_numbers), BY_UUID, np.int8)
    contended = np.flatnonzero(takes_part & is_decision[versions.key_numbers])
    if not len(contended):
        return Choices(greatest, greatest, is_decision, lost_by)
    columns = _comparison_columns(versions, contended, plan)
    order = np.lexsort([*reversed(columns), versions.key_numbers[contended].astype(np.int64)])
    ordered = contended[order]
    keys = versions.key_numbers[ordered]
    is_last = np.append(keys[1:] != keys[:-1], True)
    greatest[keys[is_last]] = ordered[is_last]
    _set_lost_comparisons(lost_by, contended, columns, versions, greatest)
    winners = greatest.copy()
    makes = np.array([table.policy.make is not None for table in plan.tables], np.bool_)
    of_makers = ordered[makes[versions.table_numbers[ordered]]]
    made = _policy_outcomes(versions, of_makers, plan) if len(of_makers) else {}
    for key, outcome in made.items():
        winners[key] = MADE if outcome.tuple is not None else NOBODY
        if outcome.winner is not None:
            winners[key] = outcome.winner
    own = makes[versions.table_numbers] & is_decision[versions.key_numbers]
    lost_by[own] = BY_RESULT
    return Choices(winners, greatest, is_decision, lost_by, made)


def _comparison_columns(versions: KeyVersions, rows: NDArray[np.intp], plan: ResolvePlan) -> list[Int64s]:
    """Return the numbers by which versions are compared, one array per comparison, the most important first."""
    count = len(rows)
    ranks, sequences = np.zeros(count, np.int64), np.zeros(count, np.int64)
    times = versions.times[rows].copy()
    tables = versions.table_numbers[rows]
    for number in np.unique(tables):
        table, own = plan.tables[number], np.flatnonzero(tables == number)
        found = rows[own]
        tuples = versions.tuples.take(pa.array(found))
        formats = table.format_indices_of(versions.replicaset_ids[found])
        if table.policy.rank is not None:
            ranked = Versions(
                tuples,
                formats,
                versions.replicaset_ids[found],
                plan.replicaset_uuids,
                versions.created[found],
            )
            ranks[own] = table.policy.rank(ranked, table.options, table.formats)
        if table.options.sequence:
            fields = table.formats.field_numbers(table.options.sequence)
            sequences[own] = ranks_of(sequence_bytes(tuples, formats, fields))
            times[own] = NO_TIME
    return [
        ranks,
        sequences,
        times,
        _text_ranks(plan.replicaset_uuids)[versions.replicaset_ids[rows]],
        _text_ranks(plan.instance_uuids)[np.minimum(versions.global_ids[rows], len(plan.instance_uuids))],
        versions.lsns[rows],
    ]


def _text_ranks(texts: object) -> Int64s:
    """Return the rank of each text from 1 on; the last element is 0, the rank of a missing text."""
    _, ranks = np.unique(np.array(texts, object).astype(str), return_inverse=True)
    found: Int64s = np.append(ranks.astype(np.int64) + 1, 0)
    return found


def _set_lost_comparisons(
    lost_by: NDArray[np.int8],
    rows: NDArray[np.intp],
    columns: list[Int64s],
    versions: KeyVersions,
    greatest: Int64s,
) -> None:
    """Set the first comparison in which each version differs from the greatest version of its key."""
    index = np.full(len(lost_by), -1, np.int64)
    index[rows] = np.arange(len(rows))
    best = index[greatest[versions.key_numbers[rows]]]
    for number in (BY_TIME, BY_SEQUENCE, BY_RANK):
        differs = columns[number] != columns[number][best]
        lost_by[rows[differs]] = number


def _policy_outcomes(
    versions: KeyVersions, version_indices: NDArray[np.intp], plan: ResolvePlan
) -> dict[int, Outcome]:
    """Call the policies that make tuples, and return the outcome of each key."""
    keys = versions.key_numbers[version_indices]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    tuples = versions.tuples.take(pa.array(version_indices)).to_pylist()
    lists: dict[int, list[tuple[int, list[Candidate], NDArray[np.intp]]]] = {}
    found: dict[int, Outcome] = {}
    for begin, end in zip(starts, np.append(starts[1:], len(keys)), strict=True):
        rows = version_indices[begin:end]
        unknown = versions.states[rows] == UNFIT
        if any(tuples[begin + i] is None for i in np.flatnonzero(unknown)):
            # A policy cannot decide without the tuple.
            found[int(keys[begin])] = Outcome()
            continue
        table = int(versions.table_numbers[rows[0]])
        one = [
            _candidate(versions, int(row), data, plan)
            for row, data in zip(rows, tuples[begin:end], strict=True)
        ]
        lists.setdefault(table, []).append((int(keys[begin]), one, rows))
    for number, keyed in lists.items():
        outcomes = _call_policy(plan.tables[number], [one for _, one, _ in keyed])
        for (key, _, rows), outcome in zip(keyed, outcomes, strict=True):
            winner = None if outcome.winner is None else int(rows[outcome.winner])
            found[key] = outcome._replace(winner=winner)
    return found


def _candidate(versions: KeyVersions, row: int, data: bytes | None, plan: ResolvePlan) -> Candidate:
    global_id = int(versions.global_ids[row])
    replicaset = int(versions.replicaset_ids[row])
    format_ = plan.tables[versions.table_numbers[row]].format_indices_of(
        versions.replicaset_ids[row : row + 1]
    )[0]
    return Candidate(
        data,
        plan.replicaset_uuids[replicaset],
        plan.instance_uuids[global_id] if global_id >= 0 else "",
        int(versions.lsns[row]),
        _none_if_unknown(versions.times[row]),
        _none_if_unknown(versions.created[row]),
        global_id=max(global_id, 0),
        format_index=max(int(format_), 0),
    )


def _none_if_unknown(value: np.int64) -> int | None:
    return None if value == NO_TIME else int(value)


def _call_policy(table: TablePolicy, keys: list[list[Candidate]]) -> list[Outcome]:
    """Call a policy for keys, each with its versions; a made tuple with another primary key is a fault."""
    make = table.policy.make
    if make is None:
        return [Outcome() for _ in keys]
    outcomes = make(keys, table.options, table.formats)
    layouts = pa.array([outcome.format_index for outcome in outcomes], pa.int32())
    tuples = pa.array([outcome.tuple for outcome in outcomes], pa.binary())
    new = canonical_keys(tuples, table.formats.spaces, layouts).to_pylist()
    known = [next((one for one in key if one.tuple is not None), key[0]) for key in keys]
    old = canonical_keys(
        pa.array([one.tuple for one in known], pa.binary()),
        table.formats.spaces,
        pa.array([one.format_index for one in known], pa.int32()),
    ).to_pylist()
    found = []
    for outcome, after, before in zip(outcomes, new, old, strict=True):
        wrong = outcome.tuple is not None and after["key"] != before["key"]
        reason = after["error"] or "the policy made a tuple with another primary key"
        found.append(Outcome(fault=reason) if wrong else outcome)
    return found

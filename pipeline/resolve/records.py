"""Makes the rows of `_versions`, `_conflicts` and `_quarantine` of resolved versions. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.lookup.reduce_plan import ReducePlan
from pipeline.lookup.versions import STATE_NAMES, time_column
from pipeline.resolve.choose import (
    BY_RANK,
    BY_RESULT,
    BY_SEQUENCE,
    BY_TIME,
    BY_UUID,
    MADE,
    Choices,
    KeyVersions,
)
from pipeline.resolve.resolve_plan import ResolvePlan, TablePolicy
from schemas.states import ChangedSide, ConflictKind
from schemas.tables import CONFLICTS, QUARANTINE, VERSIONS
from udfs.buffers import as_array
from udfs.versions.kernels.lives import DELETED, NO_TIME, PRESENT, UNFIT

VERSIONS_ARROW = to_arrow_schema(VERSIONS, timezone="UTC")
CONFLICTS_ARROW = to_arrow_schema(CONFLICTS, timezone="UTC")
QUARANTINE_ARROW = to_arrow_schema(QUARANTINE, timezone="UTC")

Int64s = NDArray[np.int64]


def table_names(table_numbers: NDArray[np.int32], plan: ResolvePlan) -> pa.Array:
    """Return the name of each row's table, by table number."""
    return pa.array([table.name for table in plan.tables], pa.string()).take(pa.array(table_numbers))


def version_rows(columns: Mapping[str, pa.Array], states: NDArray[np.int8], plan: ResolvePlan) -> pa.Table:
    """Return rows of `_versions`; the state `NONE` says that the replicaset has no version of the key any more."""
    names = pa.array([STATE_NAMES[state] for state in range(len(STATE_NAMES))], pa.string())
    whole = {
        **columns,
        "state": names.take(pa.array(states)),
        "epoch": pa.repeat(pa.scalar(plan.epoch, pa.int64()), len(states)),
    }
    return pa.Table.from_arrays([whole[f.name] for f in VERSIONS_ARROW], schema=VERSIONS_ARROW)


def quarantine_rows(columns: Mapping[str, pa.Array], epoch: int) -> pa.Table:
    """Return rows of `_quarantine`; columns that are not passed are null."""
    count = len(next(iter(columns.values())))
    whole = {**columns, "epoch": pa.repeat(pa.scalar(epoch, pa.int64()), count)}
    arrays = [whole[f.name] if f.name in whole else pa.nulls(count, f.type) for f in QUARANTINE_ARROW]
    return pa.Table.from_arrays(arrays, schema=QUARANTINE_ARROW)


def fault_rows(changes: pa.Table, plan: ResolvePlan) -> pa.Table:
    """Return rows of `_quarantine` for rows of the log that could not be applied to their key.

    Many rows of one key may fail, so only the first of them gets the key's tuple.
    """
    faulty = changes.filter(pa.compute.is_valid(changes["faults"])).combine_chunks()
    if not faulty.num_rows:
        return QUARANTINE_ARROW.empty_table()
    lists = faulty["faults"].combine_chunks()
    parents = pa.compute.list_parent_indices(lists).to_numpy()
    is_first = np.append(True, parents[1:] != parents[:-1])
    order = np.concatenate([np.flatnonzero(is_first), np.flatnonzero(~is_first)])
    own = faulty.select(["replicaset_id", "table", "key"]).take(pa.array(parents[order])).combine_chunks()
    faults = lists.flatten().take(pa.array(order))
    tuples = as_array(faulty["tuple"]).take(pa.array(parents[is_first]))
    tuples = pa.concat_arrays([tuples, pa.nulls(len(order) - len(tuples), tuples.type)])
    columns = {
        "replicaset_id": own["replicaset_id"],
        "space": table_names(own["table"].to_numpy(), plan),
        "key": own["key"],
        "tuple": tuples,
        "global_id": faults.field("global_id"),
        "lsn": faults.field("lsn"),
        "reason": faults.field("reason"),
    }
    return quarantine_rows({name: as_array(column) for name, column in columns.items()}, plan.epoch)


def merge_key_errors(errors: pa.Table) -> pa.Table:
    """Merge the errors of each lineage into one, in which `rows` counts all rows of the lineage without a key.

    The last error in the order of the columns `error`, `lsn` and `global_id` represents the others.
    """
    if errors.num_rows <= 1:
        return errors
    filled = errors.set_column(1, "global_id", errors["global_id"].fill_null(-1))
    filled = filled.set_column(2, "lsn", filled["lsn"].fill_null(-1)).combine_chunks()
    names = ("lineage", "error", "lsn", "global_id")
    order = pa.compute.sort_indices(filled, sort_keys=[(name, "ascending") for name in names])
    lineages = filled["lineage"].to_numpy()[order.to_numpy()]
    is_last = np.append(lineages[1:] != lineages[:-1], True)
    firsts = np.append(0, np.flatnonzero(is_last)[:-1] + 1)
    counts = np.add.reduceat(filled["rows"].to_numpy()[order.to_numpy()], firsts)
    found = errors.combine_chunks().take(order.filter(pa.array(is_last)))
    return found.set_column(found.schema.get_field_index("rows"), "rows", pa.array(counts))


def key_error_rows(errors: pa.Table, plan: ReducePlan, epoch: int) -> pa.Table:
    """Return a row of `_quarantine` for each lineage that has rows without a key; `reason` has the number of rows."""
    rows = [
        {
            "epoch": epoch,
            "replicaset_id": int(plan.lineage_replicasets[row["lineage"]]),
            "space": plan.tables[int(plan.final_tables[row["lineage"]])],
            "global_id": row["global_id"],
            "lsn": row["lsn"],
            "reason": row["error"] if row["rows"] == 1 else f"{row['error']} (rows like it: {row['rows']})",
        }
        for row in merge_key_errors(errors).to_pylist()
    ]
    return pa.Table.from_pylist(rows, schema=QUARANTINE_ARROW)


def undecided_rows(versions: KeyVersions, keys: pa.Array, choices: Choices, plan: ResolvePlan) -> pa.Table:
    """Return rows of `_quarantine` for all versions of keys for which the policy failed."""
    reasons = {key: one.fault for key, one in choices.policy_outcomes.items() if one.fault is not None}
    rows = np.flatnonzero(np.isin(versions.key_numbers, list(reasons)) & _takes_part(versions, plan))
    if not len(rows):
        return QUARANTINE_ARROW.empty_table()
    columns = {
        "replicaset_id": pa.array(versions.replicaset_ids[rows]),
        "space": table_names(versions.table_numbers[rows], plan),
        "key": keys.take(pa.array(rows)),
        "tuple": versions.tuples.take(pa.array(rows)),
        "global_id": null_if_negative(versions.global_ids[rows]),
        "lsn": null_if_negative(versions.lsns[rows]),
        "reason": pa.array([reasons[int(key)] for key in versions.key_numbers[rows]], pa.string()),
    }
    return quarantine_rows(columns, plan.epoch)


def conflict_rows(
    versions: KeyVersions,
    keys: pa.Array,
    choices: Choices,
    is_changed: NDArray[np.bool_],
    plan: ResolvePlan,
    changed_label: str | None = None,
) -> pa.Table:
    """Return rows of `_conflicts` for versions that lost to another replicaset's version, if one of the two is new.

    Args:
        is_changed: Whether a version is new (bool[n]).
        changed_label: The value of the column `changed_label`; by default it says which of the two is new.
    """
    winners = choices.winners[versions.key_numbers]
    winner_changed = np.where(winners >= 0, is_changed[np.maximum(winners, 0)], winners == MADE)
    faults = [key for key, one in choices.policy_outcomes.items() if one.fault is not None]
    lost = choices.has_rivals[versions.key_numbers] & (winners != np.arange(len(winners)))
    lost &= (versions.states != UNFIT) & _takes_part(versions, plan) & ~np.isin(versions.key_numbers, faults)
    rows = np.flatnonzero(lost & (is_changed | winner_changed))
    if not len(rows):
        return CONFLICTS_ARROW.empty_table()
    winner = _winner_columns(versions, choices, rows)
    index = pa.array(rows)
    loser = {
        "replicaset_id": pa.array(versions.replicaset_ids[rows]),
        "global_id": null_if_negative(versions.global_ids[rows]),
        "lsn": null_if_negative(versions.lsns[rows]),
        "timestamp": time_column(versions.times[rows]),
        "tuple": versions.tuples.take(index),
    }
    unknown = (versions.times[rows] == NO_TIME) | pa.compute.is_null(winner["timestamp"]).to_numpy(False)
    nobody = pa.compute.is_null(winner["replicaset_id"]).to_numpy(False)
    notes = np.where(nobody, 0, np.where(unknown, 1, 2))
    both = np.where(is_changed[rows] & winner_changed[rows], 0, np.where(is_changed[rows], 1, 2))
    which = _texts_at([ChangedSide.BOTH, ChangedSide.LOSER, ChangedSide.WINNER], both)
    columns: dict[str, Any] = {
        "epoch": _constant_array(plan.epoch, pa.int64(), len(rows)),
        "decided_at": _constant_array(plan.decided_at, CONFLICTS_ARROW.field("decided_at").type, len(rows)),
        "space": table_names(versions.table_numbers[rows], plan),
        "key": keys.take(index),
        "policy": _texts_at([table.policy_name for table in plan.tables], versions.table_numbers[rows]),
        "kind": _constant_array(ConflictKind.KEY, pa.string(), len(rows)),
        "sequence": _sequence_labels(versions.table_numbers[rows], choices.lost_comparisons[rows], plan),
        **{f"winner_{name}": column for name, column in winner.items()},
        **{f"loser_{name}": column for name, column in loser.items()},
        "changed": which if changed_label is None else _constant_array(changed_label, pa.string(), len(rows)),
        "note": _texts_at(["deleted", "time unknown", None], notes),
    }
    return pa.Table.from_arrays([columns[f.name] for f in CONFLICTS_ARROW], schema=CONFLICTS_ARROW)


def _takes_part(versions: KeyVersions, plan: ResolvePlan) -> NDArray[np.bool_]:
    """Return for each version whether the policy compared it with others.

    Policies compare present and unfit versions, and with `deletes: all` deleted ones, but no tuple that a policy made.
    """
    takes_deleted = np.array([table.compares_deleted for table in plan.tables], np.bool_)[
        versions.table_numbers
    ]
    result: NDArray[np.bool_] = np.isin(versions.states, (PRESENT, UNFIT))
    result |= (versions.states == DELETED) & takes_deleted
    return result


def _winner_columns(
    versions: KeyVersions, choices: Choices, rows: NDArray[np.intp]
) -> Mapping[str, pa.Array]:
    """Return the columns `winner_…` of `_conflicts` for some versions: the winner of each version's key."""
    keys = versions.key_numbers[rows]
    winners, is_made = choices.winners[keys], choices.winners[keys] == MADE
    source = np.where(is_made, choices.greatest_versions[keys], winners)
    nobody = source < 0
    index = np.maximum(source, 0)
    replicasets = np.where(is_made, -versions.replicaset_ids[index], versions.replicaset_ids[index])
    tuples = versions.tuples.take(pa.array(index, mask=nobody | is_made))
    if is_made.any():
        made = pa.array(
            [
                choices.policy_outcomes[int(key)].tuple if key in choices.policy_outcomes else None
                for key in keys
            ]
        )
        tuples = pa.compute.if_else(pa.array(is_made), made.cast(pa.binary()), tuples)
    return {
        "replicaset_id": pa.array(replicasets, pa.int32(), mask=nobody),
        "global_id": null_if_negative(np.where(nobody, -1, versions.global_ids[index])),
        "lsn": null_if_negative(np.where(nobody, -1, versions.lsns[index])),
        "timestamp": time_column(np.where(nobody, NO_TIME, versions.times[index])),
        "tuple": tuples,
    }


def _sequence_labels(
    table_numbers: NDArray[np.int32], lost_comparisons: NDArray[np.int8], plan: ResolvePlan
) -> pa.Array:
    texts = [label for table in plan.tables for label in comparison_labels(table)]
    return _texts_at(texts, table_numbers.astype(np.int64) * len(_COMPARISONS) + lost_comparisons)


_COMPARISONS = (BY_RANK, BY_SEQUENCE, BY_TIME, BY_UUID, BY_RESULT)


def comparison_labels(table: TablePolicy) -> Sequence[str]:
    """Return, for each value of `Choices.lost_comparisons`, its name as in `_conflicts.sequence`."""
    own = table.policy.label(table.options)
    return (own, ", ".join(table.options.sequence), "timestamp", "replicaset uuid", own)


def _texts_at(texts: Sequence[str | None], index: NDArray[Any]) -> pa.Array:
    return pa.array(texts, pa.string()).take(pa.array(index))


def _constant_array(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def null_if_negative(numbers: Int64s) -> pa.Array:
    """Return ids or lsns as an array, in which negative ones are null."""
    return pa.array(numbers, pa.int64(), mask=numbers < 0)

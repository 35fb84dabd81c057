"""Determines which base versions must be read before a batch's rows can be reduced and resolved.

Pure. As few as possible are read: if the first row of a key is an INSERT, its replicaset had no version of the key; so
nothing is read for the key if only this replicaset writes the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.changelog.keyed_rows import ACTIONS, INSERT
from pipeline.lookup.ranges import Ranges, ranges_in
from pipeline.lookup.reduce_plan import ReducePlan
from udfs.buffers import as_array
from udfs.keys.grouping import Groups, group
from udfs.versions.kernels.lives import OPERATION

Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class KeyedRows:
    """Keyed rows, grouped by key."""

    rows: pa.Table
    """`pipeline.changelog.keyed_rows.KEYED`, each replicaset's rows in log order; one chunk per column."""
    slots: Int32s
    """The slot of each row: the number of the row's lineage and era (`pipeline.reduce.reduce`; int32[rows])."""
    groups: Groups
    """The rows grouped by (slot, key)."""
    ranges: Ranges | None = None
    """The DELETE_RANGE rows, which are in no group, since they have no key."""


@dataclass(frozen=True)
class BaseRequest:
    """The base versions of one table that must be read."""

    table: int
    keys: pa.Array
    """Keys that need the versions of all replicasets; may contain duplicates."""
    key_filters: Mapping[int, KeyFilter | None] = field(default_factory=dict)
    """For each replicaset (by id) whose versions are also needed under keys that are in no row of the batch: a filter
    that chooses among the table's keys, or None for all of them."""
    needs_tuples: bool = False
    reads_versions_table: bool = False
    """Whether `_versions` must be read too, since it may have some of the versions."""


def group_keyed_rows(rows: pa.Table, plan: ReducePlan) -> KeyedRows:
    """Group keyed rows by (slot, key)."""
    whole = rows.combine_chunks()
    slots = plan.meaning_slots[_int32s(whole["meaning"])]
    keys = as_array(whole["key"])
    return KeyedRows(whole, slots, group(slots, keys), ranges_in(whole, slots, plan))


class KeyFilter(Protocol):
    """Chooses some of a table's keys."""

    def __call__(self, keys: pa.Array, /) -> NDArray[np.bool_]:
        """Return for each key whether it is chosen."""


class TaskTables(Protocol):
    """Knows in which tables a task has keys to process (`pipeline.lookup.partitions.PartitionKeys`)."""

    def has(self, table: int) -> bool:
        """Return whether the task has keys in the table with this number."""


def base_requests(
    keyed: KeyedRows, plan: ReducePlan, task_tables: TaskTables | None = None
) -> list[BaseRequest]:
    """Return which base versions must be read to reduce rows, and to resolve the versions that the rows change."""
    wanted: dict[int, list[pa.Array]] = {}
    needs_tuples: set[int] = set()
    lineages = plan.slot_lineages[keyed.slots]
    firsts = keyed.groups.first_rows
    types = _int32s(keyed.rows["type"])
    needs_tuple = ACTIONS[types] == OPERATION
    needs_tuple |= as_array(keyed.rows["bucket_events"]).is_valid().to_numpy(zero_copy_only=False)
    operated = set(np.unique(lineages[needs_tuple]).tolist())
    first_lineages, first_types = lineages[firsts], types[firsts]
    keys = as_array(keyed.rows["key"])
    for number in np.unique(first_lineages).tolist():
        own = first_lineages == number
        base, final = int(plan.base_tables[number]), int(plan.final_tables[number])
        for table in {base, final} - {-1}:
            if plan.is_empty[table] or not (table == base or plan.is_contended[table]):
                continue
            rows = own & (first_types != INSERT) if _insert_proves_absence(plan, number, table) else own
            if rows.any():
                wanted.setdefault(table, []).append(keys.take(pa.array(firsts[rows])))
                if number in operated or plan.is_contended[table]:
                    needs_tuples.add(table)
    changed: dict[int, dict[int, KeyFilter | None]] = {}
    ranged = ranged_lineages(keyed, plan)
    for number, lineage in enumerate(plan.lineages):
        base = int(plan.base_tables[number])
        is_read = plan.is_active[number] and base >= 0 and not plan.is_empty[base]
        if is_read and lineage.changes_keys_without_rows and (task_tables is None or task_tables.has(base)):
            changed.setdefault(base, {})[lineage.replicaset_id] = None
            needs_tuples.add(base)
        elif is_read and ranged[number] and keyed.ranges is not None:
            found = partial(keyed.ranges.contain, int(plan.first_slots[number]))
            changed.setdefault(base, {})[lineage.replicaset_id] = found
            if number in operated or plan.is_contended[base]:
                needs_tuples.add(base)
    return [
        BaseRequest(
            table,
            pa.concat_arrays(wanted[table]) if table in wanted else pa.array([], pa.binary()),
            changed.get(table, {}),
            table in needs_tuples,
            plan.is_contended[table] or table in changed,
        )
        for table in sorted(wanted.keys() | changed.keys())
    ]


def ranged_lineages(keyed: KeyedRows, plan: ReducePlan) -> NDArray[np.bool_]:
    """Return for each lineage whether it has DELETE_RANGE rows."""
    found = np.zeros(len(plan.lineages), np.bool_)
    if keyed.ranges is not None:
        found[plan.slot_lineages[keyed.ranges.slots]] = True
    return found


def _insert_proves_absence(plan: ReducePlan, lineage: int, table: int) -> bool:
    """Return whether a table has no version of a key if the key's first row in a lineage is an INSERT."""
    return not plan.is_contended[table] and plan.lineages[lineage].replicaset_id not in plan.lossy_replicasets


def further_base_requests(
    changes: pa.Table, requested: list[BaseRequest], base_versions: pa.Table, plan: ReducePlan
) -> list[BaseRequest]:
    """Return which further base versions must be read before the changed versions can be resolved.

    A rename or a new primary key may bring keys into a table that the rows did not name. If the table is contended, the
    other replicasets' versions of these keys are needed.
    """
    known = {request.table: [request.keys] for request in requested}
    read_tables, read_keys = _int32s(base_versions["table"]), as_array(base_versions["key"])
    for table, keys in known.items():
        keys.append(read_keys.filter(pa.array(read_tables == table)))
    found = []
    tables = _int32s(changes["table"])
    incoming = {
        int(plan.final_tables[number])
        for number, one in enumerate(plan.lineages)
        if plan.is_active[number] and (one.leaves_base_table or len(one.eras) > 1)
    }
    for table in sorted(incoming - {-1}):
        if not plan.is_contended[table] or plan.is_empty[table]:
            continue
        keys = as_array(changes["key"].filter(pa.array(tables == table)))
        if table in known:
            keys = keys.filter(pc.invert(pc.is_in(keys, pa.concat_arrays(known[table]))))
        if len(keys):
            found.append(BaseRequest(table, keys, {}, True, True))
    return found


def _int32s(column: pa.ChunkedArray) -> NDArray[np.int32]:
    found: NDArray[np.int32] = column.to_numpy()
    return found

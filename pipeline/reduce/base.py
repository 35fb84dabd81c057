"""Which versions must be read before a batch's rows can be reduced and resolved.

Pure. As few as the log allows: the first row of a key that is an INSERT proves that its replicaset had no version, so
where one replicaset writes a table, nothing is read for it.
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

from pipeline.changelog.rows import ACTIONS, INSERT
from pipeline.reduce.ranges import Ranges, ranges_in
from pipeline.reduce.reduce_plan import ReducePlan
from udfs.buffers import as_array
from udfs.keys.grouping import Groups, group
from udfs.versions.kernels.lives import OPERATION

Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class KeyedRows:
    """Keyed rows, brought together by key.

    Parameters
    ----------
    rows : pyarrow.Table
        `pipeline.changelog.rows.KEYED`, each replicaset's rows in the order of its log; one chunk a column.
    slots : int32[rows]
        Slot of each row.
    groups : Groups
        By (slot, key).
    ranges : Ranges or None
        The rows that delete ranges of keys; they have no key and are in no group.

    """

    rows: pa.Table
    slots: Int32s
    groups: Groups
    ranges: Ranges | None = None


@dataclass(frozen=True)
class BaseRequest:
    """Versions of one table that are needed.

    Parameters
    ----------
    table : int
        Its number.
    keys : pyarrow.BinaryArray
        Keys whose versions are needed, of all replicasets; some may be there twice.
    replicasets : mapping of int to filter or None
        Replicasets whose versions are needed whose keys are not known here, with what says which of their keys; None
        for all of them.
    with_tuples : bool
        Whether the tuples are needed too.
    with_versions : bool
        Whether versions can be in `_versions`.

    """

    table: int
    keys: pa.Array
    replicasets: Mapping[int, KeyFilter | None] = field(default_factory=dict)
    with_tuples: bool = False
    with_versions: bool = False


def keyed_rows(rows: pa.Table, plan: ReducePlan) -> KeyedRows:
    """Return the rows with a number for each distinct key: rows of one key and slot get the same number."""
    whole = rows.combine_chunks()
    slots = plan.meaning_slots[_numbers(whole["meaning"])]
    keys = as_array(whole["key"])
    return KeyedRows(whole, slots, group(slots, keys), ranges_in(whole, slots, plan))


class KeyFilter(Protocol):
    """Chooses the keys that a function works on."""

    def __call__(self, keys: pa.Array, /) -> NDArray[np.bool_]:
        """Return for each key whether it is chosen."""


class KeyTables(Protocol):
    """The tables whose keys are in a share (`pipeline.key_ranges.BucketShare`)."""

    def has(self, table: int) -> bool:
        """Whether there are keys of a table."""


def base_requests(keyed: KeyedRows, plan: ReducePlan, share: KeyTables | None = None) -> list[BaseRequest]:
    """Return which versions must be read to reduce rows, and to resolve what comes of them.

    Parameters
    ----------
    keyed : KeyedRows
    plan : ReducePlan
    share : KeyTables, optional
        Tables whose keys are here; all by default.

    """
    wanted: dict[int, list[pa.Array]] = {}
    needs_tuples: set[int] = set()
    lineages = plan.slot_lineages[keyed.slots]
    firsts = keyed.groups.firsts
    types = _numbers(keyed.rows["type"])
    looks_at_tuples = ACTIONS[types] == OPERATION
    looks_at_tuples |= as_array(keyed.rows["bucket_events"]).is_valid().to_numpy(zero_copy_only=False)
    operated = set(np.unique(lineages[looks_at_tuples]).tolist())
    first_lineages, first_types = lineages[firsts], types[firsts]
    keys = as_array(keyed.rows["key"])
    for number in np.unique(first_lineages).tolist():
        own = first_lineages == number
        base, final = int(plan.base_tables[number]), int(plan.final_tables[number])
        for table in {base, final} - {-1}:
            if plan.is_empty[table] or not (table == base or plan.is_contended[table]):
                continue
            rows = own if not _proves(plan, number, table) else own & (first_types != INSERT)
            if rows.any():
                wanted.setdefault(table, []).append(keys.take(pa.array(firsts[rows])))
                if number in operated or plan.is_contended[table]:
                    needs_tuples.add(table)
    changed: dict[int, dict[int, KeyFilter | None]] = {}
    ranged = ranged_lineages(keyed, plan)
    for number, lineage in enumerate(plan.lineages):
        base = int(plan.base_tables[number])
        is_read = plan.is_active[number] and base >= 0 and not plan.is_empty[base]
        if is_read and lineage.changes_base and (share is None or share.has(base)):
            changed.setdefault(base, {})[lineage.replicaset_id] = None
            needs_tuples.add(base)
        elif is_read and ranged[number] and keyed.ranges is not None:
            found = partial(keyed.ranges.hold, int(plan.slot_starts[number]))
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
    """Return the lineages in which rows delete ranges of keys."""
    found = np.zeros(len(plan.lineages), np.bool_)
    if keyed.ranges is not None:
        found[plan.slot_lineages[keyed.ranges.slots]] = True
    return found


def _proves(plan: ReducePlan, lineage: int, table: int) -> bool:
    """Whether an INSERT that comes first proves that a table has no version of its key."""
    return not plan.is_contended[table] and plan.lineages[lineage].replicaset_id not in plan.has_loss


def more_requests(
    changes: pa.Table, read: list[BaseRequest], entries: pa.Table, plan: ReducePlan
) -> list[BaseRequest]:
    """Return which versions must be read too, for keys that a rename or a new primary key brought into a table.

    Parameters
    ----------
    changes : pyarrow.Table
        What the rows come to.
    read : list of BaseRequest
        What was asked for before.
    entries : pyarrow.Table
        What was found then, which is more than the keys that were asked for where all versions of a replicaset were.
    plan : ReducePlan

    """
    known = {request.table: [request.keys] for request in read}
    read_tables, read_keys = _numbers(entries["table"]), as_array(entries["key"])
    for table, keys in known.items():
        keys.append(read_keys.filter(pa.array(read_tables == table)))
    found = []
    tables = _numbers(changes["table"])
    incoming = {
        int(plan.final_tables[number])
        for number, one in enumerate(plan.lineages)
        if plan.is_active[number] and (one.leaves_base or len(one.eras) > 1)
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


def _numbers(column: pa.ChunkedArray) -> NDArray[np.int32]:
    found: NDArray[np.int32] = column.to_numpy()
    return found

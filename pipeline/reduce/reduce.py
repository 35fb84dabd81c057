"""Computes each replicaset's changed versions from the keyed rows of a batch and the base versions. Pure.

A slot is one era (a period with one primary key) of one lineage (a space from its creation to its drop). Rows are
reduced era by era. When the primary key changes, the versions so far get their new keys in the next slot. At the end
the versions of each lineage go to its table, and are removed from a table that the lineage has left.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.changelog.keyed_rows import ACTIONS, KEY_ERRORS
from pipeline.lookup.ranges import RowKeyPairs
from pipeline.lookup.reduce_plan import ReducePlan
from pipeline.lookup.requests import KeyedRows, ranged_lineages
from pipeline.lookup.versions import CHANGES, FAULT, MERGED, time_column, times_of
from pipeline.reduce.operated_keys import BaseVersion, fold_keys, quick_tuples
from udfs.buffers import as_array
from udfs.keys.grouping import group
from udfs.keys.keys import canonical_keys_with_plan
from udfs.versions.kernels.lives import NO_ROW, NO_TIME, NONE, OPERATION, PRESENT, UNFIT, reduce_rows

Int8s = NDArray[np.int8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass
class _Versions:
    """The versions of all keys while they are reduced: one element per (slot, key).

    Tuples, global ids and lsns are not copied. `tuple_indices` has the index of each version's tuple, and
    `origin_indices` the index of its global id and lsn, in the concatenation of the batch's rows, the base versions and
    the results of operations. `base_indices` has the index of the key's base version. -1 means none.
    """

    slots: Int32s
    keys: pa.Array
    states: Int8s
    times: Int64s
    created: Int64s
    tuple_indices: Int64s
    origin_indices: Int64s
    base_indices: Int64s
    base_states: Int8s
    is_changed: Flags


@dataclass(frozen=True)
class Reduced:
    """The versions of keys that a batch changes."""

    changes: pa.Table
    """`pipeline.lookup.versions.CHANGES`."""
    key_errors: pa.Table
    """Versions for which a changed primary key has no value: `pipeline.changelog.keyed_rows.KEY_ERRORS`."""


def reduce(keyed: KeyedRows, base_versions: pa.Table, plan: ReducePlan) -> Reduced:
    """Return the versions that a batch changes."""
    work = _Reduction(keyed, base_versions.combine_chunks(), plan)
    for era in range(work.eras):
        work.reduce_era(era)
    return work.reduced()


class _Reduction:
    def __init__(self, keyed: KeyedRows, base_versions: pa.Table, plan: ReducePlan) -> None:
        self.keyed, self.base_versions, self.plan = keyed, base_versions, plan
        self.rows = keyed.rows
        self.types = self.rows["type"].to_numpy()
        self.results: dict[str, list[pa.Array]] = {"tuple": [], "global_id": [], "lsn": []}
        self.faults: dict[int, list[dict[str, Any]]] = {}
        self.key_errors: list[pa.Table] = []
        self.changes_base = np.array([one.changes_keys_without_rows for one in plan.lineages], np.bool_)
        self.changes_base |= ranged_lineages(keyed, plan)
        active = [len(one.eras) for one, is_in in zip(plan.lineages, plan.is_active, strict=True) if is_in]
        self.eras = max(active, default=1)
        self.versions = self._versions_before()

    def _versions_before(self) -> _Versions:
        """Return the base versions of all keys that have rows, or that the batch may change without a row."""
        groups, plan = self.keyed.groups, self.plan
        count = len(groups)
        base_slots = self._base_version_slots()
        numbers = groups.find(base_slots, as_array(self.base_versions["key"]))
        numbers[base_slots < 0] = NO_ROW
        is_extra = (numbers < 0) & (base_slots >= 0)
        is_extra[is_extra] = self.changes_base[plan.slot_lineages[base_slots[is_extra]]]
        extra = np.flatnonzero(is_extra)
        numbers[extra] = count + np.arange(len(extra), dtype=np.int32)
        size = count + len(extra)
        keys = as_array(self.rows["key"]).take(pa.array(groups.first_rows))
        if len(extra):
            keys = pa.concat_arrays([keys, as_array(self.base_versions["key"]).take(pa.array(extra))])
        versions = _Versions(
            slots=np.concatenate([self.keyed.slots[groups.first_rows], base_slots[extra]]),
            keys=keys,
            states=np.zeros(size, np.int8),
            times=np.full(size, NO_TIME, np.int64),
            created=np.full(size, NO_TIME, np.int64),
            tuple_indices=np.full(size, NO_ROW, np.int64),
            origin_indices=np.full(size, NO_ROW, np.int64),
            base_indices=np.full(size, NO_ROW, np.int64),
            base_states=np.zeros(size, np.int8),
            is_changed=np.zeros(size, np.bool_),
        )
        known = np.flatnonzero(numbers >= 0)
        self._start_from_bases(versions, numbers[known], known)
        return versions

    def _base_version_slots(self) -> Int32s:
        """Return for each base version the first slot of the lineage that it belongs to.

        It is -1 if the batch cannot change the lineage (`ReducePlan.is_active`), or if a policy made the tuple.
        """
        plan, base_versions = self.plan, self.base_versions
        starts = {
            (int(plan.base_tables[number]), one.replicaset_id): int(plan.first_slots[number])
            for number, one in enumerate(plan.lineages)
            if plan.is_active[number] and plan.base_tables[number] >= 0
        }
        pairs = (base_versions["table"].to_numpy().astype(np.int64) << 32) | (
            base_versions["replicaset_id"].to_numpy().astype(np.int64) & 0xFFFFFFFF
        )
        distinct, indices = np.unique(pairs, return_inverse=True)
        slots = [starts.get((int(pair) >> 32, _signed_lower_half(int(pair))), NO_ROW) for pair in distinct]
        found = np.array([*slots, NO_ROW], np.int32)[indices]
        found[base_versions["state"].to_numpy() == MERGED] = NO_ROW
        return found

    def _start_from_bases(self, versions: _Versions, keys: Int32s, bases: NDArray[np.intp]) -> None:
        """Start the keys with the numbers `keys` from the base versions with the indices `bases`."""
        base_versions = self.base_versions
        states = base_versions["state"].to_numpy()[bases]
        versions.states[keys] = versions.base_states[keys] = states
        versions.times[keys] = times_of(base_versions["timestamp"])[bases]
        versions.created[keys] = times_of(base_versions["created"])[bases]
        versions.base_indices[keys] = bases
        versions.tuple_indices[keys] = versions.origin_indices[keys] = self.rows.num_rows + bases

    def reduce_era(self, era: int) -> None:
        """Reduce the rows of one era of each lineage, and copy the versions that remain to the next era."""
        plan, versions = self.plan, self.versions
        slots, lineages = versions.slots, plan.slot_lineages
        own, groups = np.ones(len(slots), np.bool_), self.keyed.groups.group_numbers
        if self.eras > 1:
            eras = np.arange(len(lineages)) - plan.first_slots[lineages]
            own = eras[slots] == era
            groups = np.where(eras[self.keyed.slots] == era, groups, np.int32(NO_ROW))
        truncations = np.where(own, plan.slot_truncations[slots], 0).astype(np.int32)
        renewed = np.array([one.is_renewed for one in plan.lineages], np.bool_)
        is_renewed = own & (era == 0) & renewed[lineages[slots]]
        operated = np.unique(groups[(ACTIONS[self.types] == OPERATION) & (groups >= 0)])
        pairs = self._row_key_pairs(groups, own)
        if is_renewed.any():
            pairs = self._without_overwritten(pairs, is_renewed, operated)
        if len(operated):
            self._fold_operated_keys(pairs, operated, truncations, is_renewed)
            pairs = pairs.without_keys(operated, len(slots))
            truncations[operated], is_renewed[operated] = 0, False
        self._reduce_plain_keys(pairs, truncations, is_renewed)
        if era + 1 < self.eras:
            self._copy_to_next_era(own)

    def _row_key_pairs(self, row_keys: Int32s, is_of_era: Flags) -> RowKeyPairs:
        """Return the rows of an era, each with the key that it changes; a DELETE_RANGE with each that it may change."""
        ranges, versions = self.keyed.ranges, self.versions
        if ranges is None or not ranges.all_slots & set(np.unique(versions.slots[is_of_era]).tolist()):
            return RowKeyPairs(None, row_keys)
        lives = is_of_era & ((versions.states == PRESENT) | (versions.states == UNFIT))
        # A deleted version without a row in the batch may have a key of an earlier primary key.
        may_be_hit = lives | (is_of_era & (np.arange(len(is_of_era)) < len(self.keyed.groups)))
        hit_rows, hit_keys = ranges.hit_pairs(
            np.where(may_be_hit, versions.slots, np.int32(NO_ROW)), versions.keys, row_keys, lives
        )
        rows = np.concatenate([np.flatnonzero(row_keys >= 0), hit_rows])
        keys = np.concatenate([row_keys[row_keys >= 0], hit_keys]).astype(np.int32)
        order = np.argsort(rows, kind="stable")
        return RowKeyPairs(rows[order], keys[order])

    def _without_overwritten(self, pairs: RowKeyPairs, is_renewed: Flags, operated: Int32s) -> RowKeyPairs:
        """Skip the rows of a generation's snapshot that a later row of the same snapshot overwrites.

        Only a vinyl space has several rows of one key in a snapshot. Only the last one may be compared with the
        version before.
        """
        is_folded = np.zeros(len(is_renewed), np.bool_)
        is_folded[operated] = True
        keys = pairs.keys
        known = np.maximum(keys, 0)
        is_snapshot = pairs.row_values(as_array(self.rows["is_snapshot"]).to_numpy(zero_copy_only=False))
        indices = np.flatnonzero(is_snapshot & (keys >= 0) & is_renewed[known] & ~is_folded[known])
        if not len(indices):
            return pairs
        lasts = np.full(len(is_renewed), NO_ROW, np.int64)
        np.maximum.at(lasts, keys[indices], indices)
        left = keys.copy()
        left[indices[lasts[keys[indices]] != indices]] = NO_ROW
        return replace(pairs, keys=left)

    def _reduce_plain_keys(self, pairs: RowKeyPairs, truncations: Int32s, is_renewed: Flags) -> None:
        versions, rows, size = self.versions, self.rows, len(self.versions.slots)
        sources, events = np.empty(size, np.int32), np.empty(size, np.int32)
        before = versions.states.copy()
        is_snapshot = as_array(rows["is_snapshot"]).cast(pa.uint8()).to_numpy(zero_copy_only=False)
        reduce_rows(
            pairs.keys,
            *(pairs.row_values(ACTIONS[self.types]), pairs.row_values(times_of(rows["timestamp"]))),
            pairs.row_values(self.plan.meanings.truncations[rows["meaning"].to_numpy()]),
            *(pairs.row_values(is_snapshot), self._repeats_tuple(pairs, is_renewed)),
            *(truncations, is_renewed.astype(np.uint8), versions.states, versions.times, versions.created),
            *(sources, events, np.zeros(size, np.int32)),
        )
        changed = (events >= 0) | (versions.states != before)
        versions.is_changed |= changed
        has_source, has_event = sources >= 0, events >= 0
        versions.tuple_indices[has_source] = pairs.rows_at(sources[has_source])
        versions.origin_indices[has_event] = pairs.rows_at(events[has_event])
        gone = changed & (versions.states != PRESENT)
        versions.tuple_indices[gone] = NO_ROW
        versions.origin_indices[gone & (versions.states == NONE)] = NO_ROW

    def _repeats_tuple(self, pairs: RowKeyPairs, is_renewed: Flags) -> NDArray[np.uint8]:
        """Return for each pair whether its row has the tuple that its key has before the batch."""
        keys = pairs.keys
        result = np.zeros(len(keys), np.uint8)
        if not is_renewed.any():
            return result
        indices = np.flatnonzero((keys >= 0) & (self.versions.tuple_indices[np.maximum(keys, 0)] >= 0))
        one = as_array(self.rows["tuple"]).take(pa.array(pairs.rows_at(indices)))
        other = self._values_at("tuple", self.versions.tuple_indices[keys[indices]])
        same = pc.fill_null(pc.equal(one, other), False)
        result[indices] = same.cast(pa.uint8()).to_numpy(zero_copy_only=False)
        return result

    def _fold_operated_keys(
        self, pairs: RowKeyPairs, operated_keys: Int32s, truncations: Int32s, is_renewed: Flags
    ) -> None:
        versions = self.versions
        is_operated = np.zeros(len(versions.slots) + 1, np.bool_)
        is_operated[operated_keys] = True
        indices = np.flatnonzero(is_operated[pairs.keys])
        indices = indices[np.argsort(pairs.keys[indices], kind="stable")]
        keys = pairs.keys[indices]
        own = self.rows.take(pa.array(pairs.rows_at(indices))).combine_chunks()
        is_left = self._apply_quick_updates(own, keys, (truncations == 0) & ~is_renewed)
        if not is_left.all():
            own, keys = own.filter(pa.array(is_left)).combine_chunks(), keys[is_left]
        if not len(keys):
            return
        left = np.unique(keys)
        ends = {int(key): (int(truncations[key]), bool(is_renewed[key])) for key in left}
        before = self.plan.meanings.truncations[own["meaning"].to_numpy()]
        found = fold_keys(own, keys, before, self._base_versions(left), ends, self.plan)
        offset = self._add_results(
            pa.array([one.tuple for one in found.values()], pa.binary()),
            pa.array([one.global_id or None for one in found.values()], pa.int64()),
            pa.array([one.lsn or None for one in found.values()], pa.int64()),
        )
        for index, (key, one) in enumerate(found.items(), start=offset):
            versions.states[key] = one.state
            versions.times[key] = NO_TIME if one.timestamp is None else one.timestamp
            versions.created[key] = NO_TIME if one.created is None else one.created
            versions.tuple_indices[key] = versions.origin_indices[key] = index
            versions.is_changed[key] |= one.is_changed
            if one.faults:
                self.faults.setdefault(key, []).extend(one.faults)

    def _apply_quick_updates(self, rows: pa.Table, keys: Int32s, is_plain: Flags) -> Flags:
        """Apply the rows of keys to which `quick_tuples` can; return which rows are left.

        Args:
            rows, keys: Rows with their keys; those of a key together, in log order.
            is_plain: Whether neither a truncation nor a generation changes a key (bool[versions]).
        """
        versions = self.versions
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        ends, distinct = np.append(begins[1:], len(keys)).astype(np.int64), keys[begins]
        is_plain = is_plain[distinct] & (versions.states[distinct] == PRESENT)
        if not is_plain.any():
            return np.ones(len(keys), np.bool_)
        before = self._values_at("tuple", np.where(is_plain, versions.tuple_indices[distinct], NO_ROW))
        tuples = quick_tuples(rows, ends, before, is_plain & before.is_valid().to_numpy(False), self.plan)
        is_done = tuples.is_valid().to_numpy(zero_copy_only=False)
        done, lasts = distinct[is_done], pa.array(ends[is_done] - 1)
        offset = self._add_results(
            tuples.drop_null(),
            *(as_array(rows[name]).take(lasts).cast(pa.int64()) for name in ("global_id", "lsn")),
        )
        versions.tuple_indices[done] = versions.origin_indices[done] = offset + np.arange(len(done))
        latest = np.maximum.reduceat(times_of(rows["timestamp"]), begins)
        versions.times[done] = np.maximum(versions.times[done], latest[is_done])
        versions.is_changed[done] = True
        return np.repeat(~is_done, np.diff(np.append(begins, len(keys))))

    def _add_results(self, tuples: pa.Array, global_ids: pa.Array, lsns: pa.Array) -> int:
        """Add the results of operations; return the index of the first one, as of `_Versions.tuple_indices`."""
        first: int = self.rows.num_rows + self.base_versions.num_rows + sum(map(len, self.results["tuple"]))
        for name, column in (("tuple", tuples), ("global_id", global_ids), ("lsn", lsns)):
            self.results[name].append(column)
        return first

    def _base_versions(self, keys: Int32s) -> dict[int, BaseVersion]:
        """Return the versions that some keys have before an era, by key; a key without a version is left out."""
        versions = self.versions
        known = keys[versions.states[keys] != NONE]
        tuples = self._values_at("tuple", versions.tuple_indices[known]).to_pylist()
        origins = versions.origin_indices[known]
        ids, lsns = (self._values_at(name, origins).to_pylist() for name in ("global_id", "lsn"))
        times, created = (
            time_column(column[known]).cast(pa.int64()).to_pylist()
            for column in (versions.times, versions.created)
        )
        states = versions.states[known].tolist()
        rows = zip(known.tolist(), states, tuples, ids, lsns, times, created, strict=True)
        return {key: BaseVersion(*version) for key, *version in rows}

    def _values_at(self, column: str, indices: Int64s) -> pa.Array:
        """Return the column `tuple`, `global_id` or `lsn` at indices as of `_Versions`; null for -1."""
        return _take(
            [as_array(self.rows[column]), as_array(self.base_versions[column]), *self.results[column]],
            indices,
        )

    def _copy_to_next_era(self, is_of_era: Flags) -> None:
        """Copy the versions that are present or unfit to the next era, under their keys there."""
        plan, versions = self.plan, self.versions
        lasts = (plan.first_slots[1:] - 1)[plan.slot_lineages]
        lives = (versions.states == PRESENT) | (versions.states == UNFIT)
        moved = np.flatnonzero(is_of_era & lives & (versions.slots < lasts[versions.slots]))
        if not len(moved):
            return
        slots = versions.slots[moved] + 1
        definitions = np.array([era.version for one in plan.lineages for era in one.eras], np.int32)
        tuples = self._values_at("tuple", versions.tuple_indices[moved])
        found = canonical_keys_with_plan(tuples, plan.meanings.key_plan, pa.array(definitions[slots]))
        keys, errors = found.field("key"), found.field("error")
        if keys.null_count:
            self._add_key_errors(moved, keys, errors)
            known = pc.is_valid(keys).to_numpy(zero_copy_only=False)
            moved, slots, keys = moved[known], slots[known], keys.filter(pa.array(known))
        numbers = self.keyed.groups.find(slots, keys)
        fresh = np.flatnonzero(numbers < 0)
        numbers[fresh] = len(versions.slots) + np.arange(len(fresh), dtype=np.int32)
        self._add_versions(slots[fresh], keys.take(pa.array(fresh)))
        versions = self.versions
        indices = (versions.tuple_indices, versions.origin_indices)
        for column in (versions.states, versions.times, versions.created, *indices):
            column[numbers] = column[moved]
        versions.is_changed[numbers] = True

    def _add_versions(self, slots: Int32s, keys: pa.Array) -> None:
        old, count = self.versions, len(slots)
        nowhere = np.full(count, NO_ROW, np.int64)
        times = np.full(count, NO_TIME, np.int64)
        states, unchanged = np.zeros(count, np.int8), np.zeros(count, np.bool_)
        self.versions = _Versions(
            np.concatenate([old.slots, slots]),
            pa.concat_arrays([old.keys, keys]),
            np.concatenate([old.states, states]),
            np.concatenate([old.times, times]),
            np.concatenate([old.created, times]),
            np.concatenate([old.tuple_indices, nowhere]),
            np.concatenate([old.origin_indices, nowhere]),
            np.concatenate([old.base_indices, nowhere]),
            np.concatenate([old.base_states, states]),
            np.concatenate([old.is_changed, unchanged]),
        )

    def _add_key_errors(self, version_indices: NDArray[np.intp], keys: pa.Array, errors: pa.Array) -> None:
        """Add the versions without a key in the next era to `key_errors`."""
        bad = pc.is_null(keys).to_numpy(zero_copy_only=False)
        origins = self.versions.origin_indices[version_indices[bad]]
        unknown = "its tuple is not known, so its key under the new primary key is not known either"
        columns = [
            pa.array(self.plan.slot_lineages[self.versions.slots[version_indices[bad]]]),
            self._values_at("global_id", origins),
            self._values_at("lsn", origins),
            errors.filter(pa.array(bad)).fill_null(unknown),
            pa.array(np.ones(len(origins), np.int64)),
        ]
        self.key_errors.append(pa.Table.from_arrays(columns, schema=KEY_ERRORS))

    def reduced(self) -> Reduced:
        """Return the changed versions of all tables."""
        plan, versions = self.plan, self.versions
        lineages = plan.slot_lineages[versions.slots]
        is_last = versions.slots == (plan.first_slots[1:] - 1)[lineages]
        leaves = np.array([one.leaves_base_table for one in plan.lineages], np.bool_)[lineages]
        stays = is_last & ~leaves
        found = [self._changes(np.flatnonzero(stays & versions.is_changed), lineages)]
        left = np.flatnonzero((versions.base_indices >= 0) & ~stays)
        if len(left):
            found.append(self._removals(left, lineages))
        arrived = np.flatnonzero(is_last & leaves & (versions.states != NONE))
        if len(arrived):
            found.append(self._changes(arrived, lineages, with_base=False))
        changes = pa.concat_tables(found)
        if changes.num_rows and (len(left) or self._has_shared_table()):
            changes = self._one_per_key(changes)
        changes = changes.drop_columns(["rank"])
        key_errors = pa.concat_tables(self.key_errors) if self.key_errors else KEY_ERRORS.empty_table()
        return Reduced(changes, key_errors)

    def _has_shared_table(self) -> bool:
        plan = self.plan
        active = [number for number, is_in in enumerate(plan.is_active) if is_in]
        return len({(plan.lineages[i].replicaset_id, plan.lineages[i].table) for i in active}) < len(active)

    def _changes(self, indices: NDArray[np.intp], lineages: Int32s, *, with_base: bool = True) -> pa.Table:
        """Return versions as rows of `CHANGES`, for the tables that have their lineages after the batch."""
        plan, versions = self.plan, self.versions
        own, origins = lineages[indices], versions.origin_indices[indices]
        bases = versions.base_indices[indices] if with_base else np.full(len(indices), NO_ROW, np.int64)
        faults = pa.nulls(len(indices), pa.list_(FAULT))
        if self.faults:
            faults = pa.array([self.faults.get(int(index)) for index in indices], pa.list_(FAULT))
        columns = [
            pa.array(plan.final_tables[own]),
            pa.array(plan.lineage_replicasets[own]),
            _take([versions.keys], indices),
            pa.array(versions.states[indices]),
            self._values_at("tuple", versions.tuple_indices[indices]),
            self._values_at("global_id", origins),
            self._values_at("lsn", origins),
            time_column(versions.times[indices]),
            time_column(versions.created[indices]),
            faults,
            pa.array(bases),
            pa.array(plan.lineage_ranks[own]),
        ]
        return pa.Table.from_arrays(columns, schema=_RANKED_CHANGES)

    def _removals(self, indices: NDArray[np.intp], lineages: Int32s) -> pa.Table:
        """Return rows of `CHANGES` that remove base versions."""
        plan, versions = self.plan, self.versions
        own, count = lineages[indices], len(indices)
        nothing = {
            name: pa.nulls(count, _RANKED_CHANGES.field(name).type)
            for name in ("tuple", "global_id", "lsn", "timestamp", "created", "faults")
        }
        columns = {
            **nothing,
            "table": pa.array(plan.base_tables[own]),
            "replicaset_id": pa.array(plan.lineage_replicasets[own]),
            "key": _take([versions.keys], indices),
            "state": pa.array(np.full(count, NONE, np.int8)),
            "base": pa.array(versions.base_indices[indices]),
            "rank": pa.array(np.full(count, -1, np.int32)),
        }
        return pa.Table.from_arrays([columns[name] for name in _RANKED_CHANGES.names], schema=_RANKED_CHANGES)

    def _one_per_key(self, changes: pa.Table) -> pa.Table:
        """Keep one change per (table, replicaset, key): of those with a version, if any, the one of highest rank."""
        whole = changes.combine_chunks()
        tables = whole["table"].to_numpy().astype(np.int64)
        pairs = (tables << 32) | (whole["replicaset_id"].to_numpy().astype(np.int64) & 0xFFFFFFFF)
        _, partitions = np.unique(pairs, return_inverse=True)
        groups = group(partitions.astype(np.int32), as_array(whole["key"]))
        has_version = whole["state"].to_numpy() != NONE
        order = np.lexsort((whole["rank"].to_numpy(), has_version, groups.group_numbers))
        last = np.append(groups.group_numbers[order][1:] != groups.group_numbers[order][:-1], True)
        chosen = order[last]
        bases = np.full(len(groups), NO_ROW, np.int64)
        own = whole["base"].to_numpy()
        np.maximum.at(bases, groups.group_numbers, own)
        result = whole.take(pa.array(chosen))
        index = result.schema.get_field_index("base")
        return result.set_column(index, "base", pa.array(bases[groups.group_numbers[chosen]]))


_RANKED_CHANGES = CHANGES.append(pa.field("rank", pa.int32()))
"""Changes with the rank of their lineage (`ReducePlan.lineage_ranks`)."""


def _take(arrays: list[pa.Array], indices: NDArray[np.int64]) -> pa.Array:
    """Return the values at indices in the concatenation of arrays; null for a negative index."""
    first = len(arrays[0])
    if not len(indices):
        return arrays[0].slice(0, 0)
    if indices.min() >= 0 and indices.max() < first:
        if len(indices) == first and (indices == np.arange(first)).all():
            return arrays[0]
        return arrays[0].take(pa.array(indices))
    whole = pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]
    return whole.take(pa.array(indices, mask=indices < 0))


def _signed_lower_half(pair: int) -> int:
    low = pair & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low

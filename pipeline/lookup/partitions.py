"""Divides the keys of a batch into partitions, by a sample of its rows.

A partition is the work of one task: ranges of keys of some tables. All versions of a key are in one partition, so
partitions are independent. Keys that are close together in a table's files are in one partition, so few tasks read and
write each file. Small tables share a partition, and a large table is divided. Pure.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.lookup.reduce_plan import ReducePlan
from udfs.buffers import flatten
from udfs.kernels.values import OVERREAD_BYTES
from udfs.keys.kernels.range_search import find_ranges

Int32s = NDArray[np.int32]
UNDIVIDED_SHARE = 0.25
"""Tables with less than this fraction of a partition's weight are not divided."""


@dataclass(frozen=True)
class KeyRanges:
    """The ranges of keys that form each partition. Picklable."""

    partition_count: int
    table_groups: Int32s
    """The group number of each table: the tables of a group are divided at the same keys (int32[tables])."""
    first_partitions: Int32s
    """The number of each group's first partition, which has the lowest keys (int32[groups])."""
    bound_starts: Int32s
    """The index in `bounds` of each group's first bound (int32[groups + 1])."""
    bounds: pa.Array
    """The lowest key of each partition, except the first partition of each group; by group, in key order."""

    def find_partitions(self, tables: Int32s, keys: pa.Array) -> Int32s:
        """Return the partition number of each row, from the row's table number and key."""
        flat, bounds = flatten(keys, OVERREAD_BYTES), flatten(self.bounds, OVERREAD_BYTES)
        numbers = np.empty(len(keys), np.int32)
        find_ranges(
            *(self.table_groups[tables], flat.data, flat.offsets, flat.nulls),
            *(self.first_partitions, self.bound_starts, bounds.data, bounds.offsets, numbers),
        )
        return numbers

    def table_partitions(self, table: int) -> range:
        """Return the numbers of the partitions that have keys of a table."""
        group = self.table_groups[table]
        first = int(self.first_partitions[group])
        return range(first, first + 1 + int(self.bound_starts[group + 1] - self.bound_starts[group]))


@dataclass(frozen=True)
class PartitionKeys:
    """The keys of one partition, given by its number."""

    key_ranges: KeyRanges
    partition: int

    def has(self, table: int) -> bool:
        """Return whether the partition has keys of a table."""
        return self.partition in self.key_ranges.table_partitions(table)

    def owns(self, table: int, keys: pa.Array) -> NDArray[np.bool_]:
        """Return for each key of a table whether it belongs to the partition."""
        found: NDArray[np.bool_] = (
            self.key_ranges.find_partitions(np.full(len(keys), table, np.int32), keys) == self.partition
        )
        return found


def group_tables(plan: ReducePlan) -> tuple[Int32s, frozenset[int]]:
    """Group the tables that must be divided at the same keys.

    A rename moves versions between tables under the same keys, so both tables are in one group. If the primary key
    changes, the new keys are known only after the versions are read, so the group cannot be divided.
    """
    groups = np.arange(len(plan.tables), dtype=np.int32)
    undivided: set[int] = set()
    for number, lineage in enumerate(plan.lineages):
        base, final = int(plan.base_tables[number]), int(plan.final_tables[number])
        if not plan.is_active[number]:
            continue
        if base >= 0 and final >= 0:
            groups[groups == groups[final]] = groups[base]
        if len(lineage.eras) > 1:
            undivided |= {table for table in (base, final) if table >= 0}
    found = np.unique(groups, return_inverse=True)[1].astype(np.int32)
    return found, frozenset(int(found[table]) for table in undivided)


def key_ranges(
    plan: ReducePlan, max_partitions: int, tables: Int32s, keys: pa.Array, weights: NDArray[np.float64]
) -> KeyRanges:
    """Divide keys so that each partition gets about the same weight.

    Args:
        weights: The number of bytes that each sampled row represents (float64[sample]).
    """
    groups, undivided = group_tables(plan)
    count = int(groups.max(initial=-1)) + 1
    own = groups[tables]
    target = max(float(weights.sum()), 1e-9) / max_partitions
    first_partitions, bound_starts, bounds = (
        np.zeros(count, np.int32),
        np.zeros(count + 1, np.int32),
        list[bytes](),
    )
    partition, filled_weight = 0, 0.0
    for group in range(count):
        rows = np.flatnonzero(own == group)
        weight = float(weights[rows].sum())
        first_partitions[group] = partition
        if group in undivided or weight < target * UNDIVIDED_SHARE:
            filled_weight += weight
        else:
            remaining = max_partitions - 1 - partition
            sampled = keys.take(pa.array(rows))
            found, filled_weight = _split_keys(sampled, weights[rows], filled_weight, target, remaining)
            bounds += found
            partition += len(found)
        bound_starts[group + 1] = len(bounds)
        if filled_weight >= target and partition + 1 < max_partitions:
            partition, filled_weight = partition + 1, 0.0
    used = 1 + int((first_partitions + np.diff(bound_starts)).max(initial=0))
    return KeyRanges(used, groups, first_partitions, bound_starts, pa.array(bounds, pa.binary()))


def _split_keys(
    keys: pa.Array, weights: NDArray[np.float64], filled_weight: float, target_weight: float, max_bounds: int
) -> tuple[list[bytes], float]:
    """Return the bounds that divide keys into parts of about the target weight, and the weight of the last part."""
    values = keys.to_pylist()
    order = sorted(range(len(values)), key=values.__getitem__)
    cuts: list[bytes] = []
    for index in order:
        is_new = not cuts or values[index] > cuts[-1]
        if (
            filled_weight >= target_weight
            and len(cuts) < max_bounds
            and is_new
            and values[index] > values[order[0]]
        ):
            cuts.append(values[index])
            filled_weight = 0.0
        filled_weight += float(weights[index])
    return cuts, filled_weight

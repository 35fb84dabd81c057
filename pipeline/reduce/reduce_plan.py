"""What a task needs to know of a batch to reduce its rows: lineages, tables, formats. Picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.changelog.segment_plan import Meanings, meanings_of
from pipeline.plan.history import NO_TABLE, Lineage, SchemaVersion
from pipeline.plan.plan import BatchPlan
from pipeline.plan.position import BEGINNING
from pipeline.plan.tables import active_lineages, change_types
from udfs.operations.tuple_format import TupleFormat, format_of
from udfs.operations.update_rules import rules_of_release

Int32s = NDArray[np.int32]
ALIVE = 2**30
"""The rank of a lineage that has not ended."""


@dataclass(frozen=True)
class ReducePlan:
    """A batch as the reduction needs it.

    Parameters
    ----------
    tables : tuple of str
        Names, by the number of a table.
    is_empty, is_contended : tuple of bool
        By table, as in `pipeline.plan.tables.TablePlan`.
    lineages : tuple of Lineage
    is_active : tuple of bool
        By lineage: whether the batch may change versions of it.
    versions : tuple of SchemaVersion
    has_loss : frozenset of int
        Replicasets of whose logs an INSERT does not prove that its key is new.
    meanings : Meanings
    tuple_limit : int
        Bytes that a tuple may have which operations make longer.

    """

    tables: tuple[str, ...]
    is_empty: tuple[bool, ...]
    is_contended: tuple[bool, ...]
    lineages: tuple[Lineage, ...]
    is_active: tuple[bool, ...]
    versions: tuple[SchemaVersion, ...]
    has_loss: frozenset[int]
    meanings: Meanings
    tuple_limit: int

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Number of each table."""
        return {name: number for number, name in enumerate(self.tables)}

    @cached_property
    def replicasets(self) -> Int32s:
        """Replicaset id of each lineage."""
        return np.array([one.replicaset_id for one in self.lineages], np.int32)

    @cached_property
    def base_tables(self) -> Int32s:
        """Number of the table where each lineage's versions are before the batch, -1 where there is none."""
        return self._numbered(one.base_table for one in self.lineages)

    @cached_property
    def final_tables(self) -> Int32s:
        """Number of the table where each lineage's versions are at the end, or were when it ended."""
        return self._numbered(one.table for one in self.lineages)

    def _numbered(self, names: object) -> Int32s:
        numbers = self.numbers
        return np.array([numbers.get(name, NO_TABLE) for name in names], np.int32)  # type: ignore[attr-defined]

    @cached_property
    def ranks(self) -> Int32s:
        """Rank of each lineage among those of one table and replicaset: the later one holds."""
        ends = [BEGINNING if one.ended is None else one.ended for one in self.lineages]
        places = {end: rank for rank, end in enumerate(sorted(set(ends)))}
        found = [
            ALIVE if one.ended is None else places[end] for one, end in zip(self.lineages, ends, strict=True)
        ]
        return np.array(found, np.int32)

    @cached_property
    def slot_starts(self) -> Int32s:
        """Number of the first slot of each lineage: a slot is one era of one lineage."""
        counts = [len(one.eras) for one in self.lineages]
        return np.cumsum([0, *counts]).astype(np.int32)

    @cached_property
    def slot_lineages(self) -> Int32s:
        """Lineage of each slot."""
        counts = [len(one.eras) for one in self.lineages]
        return np.repeat(np.arange(len(self.lineages), dtype=np.int32), counts)

    @cached_property
    def slot_truncations(self) -> Int32s:
        """How many events within each slot end all versions."""
        found = [one.truncations_in(era) for one in self.lineages for era in range(len(one.eras))]
        return np.array(found, np.int32)

    @cached_property
    def meaning_slots(self) -> Int32s:
        """Slot of each meaning; that of a meaning without a lineage means nothing."""
        lineages = np.maximum(self.meanings.lineages, 0)
        if not len(self.lineages):
            return np.zeros(len(lineages), np.int32)
        return (self.slot_starts[lineages] + self.meanings.eras).astype(np.int32)

    def tables_of(self, meanings: Int32s) -> Int32s:
        """Return the number of each row's table, by its meaning: where its lineage is at the end, or was before."""
        known = np.where(self.final_tables >= 0, self.final_tables, self.base_tables)
        found: Int32s = known[self.meanings.lineages[meanings]].astype(np.int32)
        return found

    def format(self, version: int, release: int) -> TupleFormat:
        """Return the format of a schema version, with the rules of a release (`udfs.operations.update_rules`)."""
        return format_of(self.versions[version].space, rules_of_release(release))


def reduce_plan(plan: BatchPlan) -> ReducePlan:
    """Return a batch as the reduction needs it."""
    tables = tuple(plan.tables)
    ids = {uuid: one.id for uuid, one in plan.after.replicasets.items()}
    counts = change_types({ids[uuid]: summary for uuid, summary in plan.summaries.items()})
    refused = plan.refused_tables
    return ReducePlan(
        tables=tables,
        is_empty=tuple(plan.tables[name].is_empty for name in tables),
        is_contended=tuple(plan.tables[name].is_contended for name in tables),
        lineages=plan.history.lineages,
        is_active=tuple(
            is_active and one.table not in refused and one.base_table not in refused
            for one, is_active in zip(
                plan.history.lineages, active_lineages(plan.history, counts), strict=True
            )
        ),
        versions=plan.history.versions,
        has_loss=frozenset(one.id for one in plan.after.replicasets.values() if one.has_loss),
        meanings=meanings_of(plan.history, refused),
        tuple_limit=plan.tuple_limit,
    )

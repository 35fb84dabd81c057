"""What a task needs to know of a batch to reduce its rows: lineages, tables, formats. Picklable."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.changelog.segment_plan import Meanings, build_meanings
from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.rows.position import BEGINNING
from pipeline.plan.spaces.meanings import NO_TABLE, Lineage, SchemaVersion
from pipeline.plan.spaces.tables import change_types, lineages_with_changes
from udfs.operations.tuple_format import TupleFormat, format_of
from udfs.operations.update_rules import rules_of_release

Int32s = NDArray[np.int32]
UNENDED_RANK = 2**30
"""The rank of a lineage without an end."""


@dataclass(frozen=True)
class ReducePlan:
    """A batch as the reduction needs it."""

    tables: tuple[str, ...]
    """The tables' names. A table's number is its index here."""
    is_empty: tuple[bool, ...]
    is_contended: tuple[bool, ...]
    """By table number, as in `pipeline.plan.spaces.tables.TablePlan`."""
    lineages: tuple[Lineage, ...]
    """A lineage's number is its index here."""
    is_active: tuple[bool, ...]
    """By lineage number: whether the batch may change the lineage's versions."""
    schema_versions: tuple[SchemaVersion, ...]
    lossy_replicasets: frozenset[int]
    """Ids of replicasets that lost rows of their logs: there an INSERT does not prove that its key is new."""
    meanings: Meanings
    tuple_limit_bytes: int
    """The maximum size in bytes of the result of an UPDATE or UPSERT; a larger one is a fault."""

    @cached_property
    def table_numbers(self) -> Mapping[str, int]:
        """Number of each table, by name."""
        return {name: number for number, name in enumerate(self.tables)}

    @cached_property
    def lineage_replicasets(self) -> Int32s:
        """Replicaset id of each lineage."""
        return np.array([one.replicaset_id for one in self.lineages], np.int32)

    @cached_property
    def base_tables(self) -> Int32s:
        """Number of the table that has each lineage's versions before the batch, -1 if none has."""
        return self._numbers_of_tables(one.base_table for one in self.lineages)

    @cached_property
    def final_tables(self) -> Int32s:
        """Number of the table that has each lineage's versions after the batch, or had them when the lineage ended."""
        return self._numbers_of_tables(one.table for one in self.lineages)

    def _numbers_of_tables(self, names: Iterable[str | None]) -> Int32s:
        numbers = self.table_numbers
        return np.array([NO_TABLE if n is None else numbers.get(n, NO_TABLE) for n in names], np.int32)

    @cached_property
    def lineage_ranks(self) -> Int32s:
        """Rank of each lineage: lineages that end later in the log have higher ranks, those without an end the highest.

        If several lineages of one table have a version of the same key, the version of the highest rank wins.
        """
        ends = [BEGINNING if one.ended is None else one.ended for one in self.lineages]
        rank_of = {end: rank for rank, end in enumerate(sorted(set(ends)))}
        found = [
            UNENDED_RANK if one.ended is None else rank_of[end]
            for one, end in zip(self.lineages, ends, strict=True)
        ]
        return np.array(found, np.int32)

    @cached_property
    def first_slots(self) -> Int32s:
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
        """Number of truncations within each slot."""
        found = [one.truncations_in(era) for one in self.lineages for era in range(len(one.eras))]
        return np.array(found, np.int32)

    @cached_property
    def meaning_slots(self) -> Int32s:
        """Slot of each meaning, by the meaning's number; an arbitrary one for a meaning without a lineage."""
        lineages = np.maximum(self.meanings.lineages, 0)
        if not len(self.lineages):
            return np.zeros(len(lineages), np.int32)
        return (self.first_slots[lineages] + self.meanings.eras).astype(np.int32)

    def tables_of(self, meanings: Int32s) -> Int32s:
        """Return the number of each row's table, by its meaning: its lineage's final table, or else the base table."""
        known = np.where(self.final_tables >= 0, self.final_tables, self.base_tables)
        found: Int32s = known[self.meanings.lineages[meanings]].astype(np.int32)
        return found

    def tuple_format(self, version: int, release: int) -> TupleFormat:
        """Return the format of a schema version, with the rules of a release (`udfs.operations.update_rules`)."""
        return format_of(self.schema_versions[version].space, rules_of_release(release))


def reduce_plan(plan: BatchPlan) -> ReducePlan:
    """Return a batch as the reduction needs it."""
    tables = tuple(plan.tables)
    ids = {uuid: one.id for uuid, one in plan.after.replicasets.items()}
    types = change_types({ids[uuid]: summary for uuid, summary in plan.summaries.items()})
    refused = plan.refused_tables
    return ReducePlan(
        tables=tables,
        is_empty=tuple(plan.tables[name].is_empty for name in tables),
        is_contended=tuple(plan.tables[name].is_contended for name in tables),
        lineages=plan.history.lineages,
        is_active=tuple(
            is_active and one.table not in refused and one.base_table not in refused
            for one, is_active in zip(
                plan.history.lineages, lineages_with_changes(plan.history, types), strict=True
            )
        ),
        schema_versions=plan.history.versions,
        lossy_replicasets=frozenset(one.id for one in plan.after.replicasets.values() if one.has_loss),
        meanings=build_meanings(plan.history, refused),
        tuple_limit_bytes=plan.tuple_limit_bytes,
    )

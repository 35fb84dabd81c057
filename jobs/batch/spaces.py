"""The steps from a batch's committed rows to the tables of spaces, in order.

Only tables whose rows or columns change are looked at. Tables are written side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.batch import apply, tell
from jobs.batch.changes import decided_changes, folded_changes, simple_changes, union
from jobs.batch.choices import Choice, choice_of
from jobs.batch.identities import Identities, identities_of
from jobs.batch.layouts import Layout, Wipe
from jobs.batch.pin import SMALL_ROWS, Pinned, Pins, append, by_key
from jobs.batch.plan import Plan
from jobs.batch.prepare import prepare_tables
from jobs.batch.rows import (
    held_keys,
    keyed_rows,
    of_generation,
    unchanged,
    with_keys,
    with_keys_here,
    with_moves,
    with_wipes,
    without,
)
from jobs.batch.state import State, Writers
from jobs.batch.survey import Survey, survey, uuid_of
from config.deployment import Config
from tables.warehouse import Warehouse, in_parallel
from udfs.tuple_format import TupleFormat, format_of
from udfs.update_rules import LATEST, rules_of


@dataclass(frozen=True)
class Written:
    """What the steps wrote.

    Parameters
    ----------
    changed : tuple of str
        Tables of spaces with changed rows.
    tables : tuple of str
        All tables that got a commit, or exist since now.
    writers : mapping of str to Writers
        Of all tables, after the batch.
    refused : mapping of str to str
        Tables that cannot be written any more, with the reason.

    """

    changed: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    writers: Mapping[str, Writers] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """What the steps need to know of a batch.

    Parameters
    ----------
    state : State
        Before the batch.

    """

    warehouse: Warehouse
    config: Config
    state: State
    plan: Plan
    epoch: int


def write_spaces(batch: Batch, changelog: Pinned, pins: Pins, reached: Callable[[str], None]) -> Written:
    """Carry the batch's rows into the tables of spaces.

    Parameters
    ----------
    batch : Batch
    changelog : Pinned
        The batch's rows of `_changelog`, in the driver or as they are read back from there.
    pins : Pins
    reached : callable
        Told each step that is done.

    """
    found = survey(batch.config, batch.state, batch.plan)
    prepare_tables(batch.warehouse, list(found.targets.values()))
    reached("prepare")
    existing = tuple(name for target in found.targets.values() for name in target.tables)
    if not found.traits:
        return Written((), existing, batch.state.writers, found.refused)
    work = _Work(batch, found, pins)
    if work.wiped() > SMALL_ROWS:
        pins.is_small = False
    written = work.write(changelog, reached)
    return replace(written, tables=tuple(dict.fromkeys([*existing, *written.tables])), refused=found.refused)


class _Work:
    def __init__(self, batch: Batch, found: Survey, pins: Pins) -> None:
        self.warehouse, self.config, self.state = batch.warehouse, batch.config, batch.state
        self.plan, self.epoch, self.pins = batch.plan, batch.epoch, pins
        self.layouts, self.numbers = batch.plan.routes.layouts, found.numbers
        self.targets, self.traits, self.policies = found.targets, found.traits, found.policies
        self.survey = found

    def write(self, changelog: Pinned, reached: Callable[[str], None]) -> Written:
        pins = self.pins
        rows = self._held_rows(self._rows(changelog))
        formats = [self._format(layout) for layout in self.layouts]
        parts = simple_changes(rows.frame, self.traits)
        parts += folded_changes(self.warehouse, self.state, rows, self.traits, formats, pins)
        changes = pins.pin(union(parts))
        ids = self._identities()
        choices = self._choices(ids)
        found = decided_changes(self.warehouse, self.state, changes, self.traits, ids, choices, pins)
        found = apply.with_writes(found)
        # Where one replicaset writes alone, what is decided is only another look at what is pinned already.
        is_choice = pins.is_small or any(t.contended for t in self.traits)
        decided = pins.pin(found) if is_choice else Pinned(found)
        told = tell.told_of(decided.frame)
        reached("decided")
        targets = [self.targets[number] for number in told]
        sides = self._sides(decided.frame, told, choices)
        # Tables of spaces and what tells of them: none waits for another.
        work = [
            partial(self._write_table, target, decided, told[target.number].puts, reached)
            for target in targets
        ]
        work += [partial(self._write_side, name, frame, reached) for name, frame in sides.items()]
        results = in_parallel(lambda write: write(), work)
        unfit = {target.name for target, misfits in zip(targets, results, strict=False) if misfits}
        writers = dict(self.state.writers)
        for target in targets:
            before = writers.get(target.name, Writers())
            faulty = before.unfit or target.name in unfit or told[target.number].unfit > 0
            writers[target.name] = Writers(before.replicasets | told[target.number].replicasets, faulty)
        names = tuple(target.name for target in targets)
        held = tuple(name for target in targets for name in target.tables)
        return Written(names, (*held, *sides, *(("_quarantine", "_versions") if unfit else ())), writers)

    def _held_rows(self, rows: DataFrame) -> Pinned:
        if not self.pins.is_small:
            return Pinned(by_key(rows))
        # Operations are looked at from several sides: for their keys, to be folded, and what is beside them.
        return self.pins.pin(rows) if any(t.operations for t in self.traits) else Pinned(rows)

    def _rows(self, changelog: Pinned) -> DataFrame:
        snapshots = [s.segment for s in self.plan.stretches if s.is_snapshot]
        kept = [i for i, layout in enumerate(self.layouts) if self.survey.writes(self.plan, layout)]
        if changelog.rows is None:
            keyed = with_keys(changelog.frame.where(F.col("layout").isin(kept)), self.layouts)
        else:
            own = pc.is_in(changelog.rows["layout"], pa.array(kept, pa.int32()))
            keyed = with_keys_here(self.warehouse.spark, changelog.rows.filter(own), self.layouts)
        rows = keyed_rows(keyed, self.layouts, self.numbers, snapshots)
        wipes = self._wipes()
        if not wipes:
            return rows
        rows = self.pins.pin(rows).frame
        held = self._held()
        renewed = [(wipe, self.numbers[wipe.table]) for wipe in wipes if wipe.renewed]
        for wipe, number in renewed:
            come, keys = of_generation(rows, wipe, number).select("_key"), held[wipe]
            held[wipe] = None if keys is None else keys.join(come, "_key", "left_anti")
        same = unchanged(self.warehouse, self.state, rows, renewed)
        rows = rows if same is None else without(rows, same)
        rows = with_wipes(rows, [(w, self.numbers[w.table], self._origin(w)) for w in wipes], held)
        moves = [move for move in self.plan.routes.moves if move.ends in held]
        return with_moves(self.warehouse, self.state, rows, moves, held, self.layouts, self.numbers)

    def wiped(self) -> int:
        """Return how many keys from before the batch a TRUNCATE or a drop ends."""
        return sum(keys.count() for keys in self._held().values() if keys is not None)

    def _held(self) -> dict[Wipe, DataFrame | None]:
        return {w: held_keys(self.warehouse, self.state, w, self.numbers[w.table]) for w in self._wipes()}

    def _wipes(self) -> list[Wipe]:
        # What cannot go on elsewhere stays where it is.
        stopped = {move.ends for move in self.plan.routes.moves if self.survey.stops(self.plan, move)}
        wipes = (w for w in self.plan.routes.wipes if w not in stopped and self._settled(w))
        return [wipe for wipe in wipes if wipe.table not in self.survey.refused]

    def _settled(self, wipe: Wipe) -> bool:
        uuid = uuid_of(self.plan, wipe.replicaset_id)
        hold = self.plan.settlements[uuid].hold
        return hold is None or wipe.order < hold

    def _origin(self, wipe: Wipe) -> int | None:
        maps = self.plan.state.replicasets[uuid_of(self.plan, wipe.replicaset_id)].maps
        ids = [e.global_id for e in maps if e.local_id == wipe.replica_id and e.since_lsn <= (wipe.lsn or 0)]
        return ids[-1] if ids else None

    def _format(self, layout: Layout) -> TupleFormat:
        uuid = uuid_of(self.plan, layout.replicaset_id)
        server = self.plan.state.replicasets[uuid].server
        return format_of(layout.space, rules_of(server) if server else LATEST)

    def _choices(self, identities: Identities) -> dict[int, Choice]:
        return {
            number: choice_of(target, policy, self.config.priority(policy), identities)
            for number, target in self.targets.items()
            for policy in [self.policies[number]]
        }

    def _identities(self) -> Identities:
        replicasets = {one.id: uuid for uuid, one in self.plan.state.replicasets.items()}
        return identities_of(replicasets, {n: uuid for uuid, n in self.plan.state.global_ids.items()})

    def _write_table(
        self,
        target: apply.Target,
        decided: Pinned,
        puts: int,
        reached: Callable[[str], None],
    ) -> int:
        contended = any(t.number == target.number and t.contended for t in self.traits)
        if decided.rows is None:
            own_rows = (F.col("table") == target.number) & F.col("writes")
            changes = apply.typed(decided.frame.where(own_rows), target)
            if not target.is_empty:  # MERGE reads them twice
                changes = self.pins.cache(changes)
                misfits = changes.where(F.col("put") & ~F.col("keep")).count()
            apply.write_table(self.warehouse, target, changes, goes_on=not contended)
            if target.is_empty:
                misfits = puts - self.warehouse.read(target.exact).count()
        else:
            own = pc.equal(decided.rows["table"], target.number)
            rows = decided.rows.filter(pc.and_(own, decided.rows["writes"]))
            if not rows.num_rows:  # every change lost
                return 0
            here = apply.typed_here(rows, decided.frame.schema, target)
            misfits = apply.write_here(self.warehouse, target, here, goes_on=not contended)
            if misfits:
                changes = here.frame(self.warehouse.spark, target)
        reached(target.name)
        if misfits:
            self._append("_quarantine", tell.unfit_rows(changes, target, self.epoch))
            self._append("_versions", tell.unfit_versions(changes, target, self.epoch))
        return misfits

    def _write_side(self, table: str, rows: DataFrame, reached: Callable[[str], None]) -> int:
        self._append(table, rows)
        reached(table)
        return 0

    def _append(self, table: str, rows: DataFrame) -> None:
        append(self.warehouse, table, self.pins.here(rows))

    def _sides(
        self, decided: DataFrame, told: Mapping[int, tell.Told], choices: Mapping[int, Choice]
    ) -> Mapping[str, DataFrame]:
        names = {target.number: target.name for target in self.targets.values()}
        appends: dict[str, DataFrame] = {}
        if any(t.versions for t in told.values()):
            appends["_versions"] = tell.version_rows(decided, names, self.epoch)
        if any(t.conflicts for t in told.values()):
            policies = {number: policy.policy for number, policy in self.policies.items()}
            labels = {number: choice.labels for number, choice in choices.items()}
            appends["_conflicts"] = tell.conflict_rows(decided, names, self.epoch, policies, labels)
        if any(t.faults or t.undecided for t in told.values()):
            faults = tell.fault_rows(decided, names, self.epoch)
            appends["_quarantine"] = faults.unionByName(tell.undecided_rows(decided, names, self.epoch))
        return appends

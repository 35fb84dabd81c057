"""One space's table under another policy: the versions of all contended keys are chosen between once more.

A row is a function of its versions, and those are all kept: the table's row and `_versions`. So nothing is read from
logs, and what another policy had put aside comes back. The table changes in one MERGE.
Not here: a table whose columns or primary key change; who may write (`jobs.service`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.batch import apply, tell
from jobs.batch.base import Keys, base_of, other_versions
from jobs.batch.choices import Choice, choice_of
from jobs.batch.columns import current_spaces, target_of
from jobs.batch.commit import commit
from jobs.batch.decide import decide
from jobs.batch.identities import identities_of
from jobs.batch.pin import Pins
from jobs.batch.resolve import of_key
from jobs.batch.state import State, Writers
from jobs.batch.versions import FAULTS, KEYS
from config.deployment import Config
from config.policies import Policy
from schemas.errors import UnsupportedError
from tables.warehouse import Warehouse

NUMBER = 0
EXAMPLES = 10


@dataclass(frozen=True)
class Rebuild:
    """What another policy changes in a table.

    Parameters
    ----------
    target : Target
    choice : Choice
    decided : DataFrame
        All versions of all contended keys, with `writes` and `put` as `jobs.batch.apply.with_writes` says, and
        `before`: the row's tuple.

    """

    target: apply.Target
    choice: Choice
    decided: DataFrame

    def changed(self) -> int:
        """Return how many keys change."""
        return self.decided.where("writes").count()

    def examples(self, limit: int = EXAMPLES) -> Sequence[tuple[bytes, bytes | None, bytes | None]]:
        """Return keys that change with their tuples before and after, None for no row."""
        after = F.when(F.col("put"), F.col("tuple"))
        rows = self.decided.where("writes").orderBy("_key").limit(limit)
        found = rows.select("_key", "before", after.alias("after")).collect()
        return [
            (bytes(key), None if old is None else bytes(old), None if new is None else bytes(new))
            for key, old, new in found
        ]


def rebuild_of(
    warehouse: Warehouse, state: State, config: Config, space: str, policy: Policy, pins: Pins
) -> Rebuild:
    """Return what a policy makes of a space's versions.

    Parameters
    ----------
    state : State
        Tables are read at its versions.
    space : str
        Tarantool's name.
    policy : Policy
    pins : Pins
        Hold what is computed on the way, as long as the rebuild is needed.

    Raises
    ------
    UnsupportedError
        The space has no table that can be written.

    """
    table = config.spaces.table(space)
    if not current_spaces(state, config, table) or table not in state.versions:
        raise UnsupportedError(
            "the space has no table to rebuild",
            space=space,
            advice="look for it in _schema: table_name, state",
        )
    target = target_of(NUMBER, table, state, config, (), frozenset([table]))
    replicasets = {one.id: uuid for uuid, one in state.replicasets.items()}
    identities = identities_of(replicasets, {n: uuid for uuid, n in state.global_ids.items()})
    choice = choice_of(target, policy, config.priority(policy), identities)
    names = {NUMBER: table}
    keys = other_versions(warehouse, state, names).select("table", "_key").distinct()
    base = base_of(warehouse, state, names, Keys(keys), tombstones=True)
    if base is None:
        raise UnsupportedError("the space has no table to rebuild", space=space)
    decided = decide(_versions(base), identities, {NUMBER: choice}, pins.cache)
    row = F.struct("tuple", "replicaset_id")
    decided = decided.withColumn("row", F.max_by(row, F.when(F.col("is_row"), F.lit(1))).over(of_key()))
    same = F.col("row.tuple").eqNullSafe(F.col("tuple")) & F.col("row.replicaset_id").eqNullSafe(
        F.col("replicaset_id")
    )
    decided = apply.with_writes(decided)
    decided = decided.withColumn("writes", F.col("writes") & ~(F.col("put") & same))
    return Rebuild(target, choice, decided.withColumn("before", F.col("row.tuple")).drop("row"))


def _versions(base: DataFrame) -> DataFrame:
    return base.select(
        *KEYS,
        F.lit(None).cast("int").alias("layout"),
        *("tuple", "global_id", "lsn", "timestamp", "created", "state"),
        F.lit(True).alias("began"),
        F.lit(None).cast(FAULTS).alias("faults"),
        F.lit(False).alias("unknown"),
        F.lit(False).alias("changed"),
        "is_row",
    )


def write_rebuild(
    warehouse: Warehouse, state: State, rebuild: Rebuild, policy: Policy, name: str
) -> tuple[State, int]:
    """Write it, in one commit of the table, and return the state after it and how many keys changed."""
    target, epoch = rebuild.target, state.epoch + 1
    decided = rebuild.decided.persist()
    try:
        changed = decided.where("writes").count()
        if not changed:
            return state, 0
        changes = apply.typed(decided.where("writes"), target).persist()
        names = {NUMBER: target.name}
        misfits = changes.where(F.col("put") & ~F.col("keep")).count()
        apply.write_table(warehouse, target, changes, goes_on=False)
        warehouse.append("_versions", tell.version_rows(decided, names, epoch))
        if misfits:
            warehouse.append("_quarantine", tell.unfit_rows(changes, target, epoch))
            warehouse.append("_versions", tell.unfit_versions(changes, target, epoch))
        faults = tell.undecided_rows(decided, names, epoch)
        warehouse.append("_quarantine", faults)
        touched = F.max("writes").over(of_key())
        anew = decided.withColumn("touched", touched).where("touched").withColumn("changed", F.lit(True))
        policies, labels = {NUMBER: policy.policy}, {NUMBER: rebuild.choice.labels}
        conflicts = tell.conflict_rows(anew, names, epoch, policies, labels)
        warehouse.append("_conflicts", conflicts.withColumn("changed", F.lit("policy")))
        changes.unpersist()
    finally:
        decided.unpersist()
    writers = dict(state.writers)
    if misfits:
        known = writers.get(target.name, Writers())
        writers[target.name] = replace(known, unfit=True)
    tables = (*target.tables, "_versions", "_quarantine", "_conflicts")
    return commit(warehouse, replace(state, writers=writers), tables, (name, 0)), changed

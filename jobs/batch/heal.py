"""Healing a divergence: a member's snapshot is taken for what its replicaset held, and what came since is done again.

The snapshot becomes a generation of the tables (`jobs.batch.generation`) although they are ahead of it; the rows that
`_changelog` has from behind its vclock follow it within the same batch, in the order in which they were applied. So it
matters neither when the snapshot was taken nor how far the stream is. `_changelog` gets the snapshot's rows; what was
settled first stays in it, and the divergences that the snapshot is behind of stand in `_gaps` as `healed`.

Not here: which snapshot, and reading it (`jobs.heal`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.batch.changelog import COMMITTED, with_layout
from jobs.batch.pin import SMALL_ROWS, Pinned, Pins
from jobs.batch.plan import Plan
from jobs.batch.state import Replicaset, State
from jobs.batch.stretch import Stretch
from jobs.batch.summary import CONTROL_SPACES, Summary
from jobs.batch.survey import CHANGES
from tables.gaps import DIVERGENCE, HEALED, KEY, OPEN
from schemas.errors import UnsupportedError
from schemas.tables import CHANGELOG
from sources.xlog.vclock import Vclock, not_beyond
from tables.read import newest_of_each
from tables.warehouse import Warehouse


@dataclass(frozen=True)
class Healing:
    """What a batch that heals does beside reading its snapshot.

    Parameters
    ----------
    uuid : str
        The replicaset's.
    later : DataFrame
        Rows of `_changelog` that the snapshot is not ahead of.
    counts : mapping of (int, str) to int
        Of them, by space id and type.
    closed : sequence of dict
        Rows of `_gaps`, without their epoch.
    left : sequence of dict
        Those of divergences that the snapshot is not behind of: a newer one heals them.

    """

    uuid: str
    later: DataFrame
    counts: Mapping[tuple[int, str], int]
    closed: Sequence[Mapping[str, Any]]
    left: Sequence[Mapping[str, Any]] = ()

    def of_stretches(self, stretches: Sequence[Stretch]) -> list[Stretch]:
        """Return the stretches as those of a snapshot that heals."""
        return [replace(one, heals=True) for one in stretches]

    def of_summaries(self, summaries: Mapping[str, Summary]) -> dict[str, Summary]:
        """Return the summaries with the counts of what is done again."""
        own = summaries[self.uuid]
        counts = Counter({(0, space_id, kind): rows for (space_id, kind), rows in self.counts.items()})
        return {**summaries, self.uuid: replace(own, counts=own.counts + counts)}

    def again(self, plan: Plan) -> DataFrame:
        """Return the rows that are done again, with their places behind the snapshot's and their layouts of now."""
        behind = 1 + max(stretch.segment for stretch in plan.stretches)
        places = sorted(tuple(row) for row in self.later.select("epoch", "segment").distinct().collect())
        numbered = [(*place, number) for number, place in enumerate(places, start=behind)]
        # A table, not an expression: a snapshot of yesterday has thousands of epochs behind it.
        table = self.later.sparkSession.createDataFrame(numbered, "epoch bigint, segment int, place int")
        rows = self.later.join(F.broadcast(table), ["epoch", "segment"]).drop("segment", "layout")
        rows = with_layout(rows.withColumnRenamed("place", "segment"), plan)
        return rows.select([F.col(f.name).cast(f.dataType) for f in CHANGELOG])

    def gaps(self, epoch: int) -> list[dict[str, Any]]:
        """Return what is appended to `_gaps`."""
        now = {"epoch": epoch, "found_at": datetime.now(UTC), "state": HEALED}
        return [{**row, **now} for row in self.closed]


def with_again(logged: Pinned, healing: Healing, plan: Plan, pins: Pins) -> Pinned:
    """Return the rows of a batch with those that are done again."""
    pins.is_small = pins.is_small and sum(healing.counts.values()) <= SMALL_ROWS
    return pins.here(logged.frame.unionByName(healing.again(plan)))


def healing_of(warehouse: Warehouse, state: State, one: Replicaset, source: str, vclock: Vclock) -> Healing:
    """Return what there is to do behind a snapshot.

    Parameters
    ----------
    warehouse : Warehouse
    state : State
    one : Replicaset
    source : str
        Whose snapshot it is.
    vclock : mapping of int to int
        The snapshot's, in the source's ids, without component 0.

    Raises
    ------
    UnsupportedError
        The tables cannot become what the snapshot says: not yet, or not by it.

    """
    ids = one.ids.get(source, {})
    reached = {ids.get(i, i): lsn for i, lsn in vclock.items()}
    where = {"source": source, "replicaset": one.uuid}
    if one.waits:
        raise UnsupportedError("rows of it wait, see _pending: they come first", **where)
    if not not_beyond(reached, one.settled):
        raise UnsupportedError(
            f"the snapshot is at {reached}, the tables are at {dict(one.settled)}",
            **where,
            advice="let the stream come to it, then ask again",
        )
    rows = warehouse.read("_changelog", state.versions.get("_changelog"))
    rows = rows.where((F.col("replicaset_id") == one.id) & (F.col("state") == COMMITTED) & _is_logged())
    rows = rows.where(F.col("lsn") > _floor(one, reached))
    if rows.where(F.col("space_id").isin([int(space) for space in CONTROL_SPACES])).limit(1).count():
        raise UnsupportedError(
            "spaces, indexes or members were changed since the snapshot, or a space was truncated",
            **where,
            advice="take a new one: box.snapshot()",
        )
    later = rows.where(F.col("type").isin(*CHANGES))
    told = later.groupBy("space_id", "type").count().collect()
    counts = {(int(row["space_id"]), str(row["type"])): int(row["count"]) for row in told}
    return Healing(one.uuid, later, counts, *_divergences(warehouse, state, one, reached))


def _is_logged() -> Column:
    return F.col("file").endswith(".xlog")


def _floor(one: Replicaset, reached: Vclock) -> Column:
    """Return the lsn of a row's origin that the snapshot has; an id goes on from whoever had it before."""
    pairs = [part for e in one.maps for part in (F.lit(e.global_id), F.lit(reached.get(e.local_id, 0)))]
    return F.coalesce(F.try_element_at(F.create_map(*pairs), F.col("global_id").cast("int")), F.lit(0))


Rows = list[Mapping[str, Any]]


def _divergences(warehouse: Warehouse, state: State, one: Replicaset, reached: Vclock) -> tuple[Rows, Rows]:
    """Return the open divergences of a replicaset: those that a snapshot is behind of, and the others."""
    rows = newest_of_each(warehouse.opened("_gaps", state.versions.get("_gaps")), KEY)
    closed: Rows = []
    left: Rows = []
    for row in rows:
        if row["kind"] == DIVERGENCE and row["state"] == OPEN and row["replicaset_id"] == one.id:
            is_behind = row["last_lsn"] <= reached.get(_own_id(one, row), 0)
            (closed if is_behind else left).append(row)
    return closed, left


def _own_id(one: Replicaset, row: Mapping[str, Any]) -> int:
    local_id = int(row["local_id"])
    return one.ids.get(row["source"] or "", {}).get(local_id, local_id)

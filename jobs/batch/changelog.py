"""Rows of a batch → `_changelog`: what was read before is dropped, what waits is set aside, ids become global.

Native expressions over the frame of xrows; the plan's decisions enter as literals. One append.
Not here: the decisions themselves (`jobs.batch.plan`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.batch.layouts import Route
from jobs.batch.members import entries_of
from jobs.batch.pin import Pinned
from jobs.batch.plan import Plan
from jobs.batch.settle import RolledBack
from jobs.batch.stretch import Stretch
from jobs.batch.summary import FIRST, LIMBO_TYPES, Order
from schemas.iproto import GROUP_LOCAL, SystemSpace
from schemas.tables import CHANGELOG, PENDING
from tables.warehouse import Warehouse
from udfs.literals import array_literal
from udfs.remap import Mapped, Slots, global_id_column, own_ids

COMMITTED, ROLLED_BACK, LOCAL = "committed", "rolled_back", "local"

_MAP_LIMIT = 48
"""Above so many spaces a join finds a row's layout faster than a scan of a literal map."""


def slots_of(stretches: Sequence[Stretch]) -> Slots:
    """Return the slots of a batch's segments."""
    numbers = [stretch.segment for stretch in stretches]
    return Slots(min(numbers), max(numbers) - min(numbers) + 1)


def _before(order: Order) -> Column:
    here = F.struct(
        F.lit(order.segment).alias("segment"),
        F.lit(order.position).cast("bigint").alias("position"),
        F.lit(order.row).alias("row"),
    )
    return F.struct("segment", "position", "row") < here


def _any(conditions: Sequence[Column]) -> Column:
    return reduce(or_, conditions, F.lit(False))


def _is_new(plan: Plan) -> Column:
    floors = {key: lsn for s in plan.settlements.values() for key, lsn in s.floors.items()}
    floor = slots_of(plan.stretches).per_slot(floors)
    return _is_snapshots() | F.col("lsn").isNull() | (F.col("lsn") > floor)


def unread(rows: DataFrame, plan: Plan) -> DataFrame:
    """Return the rows without those that were read before."""
    return rows.where(_is_new(plan))


def read_before(rows: DataFrame, plan: Plan) -> DataFrame:
    """Return the rows of registered instances that were read before, with `replicaset_id` and `hash`."""
    ids = {s.segment: plan.state.replicasets[s.replicaset_uuid].id for s in plan.stretches}
    rows = rows.where(~F.coalesce(_is_new(plan), F.lit(True)) & (F.col("replica_id") > 0))
    replicaset = slots_of(plan.stretches).per_segment(ids).cast("int")
    return rows.withColumn("replicaset_id", replicaset).withColumn("hash", body_hash())


def body_hash() -> Column:
    """Return what a row says as one number: the same in every member's log."""
    return F.xxhash64("type", "space_id", "index_base", "key", "tuple", "operations", "body")


def _is_snapshots() -> Column:
    """Whether a row is a snapshot's: it has neither origin nor group, and its lsn only counts rows."""
    return F.col("replica_id").isNull() & ~_is_local()


def _is_local() -> Column:
    return F.coalesce(F.col("group_id") == GROUP_LOCAL, F.lit(False))


def waiting(plan: Plan) -> Column:
    """Return whether a row waits."""
    holds = []
    for uuid, settlement in plan.settlements.items():
        if settlement.hold is not None:
            segments = [s.segment for s in plan.stretches if s.replicaset_uuid == uuid]
            holds.append(F.col("segment").isin(segments) & ~_before(settlement.hold))
    return _any(holds)


def _rolled_back(plan: Plan, uuid: str, gone: RolledBack) -> Column:
    ids = plan.state.replicasets[uuid].ids
    segments: dict[int, list[int]] = {}
    for stretch in plan.stretches:
        if stretch.replicaset_uuid == uuid:
            for replica_id in own_ids(ids.get(stretch.source, {}), gone.replica_id):
                segments.setdefault(replica_id, []).append(stretch.segment)
    own_rows = [
        F.col("segment").isin(found) & (F.col("replica_id") == replica_id)
        for replica_id, found in segments.items()
    ]
    # What settles other transactions meanwhile is in no limbo.
    own = _any(own_rows) & ~F.col("type").isin(*LIMBO_TYPES)
    return own & (F.col("tsn") >= gone.tsn) & ~_before(gone.since) & _before(gone.until)


def state_column(plan: Plan) -> Column:
    """Return a row's state: committed, rolled_back, or local to one instance."""
    gone = [_rolled_back(plan, uuid, one) for uuid, s in plan.settlements.items() for one in s.rolled_back]
    return F.when(_is_local(), LOCAL).when(_any(gone), ROLLED_BACK).otherwise(COMMITTED)


def _entries(plan: Plan) -> list[Mapped]:
    return [
        Mapped(stretch.segment, entry.local_id, entry.global_id, entry.since_lsn)
        for stretch in plan.stretches
        for entry in entries_of(plan.state.replicasets[stretch.replicaset_uuid], stretch.source)
    ]


def global_ids(plan: Plan) -> Column:
    """Return the global id of a row's origin; of a local row, that of the instance whose log it is."""
    slots = slots_of(plan.stretches)
    local = {
        stretch.segment: plan.state.global_ids[stretch.instance_uuid]
        for stretch in plan.stretches
        if stretch.instance_uuid is not None
    }
    mapped = global_id_column(slots, _entries(plan))
    return F.when(_is_local(), slots.per_segment(local)).otherwise(mapped)


def _seen(plan: Plan) -> set[tuple[int, int]]:
    return {
        (plan.state.replicasets[uuid].id, space_id)
        for uuid, summary in plan.summaries.items()
        for _, space_id, _ in summary.counts
    }


def _route_key(replicaset_id: Column | int, space_id: Column | int) -> Column:
    one = replicaset_id if isinstance(replicaset_id, Column) else F.lit(replicaset_id)
    other = space_id if isinstance(space_id, Column) else F.lit(space_id)
    return one.cast("bigint") * F.lit(2**32) + other.cast("bigint")


def with_layout(rows: DataFrame, plan: Plan) -> DataFrame:
    """Return the rows with their layout; null where they go to no table."""
    seen = _seen(plan)
    routes = [r for r in plan.routes.routes if (r.replicaset_id, r.space_id) in seen]
    by_key: dict[tuple[int, int], list[Route]] = {}
    for route in routes:
        by_key.setdefault((route.replicaset_id, route.space_id), []).append(route)
    whole = {key: found[0].layout for key, found in by_key.items() if len(found) == 1 and _always(found[0])}
    moving = [route for key, found in by_key.items() if key not in whole for route in found]
    rows = _looked_up(rows, whole)
    column = F.col("layout")
    for route in moving:
        here = _route_key(F.col("replicaset_id"), F.col("space_id")) == _route_key(
            route.replicaset_id, route.space_id
        )
        within = ~_before(route.since) if route.since != FIRST else F.lit(True)
        if route.until is not None:
            within = within & _before(route.until)
        column = F.when(here & within, F.lit(route.layout)).otherwise(column)
    changes = F.col("type").isin("INSERT", "REPLACE", "UPDATE", "UPSERT", "DELETE") & (
        F.col("state") == COMMITTED
    )
    return rows.withColumn("layout", F.when(changes, column).cast("int"))


def _always(route: Route) -> bool:
    return route.since == FIRST and route.until is None


def _looked_up(rows: DataFrame, layouts: Mapping[tuple[int, int], int]) -> DataFrame:
    if not layouts:
        return rows.withColumn("layout", F.lit(None).cast("int"))
    if len(layouts) > _MAP_LIMIT:
        found = [(rs, space, layout) for (rs, space), layout in layouts.items()]
        table = rows.sparkSession.createDataFrame(found, "replicaset_id int, space_id int, layout int")
        return rows.join(F.broadcast(table), ["replicaset_id", "space_id"], "left")
    pairs = [part for key, layout in layouts.items() for part in (_route_key(*key), F.lit(layout))]
    key = _route_key(F.col("replicaset_id"), F.col("space_id"))
    return rows.withColumn("layout", F.try_element_at(F.create_map(*pairs), key))


def changelog_rows(rows: DataFrame, plan: Plan, epoch: int) -> DataFrame:
    """Return what is appended to `_changelog`.

    Parameters
    ----------
    rows : DataFrame
        Columns of `schemas.xrow.SOURCES_ARROW`, rows that waited before included.
    plan : Plan
    epoch : int

    """
    slots = slots_of(plan.stretches)
    ids = {s.segment: plan.state.replicasets[s.replicaset_uuid].id for s in plan.stretches}
    rows = unread(rows, plan)
    if plan.holds:
        rows = rows.where(~waiting(plan))
    rows = (
        rows.withColumn("replicaset_id", slots.per_segment(ids).cast("int"))
        .withColumn("global_id", global_ids(plan))
        .withColumn("state", state_column(plan))
    )
    rows = with_layout(rows, plan)
    names = [layout.space.name for layout in plan.routes.layouts]
    space = F.get(array_literal(names, "string"), F.col("layout")) if names else F.lit(None).cast("string")
    rows = rows.withColumn("space", space).withColumn("hash", body_hash()).withColumn("epoch", F.lit(epoch))
    rows = _without_cluster(rows)
    return rows.select([F.col(f.name).cast(f.dataType) for f in CHANGELOG])


def _without_cluster(rows: DataFrame) -> DataFrame:
    """Return the rows with a NOP for each one of a source's `_cluster`: the vclock follows, the change is our own.

    `jobs.batch.own` writes that one (document 001). The space id stays, to tell why it is a NOP.
    """
    is_cluster = F.coalesce(F.col("space_id") == SystemSpace.CLUSTER, F.lit(False))
    rows = rows.withColumn("type", F.when(is_cluster, "NOP").otherwise(F.col("type")))
    for name in ("key", "tuple", "operations", "body"):
        rows = rows.withColumn(name, F.when(~is_cluster, F.col(name)))
    return rows


def pending_rows(rows: DataFrame, plan: Plan) -> DataFrame:
    """Return what is put into `_pending`: the rows from each hold on."""
    slots = slots_of(plan.stretches)
    ids = {s.segment: plan.state.replicasets[s.replicaset_uuid].id for s in plan.stretches}
    reasons = F.lit(None).cast("string")
    for uuid, settlement in plan.settlements.items():
        if settlement.hold is not None:
            segments = [s.segment for s in plan.stretches if s.replicaset_uuid == uuid]
            reasons = F.when(F.col("segment").isin(segments), F.lit(settlement.reason)).otherwise(reasons)
    held = unread(rows, plan).where(waiting(plan))
    held = held.withColumn("replicaset_id", slots.per_segment(ids)).withColumn("reason", reasons)
    return held.select([F.col(f.name).cast(f.dataType) for f in PENDING])


def read_back(warehouse: Warehouse, rows: Pinned, epoch: int) -> Pinned:
    """Return a batch's rows as they were appended: from the driver, if it holds them, else from the table."""
    if rows.rows is not None:
        return rows
    return Pinned(warehouse.read("_changelog").where(F.col("epoch") == epoch))

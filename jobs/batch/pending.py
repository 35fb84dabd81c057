"""Rows that wait: brought back in front of the next batch of their replicaset, or kept for the one after.

`_pending` holds them as they were read. A batch of a replicaset takes its waiting rows first, as segments with
numbers below those of the files, and puts back what still waits. Rows of other replicasets stay untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.batch.changelog import pending_rows
from jobs.batch.generation import generation_of
from jobs.batch.pin import Pins, append
from jobs.batch.plan import Plan
from jobs.batch.scan import server_of
from jobs.batch.state import Replicaset, State
from jobs.batch.stretch import Stretch
from jobs.batch.summary import LOCAL_ID, Summary, join_summaries, summarize
from schemas.tables import PENDING
from schemas.xrow import SOURCES_ARROW
from sources.xlog.follow import Follower
from tables.read import answer
from tables.warehouse import Warehouse

TABLE = "_pending"


def with_pending(
    warehouse: Warehouse,
    state: State,
    stretches: list[Stretch],
    summaries: dict[str, Summary],
    frame: DataFrame,
    sync: Mapping[str, frozenset[int]],
) -> tuple[list[Stretch], dict[str, Summary], DataFrame]:
    """Put the waiting rows of a batch's replicasets in front of it, or behind rows that were missing before them.

    Parameters
    ----------
    sync : mapping of str to frozenset of int
        By replicaset uuid: ids of spaces whose rows wait for a quorum, those that waiting rows make so included.

    Returns
    -------
    (list of Stretch, dict of str to Summary, DataFrame)
        As given, where nothing waits.

    """
    waiting = [
        state.replicasets[u] for u in summaries if u in state.replicasets and state.replicasets[u].waits
    ]
    if not waiting:
        return stretches, summaries, frame
    ids = {one.id: one.uuid for one in waiting}
    rows = warehouse.near(TABLE, state.versions.get(TABLE), PENDING)
    rows = rows.where(F.col("replicaset_id").isin(list(ids)))
    known = rows.select("replicaset_id", "segment", "source", "file", "instance_uuid").distinct().collect()
    order = sorted(known, key=lambda row: (row.replicaset_id, row.segment))
    # A generation has what waited from before it.
    behind = frozenset(
        one.id
        for one in waiting
        if fills(one, summaries[one.uuid])
        or generation_of(one, [part for part in stretches if part.replicaset_uuid == one.uuid]) is not None
    )
    last = max((stretch.segment for stretch in stretches), default=-1) + 1
    numbers = {
        (row.replicaset_id, row.segment): last + i if row.replicaset_id in behind else i - len(order)
        for i, row in enumerate(order)
    }
    own = [
        Stretch(
            numbers[row.replicaset_id, row.segment],
            ids[row.replicaset_id],
            row.source,
            row.file,
            row.instance_uuid,
            False,
            {},
        )
        for row in order
    ]
    before = _renumbered(rows, ids, numbers)
    found = {**summaries}
    for number, uuid in ids.items():
        table = before.where(F.col("replicaset_uuid") == uuid).orderBy("segment", "position", "row").toArrow()
        waited = _summary(table, sync.get(uuid, frozenset()))
        parts = [summaries[uuid], waited] if number in behind else [waited, summaries[uuid]]
        found[uuid] = join_summaries(parts)
    own.sort(key=lambda stretch: stretch.segment)
    first = [stretch for stretch in own if stretch.segment < 0]
    then = [stretch for stretch in own if stretch.segment >= 0]
    return [*first, *stretches, *then], found, before.select(*frame.columns).unionByName(frame)


def with_servers(warehouse: Warehouse, state: State, follower: Follower) -> State:
    """Return the state with the servers of replicasets of which rows wait for a space to move.

    A start does not know them, and the files that are read next come later.
    """
    found: dict[str, Replicaset] = {}
    for uuid, one in state.replicasets.items():
        if not one.moves or one.server is not None:
            continue
        rows = warehouse.near(TABLE, state.versions.get(TABLE), PENDING)
        rows = rows.where(F.col("replicaset_id") == one.id)
        (row,) = rows.select("source", "file").limit(1).collect()
        found[uuid] = replace(one, server=server_of(follower, row.source, row.file))
    return state.with_replicasets(found)


def fills(replicaset: Replicaset, summary: Summary) -> bool:
    """Whether rows go on from what is settled, not from what waits: another member's copy of the log.

    They bring what was missing, so what waits comes behind them, as far as they do not hold it themselves.
    """
    missing = {i: lsn + 1 for i, lsn in replicaset.settled.items() if replicaset.read.get(i, 0) > lsn}
    missing |= {i: 1 for i in replicaset.read if i not in replicaset.settled}
    return any(run.first <= missing.get(run.replica_id, 0) <= run.last for run in summary.runs)


def _renumbered(rows: DataFrame, ids: Mapping[int, str], numbers: Mapping[tuple[int, int], int]) -> DataFrame:
    segment = F.lit(None).cast("int")
    for (replicaset_id, old), new in numbers.items():
        here = (F.col("replicaset_id") == replicaset_id) & (F.col("segment") == old)
        segment = F.when(here, F.lit(new)).otherwise(segment)
    uuid = F.lit(None).cast("string")
    for replicaset_id, one in ids.items():
        uuid = F.when(F.col("replicaset_id") == replicaset_id, F.lit(one)).otherwise(uuid)
    return rows.withColumn("replicaset_uuid", uuid).withColumn("segment", segment).select(SOURCES_ARROW.names)


def _summary(table: pa.Table, sync: frozenset[int]) -> Summary:
    parts = []
    for batch in table.combine_chunks().to_batches():
        segments = batch.column("segment").to_pylist()
        cuts = [0, *(i for i in range(1, len(segments)) if segments[i] != segments[i - 1]), len(segments)]
        parts += [summarize(batch.slice(a, b - a), segments[a], sync) for a, b in pairwise(cuts) if b > a]
    return join_summaries(parts)


def settle_pending(
    warehouse: Warehouse, state: State, frame: DataFrame, plan: Plan, epoch: int, pins: Pins
) -> Plan:
    """Write what waits now, and return the plan with the vclocks of what does not.

    Where nothing waited and nothing waits, this costs nothing.
    """
    uuids = [u for u in plan.settlements if u in state.replicasets and state.replicasets[u].waits]
    if not plan.holds and not uuids:
        return plan
    held = pending_rows(frame, plan)
    if uuids:
        ids = [state.replicasets[u].id for u in uuids]
        others = [plan.state.replicasets[u].id for u in plan.settlements if u not in uuids]
        condition = f"replicaset_id IN ({', '.join(map(str, [*ids, *others]))})"
        append(warehouse, TABLE, pins.here(held), condition)
    else:
        append(warehouse, TABLE, pins.here(held.select([f.name for f in PENDING])))
    return _with_settled(warehouse, plan, epoch)


def _with_settled(warehouse: Warehouse, plan: Plan, epoch: int) -> Plan:
    # A snapshot numbers its rows itself: those are no lsns.
    snapshots = ", ".join(str(s.segment) for s in plan.stretches if s.is_snapshot)
    logs = f"AND segment NOT IN ({snapshots})" if snapshots else ""
    query = f"""
        SELECT replicaset_id, source, replica_id, max(lsn) AS lsn FROM opened
        WHERE epoch = {epoch} AND lsn IS NOT NULL AND (replica_id IS NOT NULL OR group_id = 1) {logs}
        GROUP BY replicaset_id, source, replica_id"""
    lsns = answer(warehouse.opened("_changelog"), query)
    replicasets = dict(plan.state.replicasets)
    for uuid, settlement in plan.settlements.items():
        if settlement.hold is None:
            continue
        one = replicasets[uuid]
        settled = dict(one.settled)
        for row in lsns:
            if row["replicaset_id"] == one.id:
                origin = row["replica_id"] or LOCAL_ID
                origin = one.ids.get(row["source"], {}).get(origin, origin)
                settled[origin] = max(settled.get(origin, 0), row["lsn"])
        local = {one.leader: settled[LOCAL_ID]} if one.leader is not None and LOCAL_ID in settled else {}
        replicasets[uuid] = replace(one, settled=settled, local_lsns={**one.local_lsns, **local})
    return replace(plan, state=replace(plan.state, replicasets=replicasets))

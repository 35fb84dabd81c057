"""`_cluster`: the persisted mapping of instance uuids to global ids, and how it is changed.

What becomes of a row is decided by `udfs.cluster_replace`, outside of the database. So a change is written as
compare-and-set: one MERGE whose sub-query lets it through only where the table still ends at the lsn that was
decided upon, and that Delta refuses where another writer commits meanwhile. Then all is read and decided anew. So
ids stay dense and unique even where the writer lock is bypassed. The table is never taken back with an unfinished
batch: an id that was given stays given.

The table's property `aggregator.allocation` records how ids are given; another one is refused.
Not here: replica ids over time (`tables.applier_map`).
"""

from __future__ import annotations

import random
import time
import uuid as uuids
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, cast, get_args

from delta import exceptions
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from schemas.errors import WarehouseError
from tables.warehouse import Warehouse, local_frame
from udfs.cluster_replace import Allocation, Change, Cluster, Incoming, Member, replace_all

TABLE = "_cluster"
ALLOCATION = "aggregator.allocation"
"""The table property that records the allocation."""

ATTEMPTS = 100
PAUSE_SECONDS = 5.0
"""At most so long a writer that was refused waits, so that writers do not meet again in step."""

CONFLICTS = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)

COLUMNS = ("global_id", "uuid", "local_id", "replicaset_id", "replicaset_uuid", "lsn")

_CHANGED = StructType(
    [
        StructField("key", StringType()),
        StructField("global_id", LongType()),
        StructField("uuid", StringType()),
        StructField("local_id", IntegerType()),
        StructField("replicaset_id", IntegerType()),
        StructField("replicaset_uuid", StringType()),
        StructField("lsn", LongType()),
        StructField("expelled", BooleanType()),
        StructField("now", TimestampType()),
    ]
)


def load(warehouse: Warehouse) -> Cluster:
    """Return the table as it stands."""
    expelled = F.col("expelled_at").isNotNull().alias("expelled")
    rows = warehouse.read(TABLE).select(*COLUMNS, expelled).collect()
    return cluster_of((row.asDict() for row in rows), recorded(warehouse) or "counter")


def cluster_of(rows: Iterable[dict[str, Any]], allocation: Allocation) -> Cluster:
    """Return the table from its rows: dicts of `COLUMNS` and `expelled`."""
    members = sorted((Member(**row) for row in rows), key=lambda member: member.lsn)
    return Cluster(allocation, {member.key: member for member in members})


def recorded(warehouse: Warehouse) -> Allocation | None:
    """Return the allocation that the table's property records, None before the first start."""
    return allocation_of(warehouse.property(TABLE, ALLOCATION))


def allocation_of(recorded_: str | None) -> Allocation | None:
    """Return the allocation of a property's value.

    Raises
    ------
    WarehouseError
        If it is none.

    """
    if recorded_ is not None and recorded_ not in get_args(Allocation):
        raise WarehouseError(
            f"the property {ALLOCATION} is {recorded_!r}",
            table=TABLE,
            advice=f"set it to one of {', '.join(get_args(Allocation))}, the one that gave the ids",
        )
    return cast("Allocation | None", recorded_)


def start(warehouse: Warehouse, allocation: Allocation, now: datetime) -> Cluster:
    """Record how ids are given, and return the table, which a counter begins with the aggregator's own row.

    Parameters
    ----------
    warehouse : Warehouse
        With its system tables.
    allocation : {'counter', 'preserve'}
        As configured.
    now : datetime

    Raises
    ------
    WarehouseError
        If ids are given in another way already.

    """
    for attempt in range(ATTEMPTS):
        found = recorded(warehouse)
        # Tables from before the property was there: only a counter gave ids then.
        if found is None and load(warehouse).members:
            found = "counter"
        if found is not None and found != allocation:
            raise WarehouseError(
                f"global ids were given by {found!r}, the configuration says {allocation!r}",
                table=TABLE,
                advice=f"set cluster.allocation to {found}, or take a new warehouse: ids that are given stay",
            )
        if recorded(warehouse) == allocation:
            return allocate(warehouse, (), now) if allocation == "counter" else load(warehouse)
        try:
            table = f"delta.`{warehouse.path(TABLE)}`"
            warehouse.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{ALLOCATION}' = '{allocation}')")
        except CONFLICTS:
            _pause(attempt)
    raise WarehouseError(f"the allocation could not be recorded in {ATTEMPTS} attempts", advice="start again")


def allocate(warehouse: Warehouse, rows: Sequence[Incoming], now: datetime) -> Cluster:
    """Take what sources say of instances, in this order, as one commit, and return the table.

    Parameters
    ----------
    warehouse : Warehouse
    rows : sequence of Incoming
    now : datetime
        Becomes `first_seen` and `expelled_at`.

    Raises
    ------
    WarehouseError
        If other writers won `ATTEMPTS` times in a row.

    """
    own_uuid = str(uuids.uuid4())
    for attempt in range(ATTEMPTS):
        cluster = load(warehouse)
        _, changes = replace_all(cluster, rows, own_uuid)
        if not changes:
            return cluster
        try:
            _write(warehouse, cluster.lsn, changes, now)
        except CONFLICTS:
            _pause(attempt)
    raise WarehouseError(f"no global id could be given in {ATTEMPTS} attempts", advice="start again")


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, min(PAUSE_SECONDS, 0.05 * 2**attempt)))


def _write(warehouse: Warehouse, lsn: int, changes: Sequence[Change], now: datetime) -> None:
    view = f"changed_{uuids.uuid4().hex}"
    rows = [
        {name: getattr(change.row, name) for name in (*COLUMNS, "expelled")} | {"key": change.key, "now": now}
        for change in changes
    ]
    local_frame(warehouse.spark, rows, _CHANGED).createOrReplaceTempView(view)
    try:
        table = f"delta.`{warehouse.path(TABLE)}`"
        warehouse.spark.sql(_COMPARE_AND_SET.format(table=table, view=view, lsn=lsn))
    finally:
        warehouse.spark.catalog.dropTempView(view)


_COMPARE_AND_SET = """
MERGE INTO {table} AS cluster
USING (
  SELECT * FROM {view} WHERE (SELECT coalesce(max(lsn), 0) FROM {table}) = {lsn}
) AS new
ON coalesce(cluster.uuid, cluster.replicaset_uuid) = new.key
WHEN MATCHED THEN UPDATE SET
  global_id = new.global_id, uuid = new.uuid, local_id = new.local_id, replicaset_id = new.replicaset_id,
  replicaset_uuid = new.replicaset_uuid, lsn = new.lsn,
  expelled_at = if(new.expelled, coalesce(cluster.expelled_at, new.now), NULL)
WHEN NOT MATCHED THEN INSERT
  (global_id, uuid, local_id, replicaset_id, lsn, replicaset_uuid, first_seen, expelled_at)
  VALUES (new.global_id, new.uuid, new.local_id, new.replicaset_id, new.lsn, new.replicaset_uuid, new.now,
          if(new.expelled, new.now, NULL))
"""

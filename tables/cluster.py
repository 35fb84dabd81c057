"""`_cluster`: the persisted mapping of instance uuids to global ids, and its allocation.

Counter allocation (document 000): each new uuid gets the next global id. It is one MERGE whose source computes
the ids in a sub-query, so that two writers cannot give one id twice: Delta refuses the second commit and the
statement is repeated. A uuid that is known keeps its row. The table is never taken back with an unfinished
batch: an id that was given stays given.
Not here: replica ids over time (`tables.applier_map`).
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from delta import exceptions
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from schemas.errors import WarehouseError
from tables.warehouse import Warehouse, local_frame

TABLE = "_cluster"
ATTEMPTS = 30
AGGREGATOR = "aggregator"
"""Stands as `replicaset_uuid` in the aggregator's own row; its `replicaset_id` is 0."""

CONFLICTS = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)

_NEW = StructType(
    [
        StructField("place", IntegerType()),
        StructField("uuid", StringType()),
        StructField("local_id", IntegerType()),
        StructField("replicaset_uuid", StringType()),
        StructField("first_seen", TimestampType()),
    ]
)


@dataclass(frozen=True)
class Member:
    """One row of `_cluster`."""

    global_id: int
    uuid: str
    local_id: int | None
    replicaset_id: int
    replicaset_uuid: str


@dataclass(frozen=True)
class Announcement:
    """An instance that a log speaks of."""

    uuid: str
    local_id: int | None
    replicaset_uuid: str


def load(warehouse: Warehouse) -> tuple[Member, ...]:
    """Return all members, the aggregator itself included."""
    columns = ("global_id", "uuid", "local_id", "replicaset_id", "replicaset_uuid")
    rows = warehouse.read(TABLE).select(*columns).collect()
    return tuple(sorted((Member(*row) for row in rows), key=lambda member: member.global_id))


def allocate(warehouse: Warehouse, announced: Sequence[Announcement], now: datetime) -> tuple[Member, ...]:
    """Give each announced uuid that has none a global id, and return all members.

    Parameters
    ----------
    warehouse : Warehouse
    announced : sequence of Announcement
        In the order in which ids are to be given.
    now : datetime
        Becomes `first_seen`.

    Raises
    ------
    WarehouseError
        If other writers won `ATTEMPTS` times in a row.

    """
    view = f"announced_{uuids.uuid4().hex}"
    rows = [
        {
            "place": i,
            "uuid": a.uuid,
            "local_id": a.local_id,
            "replicaset_uuid": a.replicaset_uuid,
            "first_seen": now,
        }
        for i, a in enumerate(announced)
    ]
    local_frame(warehouse.spark, rows, _NEW).createOrReplaceTempView(view)
    statement = _ALLOCATE.format(table=f"delta.`{warehouse.path(TABLE)}`", view=view)
    try:
        for _ in range(ATTEMPTS):
            try:
                warehouse.spark.sql(statement)
                return load(warehouse)
            except CONFLICTS:
                continue
    finally:
        warehouse.spark.catalog.dropTempView(view)
    raise WarehouseError(f"no global id could be given in {ATTEMPTS} attempts", advice="start again")


def ensure_self(warehouse: Warehouse, now: datetime) -> Member:
    """Return the aggregator's own row; its uuid is made once and kept."""
    for member in load(warehouse):
        if member.replicaset_uuid == AGGREGATOR:
            return member
    own = Announcement(str(uuids.uuid4()), None, AGGREGATOR)
    members = allocate(warehouse, [own], now)
    return next(member for member in members if member.replicaset_uuid == AGGREGATOR)


_ALLOCATE = """
MERGE INTO {table} AS cluster
USING (
  WITH fresh AS (
    SELECT new.*, row_number() OVER (ORDER BY new.place) AS number
    FROM {view} AS new LEFT ANTI JOIN {table} AS known ON new.uuid = known.uuid
  ), replicasets AS (
    SELECT replicaset_uuid, min(replicaset_id) AS replicaset_id FROM {table} GROUP BY replicaset_uuid
  ), unknown AS (
    SELECT f.replicaset_uuid,
           row_number() OVER (ORDER BY min(f.place)) - if(f.replicaset_uuid = '{aggregator}', 1, 0) AS number
    FROM fresh AS f LEFT ANTI JOIN replicasets AS r ON f.replicaset_uuid = r.replicaset_uuid
    GROUP BY f.replicaset_uuid
  ), highest AS (
    SELECT coalesce(max(global_id), 0) AS global_id, coalesce(max(replicaset_id), 0) AS replicaset_id,
           coalesce(max(lsn), 0) AS lsn
    FROM {table}
  )
  SELECT highest.global_id + fresh.number AS global_id, fresh.uuid, fresh.local_id, fresh.replicaset_uuid,
         cast(coalesce(r.replicaset_id, highest.replicaset_id + u.number) AS int) AS replicaset_id,
         highest.lsn + fresh.number AS lsn, fresh.first_seen
  FROM fresh CROSS JOIN highest
  LEFT JOIN replicasets AS r ON fresh.replicaset_uuid = r.replicaset_uuid
  LEFT JOIN unknown AS u ON fresh.replicaset_uuid = u.replicaset_uuid
) AS new
ON cluster.uuid = new.uuid
WHEN NOT MATCHED THEN INSERT
  (global_id, uuid, local_id, replicaset_id, lsn, replicaset_uuid, first_seen, expelled_at)
  VALUES (new.global_id, new.uuid, new.local_id, new.replicaset_id, new.lsn, new.replicaset_uuid,
          new.first_seen, NULL)
""".replace("{aggregator}", AGGREGATOR)

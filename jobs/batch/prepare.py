"""The tables of spaces before rows are written: created, or given the columns of a changed format.

Where columns change, the table is written anew from its exact tuples: what lay in `_extra` moves into its column,
and no reader needs column mapping. A table that only gains columns, and has nothing in `_extra`, gains them by a
change of metadata.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from jobs.batch.apply import Target, table_columns, typed
from schemas.layout import EXTRA_COLUMN
from tables import spaces
from tables.warehouse import Warehouse, in_parallel

log = logging.getLogger(__name__)


def prepare_tables(warehouse: Warehouse, targets: Sequence[Target]) -> None:
    """Create what is missing and bring changed tables into their new form."""
    in_parallel(lambda target: _prepare(warehouse, target), targets)


def _prepare(warehouse: Warehouse, target: Target) -> None:
    wanted = spaces.table_schema(target.layout.spark_schema())
    if not warehouse.exists(target.name):
        spaces.create(warehouse, target.name, target.layout.spark_schema(), f"space {target.layout.space}")
        return
    present = spaces.columns_of(warehouse, target.name)
    if spaces.same_columns(present, wanted):
        return
    rows = warehouse.read(target.name)
    if _only_added(present, wanted) and not rows.where(F.col(EXTRA_COLUMN).isNotNull()).limit(1).count():
        _add_columns(warehouse, target.name, present, wanted)
        return
    log.warning("%s is written anew: its space has a new format", target.name)
    _rewrite(warehouse, target)


def _only_added(present: StructType, wanted: StructType) -> bool:
    known = {f.name: f.dataType for f in present}
    lasting = {f.name: f.dataType for f in wanted if f.name in known}
    return known == lasting


def _add_columns(warehouse: Warehouse, table: str, present: StructType, wanted: StructType) -> None:
    known = {f.name for f in present}
    new = StructType([f for f in wanted if f.name not in known])
    columns = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in new)
    warehouse.writer.sql(f"ALTER TABLE delta.`{warehouse.path(table)}` ADD COLUMNS ({columns})")


def _rewrite(warehouse: Warehouse, target: Target) -> None:
    rows = warehouse.read(target.name)
    versions = rows.select(
        "_key",
        *(F.col(f"_{name}").alias(name) for name in ("tuple", "global_id", "replicaset_id", "lsn")),
        *(F.col(f"_{name}").alias(name) for name in ("timestamp", "created")),
        F.lit(None).cast("int").alias("layout"),
        F.lit(True).alias("put"),
    )
    decoded = typed(versions, target)
    columns = [column.alias(name) for name, column in table_columns(target).items()]
    warehouse.overwrite(target.name, decoded.select(*columns))

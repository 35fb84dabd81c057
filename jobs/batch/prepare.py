"""The tables of spaces before rows are written: created, or given the columns of a changed format.

Where columns change, the table is written anew from its exact tuples: what lay in `_extra` moves into its column,
and no reader needs column mapping. A table that only gains columns, and has nothing in `_extra`, gains them by a
change of metadata.

Where fields are masked, the table that readers see is made of the one with the exact tuples, and written anew wherever
its masks, or their key, are not those of its rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from jobs.batch.apply import Target, table_columns, typed
from jobs.batch.masks import PROPERTY, TUPLE_COLUMN
from schemas.layout import EXTRA_COLUMN
from tables import spaces
from tables.warehouse import Warehouse, in_parallel

log = logging.getLogger(__name__)


def prepare_tables(warehouse: Warehouse, targets: Sequence[Target]) -> None:
    """Create what is missing and bring changed tables into their new form."""
    in_parallel(lambda target: prepare_table(warehouse, target), targets)


def prepare_table(warehouse: Warehouse, target: Target) -> bool:
    """Do the same for one table; return whether a table that was there has changed."""
    exact = _prepare_exact(warehouse, target)
    return _prepare_masked(warehouse, target) or exact


def _prepare_exact(warehouse: Warehouse, target: Target) -> bool:
    wanted = spaces.table_schema(target.layout.spark_schema())
    table = target.exact
    if target.mask is not None and _has_tuples(warehouse, target.name):
        # It was not masked before, or a batch that did this was not finished: whatever lies there is not newer.
        spaces.create(warehouse, table, target.layout.spark_schema(), f"space {target.layout.space}")
        warehouse.overwrite(table, warehouse.read(target.name))
    elif not warehouse.exists(table):
        spaces.create(warehouse, table, target.layout.spark_schema(), f"space {target.layout.space}")
        return False
    present = spaces.columns_of(warehouse, table)
    if spaces.same_columns(present, wanted):
        return False
    rows = warehouse.read(table)
    if _only_added(present, wanted) and not rows.where(F.col(EXTRA_COLUMN).isNotNull()).limit(1).count():
        _add_columns(warehouse, table, present, wanted)
        return True
    log.warning("%s is written anew: its space has a new format", table)
    _rewrite(warehouse, target)
    return True


def _prepare_masked(warehouse: Warehouse, target: Target) -> bool:
    if target.mask is None:
        return False
    wanted, told = target.mask.schema(target.layout), target.mask.text()
    if not warehouse.exists(target.name):
        comment = f"space {target.layout.space}, masked"
        warehouse.create(target.name, wanted, comment)
        warehouse.set_property(target.name, PROPERTY, told)
        return False
    if spaces.same_columns(spaces.columns_of(warehouse, target.name), wanted) and told == warehouse.property(
        target.name, PROPERTY
    ):
        return False
    log.warning("%s is written anew: other fields of it are masked, or in another way", target.name)
    rows = warehouse.read(target.exact)
    shown = target.mask.columns({name: F.col(f"`{name}`") for name in rows.columns}, target.layout)
    warehouse.overwrite(target.name, rows.select(*[column.alias(name) for name, column in shown.items()]))
    warehouse.set_property(target.name, PROPERTY, told)
    return True


def _has_tuples(warehouse: Warehouse, table: str) -> bool:
    return warehouse.exists(table) and TUPLE_COLUMN in spaces.columns_of(warehouse, table).names


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
    rows = warehouse.read(target.exact)
    versions = rows.select(
        "_key",
        *(F.col(f"_{name}").alias(name) for name in ("tuple", "global_id", "replicaset_id", "lsn")),
        *(F.col(f"_{name}").alias(name) for name in ("timestamp", "created")),
        F.lit(None).cast("int").alias("layout"),
        F.lit(True).alias("put"),
    )
    decoded = typed(versions, target)
    columns = [column.alias(name) for name, column in table_columns(target).items()]
    warehouse.overwrite(target.exact, decoded.select(*columns))

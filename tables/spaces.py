"""The typed tables of spaces: creation, change of columns, and the one MERGE that a batch does.

Rows come decided and decoded; nothing is chosen here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from schemas.tables import VERSION_COLUMNS
from tables.warehouse import Warehouse
from tables.write import LENT


def table_schema(typed: StructType) -> StructType:
    """Return the schema of a space's table: its typed columns, then those of every space's table."""
    shared = [StructField(name, kind) for name, kind in VERSION_COLUMNS]
    return StructType([*typed.fields, *shared])


def create(warehouse: Warehouse, table: str, typed: StructType, comment: str) -> None:
    """Create a space's table."""
    warehouse.create(table, table_schema(typed), comment)


def columns_of(warehouse: Warehouse, table: str) -> StructType:
    """Return the columns that a table has."""
    columns = json.loads(warehouse.opened(table).schema().to_json())
    return StructType.fromJson(columns)


def same_columns(one: StructType, other: StructType) -> bool:
    """Whether two schemas have the same columns; order, comments and nullability do not count."""
    return {f.name: f.dataType for f in one} == {f.name: f.dataType for f in other}


def merge_rows(
    warehouse: Warehouse, table: str, changes: DataFrame, columns: Sequence[str], *, goes_on: bool
) -> None:
    """Write a batch's changes in one MERGE.

    Parameters
    ----------
    changes : DataFrame
        The table's columns and `tables.write.BESIDE`; one row a `_key`.
    columns : sequence of str
        The table's columns.
    goes_on : bool
        Whether a row that stays lends its `_created`, and its `_timestamp` where that is later, to its
        successor, unless `_began`.

    """
    target = DeltaTable.forPath(warehouse.writer, warehouse.path(table)).alias("t")
    values = {f"`{name}`": F.col(f"s.`{name}`") for name in columns}
    update = dict(values)
    if goes_on:
        for name, lent in LENT.items():
            update[f"`{name}`"] = F.when(~F.col("s._began"), F.expr(lent)).otherwise(F.col(f"s.{name}"))
    (
        target.merge(changes.alias("s"), "t._key = s._key")
        .whenMatchedUpdate(condition="s._keep", set=update)
        .whenMatchedDelete(condition="NOT s._keep")
        .whenNotMatchedInsert(condition="s._keep", values=values)
        .execute()
    )

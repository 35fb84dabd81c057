"""Finds rows that win their primary keys but violate a unique secondary index together.

Each replicaset keeps its own indexes unique; winners of two replicasets may still have equal keys in one. Tarantool
would stop replication; here the tables continue and both rows are reported. Keys compare by the rules of the index
(`udfs.keys.keys`); a tuple with a missing or nil part conflicts with nothing. Indexes that cannot be compared are
reported by name: a collation, a path over all elements, a function.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from config.deployment import Config
from observe.validation.check import EXAMPLES, Check, frame_of
from pipeline.plan.tables import TablePlan, current_table_plan
from pipeline.state import State
from schemas.errors import AggregatorError, TupleError, UnsupportedError
from schemas.names import table_of_exact_tuples
from schemas.space import Space, parts_of
from schemas.states import ConflictKind
from schemas.system_tuples import field_at, fields_of, text_of
from udfs.keys.keys import key_columns
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)

LIMIT = 1000
"""Maximum number of reported pairs of rows per index."""

TABLE = "_secondary_indexes"
"""Name of the suite."""

_SCHEMA = StructType(
    [StructField("table", StringType()), StructField("index", StringType()), StructField("pairs", LongType())]
)


@dataclass(frozen=True)
class UniqueIndex:
    """A unique secondary index of a space, in one or more replicasets.

    Parameters
    ----------
    table, name : str
        The index's name, and the space's table.
    spaces : mapping of int to Space
        Replicaset id to the space with the index's parts in place of its primary key.
    is_functional : bool
        Whether a function of the server computes the keys: its parts are not fields of the tuple.

    """

    table: str
    name: str
    spaces: Mapping[int, Space]
    is_functional: bool = False


def indexes_of(state: State) -> list[UniqueIndex]:
    """Return the unique secondary indexes of all spaces that have a table."""
    found: dict[tuple[str, str], dict[int, Space]] = {}
    functional: set[tuple[str, str]] = set()
    for replicaset in state.replicasets.values():
        for space_id, rows in replicaset.spaces.items():
            space, table = rows.decoded(), replicaset.tables.get(space_id)
            if table is None or table not in state.versions or space_id in replicaset.refused:
                continue
            for number, packed in sorted(rows.indexes.items()):
                if number == 0:
                    continue
                try:
                    index = fields_of(packed, "a row of _index")
                    options = field_at(index, 4, "its options")
                    options = options if isinstance(options, dict) else {}
                    names = (table, text_of(field_at(index, 2, "its name"), "its name"))
                    own = replace(space, primary_key=parts_of(index))
                except TupleError as error:
                    log.error("%s: index %d of replicaset %d is odd: %s", table, number, replicaset.id, error)
                    continue
                if options.get("unique", True):
                    found.setdefault(names, {})[replicaset.id] = own
                    if options.get("func"):
                        functional.add(names)
    return [UniqueIndex(*names, spaces, names in functional) for names, spaces in sorted(found.items())]


def format_column(plan: TablePlan) -> Column:
    """Return the number of the format of a version's tuple, by `replicaset_id`; null if there is none."""
    indexes = [F.lit(plan.formats.get(i)).cast("int") for i in range(max(plan.formats, default=0) + 1)]
    # For a merged tuple, the column is minus the id of the replicaset with its format.
    return F.get(F.array(*indexes), F.abs(F.col("replicaset_id")))


def broken(warehouse: Warehouse, state: State, config: Config, index: UniqueIndex) -> DataFrame:
    """Return pairs of rows with equal keys in an index, as rows of `_conflicts`; the later row wins.

    Raises
    ------
    UnsupportedError
        The index cannot be compared.

    """
    if index.is_functional:
        raise UnsupportedError("a function of the server makes its keys", table=index.table, index=index.name)
    plan = current_table_plan(state, config, index.table)
    if plan is None:
        raise UnsupportedError("no replicaset defines the space", table=index.table)
    places = {replicaset: i for i, replicaset in enumerate(index.spaces)}
    keys = key_columns(list(index.spaces.values()))
    held = table_of_exact_tuples(state.versions, index.table)
    rows = warehouse.read(held, state.versions[held]).withColumn("replicaset_id", F.abs("_replicaset_id"))
    layout = format_column(replace(plan, formats=places))
    keyed = rows.withColumn("index_key", keys(F.col("_tuple"), layout, F.lit(True)).getField("key"))
    same = Window.partitionBy("index_key").orderBy(
        F.col("_timestamp").desc_nulls_last(), F.col("_replicaset_id"), F.col("_key")
    )
    side = {"key": "_key", "tuple": "_tuple", "replicaset_id": "_replicaset_id", "global_id": "_global_id"}
    side |= {"lsn": "_lsn", "timestamp": "_timestamp"}
    first = F.first(F.struct(*[F.col(column).alias(name) for name, column in side.items()])).over(same)
    met = keyed.where(F.col("index_key").isNotNull()).withColumn("winner", first)
    met = met.where(F.col("winner.key") != F.col("_key"))
    names = ("replicaset_id", "global_id", "lsn", "timestamp", "tuple")
    return met.select(
        F.lit(index.table).alias("space"),
        F.col("_key").alias("key"),
        F.lit(ConflictKind.SECONDARY).alias("kind"),
        F.lit(index.name).alias("sequence"),
        *[F.col(f"winner.{name}").alias(f"winner_{name}") for name in names],
        *[F.col(side[name]).alias(f"loser_{name}") for name in names],
    )


@dataclass(frozen=True)
class IndexConflicts:
    """The result for all unique indexes.

    Parameters
    ----------
    rows : list of dict
        Rows of `_conflicts` that are not there yet.
    checked : tuple of (str, str)
        Table and name of each checked index.
    unchecked : dict of str to str
        `table.index` to the reason why it cannot be compared.

    """

    rows: list[dict[str, Any]]
    checked: tuple[tuple[str, str], ...]
    unchecked: dict[str, str]


def find(warehouse: Warehouse, state: State, config: Config) -> IndexConflicts:
    """Check the unique secondary indexes of all spaces."""
    rows: list[dict[str, Any]] = []
    unchecked = {}
    checked: list[tuple[str, str]] = []
    known = warehouse.read("_conflicts").where(F.col("kind") == ConflictKind.SECONDARY)
    columns = ["space", "key", "sequence", "winner_tuple", "loser_tuple"]
    for index in indexes_of(state):
        try:
            pairs = broken(warehouse, state, config, index).join(known.select(*columns), columns, "left_anti")
            rows += [row.asDict() for row in pairs.limit(LIMIT).collect()]
            checked.append((index.table, index.name))
        except AggregatorError as error:
            unchecked[f"{index.table}.{index.name}"] = str(error)
    return IndexConflicts([_plain(row) for row in rows], tuple(checked), unchecked)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.items()}


def index_check(spark: SparkSession, found: IndexConflicts) -> Check:
    """Return the check of all unique secondary indexes; a pair that is already in `_conflicts` does not fail it."""
    import great_expectations.expectations as gxe

    pairs = dict.fromkeys(found.checked, 0)
    for row in found.rows:
        pairs[row["space"], row["sequence"]] += 1
    rows = [{"table": table, "index": index, "pairs": count} for (table, index), count in pairs.items()]
    none = gxe.ExpectColumnValuesToBeInSet(
        column="pairs",
        value_set=[0],
        description="no two rows of two replicasets break a unique index together",
    )
    frame = frame_of(spark, rows, _SCHEMA)
    return Check(TABLE, frame, (none,), ("table", "index", "pairs"), {"pairs": partial(_pairs, found)})


def _pairs(found: IndexConflicts) -> list[str]:
    return [
        f"{row['space']}.{row['sequence']}: two rows with one key, {row['key'].hex()} lost"
        for row in found.rows[:EXAMPLES]
    ]

"""Finds pairs of rows in a table that have equal keys in a unique secondary index of the space.

Each replicaset keeps its indexes unique, but rows of two replicasets may have equal keys in an index. Tarantool would
stop replication; the aggregator has both rows in the table and reports the pair. Keys are compared by the rules of the
index (`udfs.keys.keys`); a tuple with a nil or absent part of the key conflicts with no other. Indexes that cannot be
compared are reported by name: indexes with a collation, a path over all elements of an array, or a function.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from config.deployment import Config
from observe.validation.check import MAX_EXAMPLES, Check, table_of_rows
from pipeline.plan.spaces.tables import TablePlan, current_table_plan
from pipeline.state import State
from schemas.errors import AggregatorError, TupleError, UnsupportedError
from schemas.names import table_of_exact_tuples
from schemas.space import Space, parts_of
from schemas.states import ConflictKind
from schemas.system_tuples import field_at, fields_of, text_of
from udfs.keys.keys import key_columns
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)

MAX_PAIRS_PER_INDEX = 1000
"""Maximum number of reported pairs of rows per index."""

SUITE_NAME = "_secondary_indexes"

_PAIR_COUNTS_SCHEMA = StructType(
    [StructField("table", StringType()), StructField("index", StringType()), StructField("pairs", LongType())]
)


@dataclass(frozen=True)
class UniqueIndex:
    """A unique secondary index of a space, in one or more replicasets."""

    table: str
    name: str
    """The space's table, and the name of the index."""
    space_by_replicaset: Mapping[int, Space]
    """By replicaset id: the definition of the space, with the parts of this index in place of its primary key."""
    is_functional: bool = False
    """Whether a Lua function of the server computes the keys, so that the parts are not fields of the tuple."""


def unique_indexes(state: State) -> list[UniqueIndex]:
    """Return the unique secondary indexes of all spaces that have a table."""
    by_index: dict[tuple[str, str], dict[int, Space]] = {}
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
                    keyed_space = replace(space, primary_key=parts_of(index))
                except TupleError as error:
                    log.error(
                        "%s: malformed index %d of replicaset %d: %s", table, number, replicaset.id, error
                    )
                    continue
                if options.get("unique", True):
                    by_index.setdefault(names, {})[replicaset.id] = keyed_space
                    if options.get("func"):
                        functional.add(names)
    return [UniqueIndex(*names, spaces, names in functional) for names, spaces in sorted(by_index.items())]


def format_index_column(plan: TablePlan) -> Column:
    """Return a column with the index of each row's tuple format, which the row's column `replicaset_id` determines."""
    indexes = [
        F.lit(plan.format_indices.get(i)).cast("int") for i in range(max(plan.format_indices, default=0) + 1)
    ]
    # For a merged tuple, the column is minus the id of the replicaset with its format.
    return F.get(F.array(*indexes), F.abs(F.col("replicaset_id")))


def conflicting_row_pairs(
    warehouse: Warehouse, state: State, config: Config, index: UniqueIndex
) -> DataFrame:
    """Return the pairs of rows with equal keys in an index, as rows of `_conflicts`; the later row is the winner."""
    if index.is_functional:
        raise UnsupportedError("a Lua function computes its keys", table=index.table, index=index.name)
    plan = current_table_plan(state, config, index.table)
    if plan is None:
        raise UnsupportedError("no replicaset defines the space", table=index.table)
    formats = {replicaset: i for i, replicaset in enumerate(index.space_by_replicaset)}
    keys = key_columns(list(index.space_by_replicaset.values()))
    exact = table_of_exact_tuples(state.versions, index.table)
    rows = warehouse.read(exact, state.versions[exact]).withColumn("replicaset_id", F.abs("_replicaset_id"))
    format_number = format_index_column(replace(plan, format_indices=formats))
    keyed = rows.withColumn("index_key", keys(F.col("_tuple"), format_number, F.lit(True)).getField("key"))
    same_key = Window.partitionBy("index_key").orderBy(
        F.col("_timestamp").desc_nulls_last(), F.col("_replicaset_id"), F.col("_key")
    )
    columns = {"key": "_key", "tuple": "_tuple", "replicaset_id": "_replicaset_id", "global_id": "_global_id"}
    columns |= {"lsn": "_lsn", "timestamp": "_timestamp"}
    row = F.struct(*[F.col(column).alias(name) for name, column in columns.items()])
    pairs = keyed.where(F.col("index_key").isNotNull()).withColumn("winner", F.first(row).over(same_key))
    pairs = pairs.where(F.col("winner.key") != F.col("_key"))
    names = ("replicaset_id", "global_id", "lsn", "timestamp", "tuple")
    return pairs.select(
        F.lit(index.table).alias("space"),
        F.col("_key").alias("key"),
        F.lit(ConflictKind.SECONDARY).alias("kind"),
        F.lit(index.name).alias("sequence"),
        *[F.col(f"winner.{name}").alias(f"winner_{name}") for name in names],
        *[F.col(columns[name]).alias(f"loser_{name}") for name in names],
    )


@dataclass(frozen=True)
class IndexConflicts:
    """The pairs of rows with equal keys in the unique indexes of all spaces."""

    conflict_rows: list[dict[str, Any]]
    """New rows for `_conflicts`, one for each pair that `_conflicts` does not have yet."""
    checked_indexes: tuple[tuple[str, str], ...]
    reason_by_unchecked_index: dict[str, str]
    """By `<table>.<index>` of each index that cannot be checked: the reason."""


def find_index_conflicts(
    open_warehouse: Callable[[], Warehouse], state: State, config: Config
) -> IndexConflicts:
    """Check the unique secondary indexes of all spaces; return pairs of rows that `_conflicts` does not have yet."""
    rows: list[dict[str, Any]] = []
    reason_by_unchecked_index: dict[str, str] = {}
    checked_indexes: list[tuple[str, str]] = []
    indexes = unique_indexes(state)
    if not indexes:
        return IndexConflicts([], (), {})
    warehouse = open_warehouse()
    known = warehouse.read("_conflicts").where(F.col("kind") == ConflictKind.SECONDARY)
    columns = ["space", "key", "sequence", "winner_tuple", "loser_tuple"]
    for index in indexes:
        try:
            pairs = conflicting_row_pairs(warehouse, state, config, index).join(
                known.select(*columns), columns, "left_anti"
            )
            rows += [row.asDict() for row in pairs.limit(MAX_PAIRS_PER_INDEX).collect()]
            checked_indexes.append((index.table, index.name))
        except AggregatorError as error:
            reason_by_unchecked_index[f"{index.table}.{index.name}"] = str(error)
    return IndexConflicts(
        [_with_bytes(row) for row in rows], tuple(checked_indexes), reason_by_unchecked_index
    )


def _with_bytes(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.items()}


def index_check(conflicts: IndexConflicts) -> Check:
    """Return the check that no unique secondary index has new pairs of rows with equal keys."""
    import great_expectations.expectations as gxe

    pairs = dict.fromkeys(conflicts.checked_indexes, 0)
    for row in conflicts.conflict_rows:
        pairs[row["space"], row["sequence"]] += 1
    rows = [{"table": table, "index": index, "pairs": count} for (table, index), count in pairs.items()]
    no_pairs = gxe.ExpectColumnValuesToBeInSet(
        column="pairs",
        value_set=[0],
        description="no two rows of two replicasets break a unique index together",
    )
    return Check(
        SUITE_NAME,
        table_of_rows(rows, _PAIR_COUNTS_SCHEMA),
        (no_pairs,),
        ("table", "index", "pairs"),
        {"pairs": partial(_pair_texts, conflicts)},
    )


def _pair_texts(conflicts: IndexConflicts) -> list[str]:
    return [
        f"{row['space']}.{row['sequence']}: two rows with one key, {row['key'].hex()} lost"
        for row in conflicts.conflict_rows[:MAX_EXAMPLES]
    ]

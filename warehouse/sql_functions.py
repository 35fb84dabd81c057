"""Functions for SQL on a warehouse's tables and on `format("xlog")`, for any Spark session.

    from warehouse.sql_functions import register_functions

    register_functions(spark, "/data/warehouse", "aggregator")

They are Arrow UDFs, and temporary: of the session. The facts of the warehouse (global ids, names of fields) are those
at the time of the call; register again after instances or spaces were added.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, LongType, StringType

from schemas.errors import RidError
from udfs.buffers import arrow_column_function
from udfs.remap.replica_ids import UNKNOWN_INSTANCE, IdEntry, remap_rows
from udfs.rid.comparison import compare
from udfs.rid.value import parse_rid
from udfs.tuples.json_columns import FieldNumbers, msgpack_json, tuple_fields, tuple_json
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.read import newest_of_each, rows_of
from warehouse.system_tables import applier_map, cluster, schema

_FORMAT_FIELD = 6
"""The index of the format in a row of `_space` (`src/box/schema_def.h`, `BOX_SPACE_FIELD_FORMAT`)."""


@dataclass(frozen=True)
class SqlFacts:
    """What the functions know of a warehouse."""

    id_entries: dict[str, list[IdEntry]] = field(default_factory=dict)
    """The applier map of each replicaset, by its uuid."""
    field_numbers: FieldNumbers = field(default_factory=dict)


def sql_facts(location: WarehouseLocation) -> SqlFacts:
    """Read what the functions need of a warehouse; a warehouse without tables has no facts."""
    opened = {name: location.open(name) for name in (cluster.TABLE, applier_map.TABLE, schema.TABLE)}
    members, maps, spaces = opened.values()
    if members is None or maps is None or spaces is None:
        return SqlFacts()
    known = cluster.cluster_in(members)
    uuids = {one.replicaset_id: one.replicaset_uuid for one in known.members.values()}
    entries = {
        uuids[number]: [
            IdEntry(one.local_id, one.since_lsn, one.global_id) for one in rows if one.source is None
        ]
        for number, rows in applier_map.rows_by_replicaset(rows_of(maps), known).items()
        if number in uuids
    }
    numbers: dict[str, dict[str, int]] = {}
    for row in newest_of_each(spaces, ("replicaset_id", "space_id")):
        if row["table_name"] is not None and row["space_tuple"] is not None:
            form = msgpack.unpackb(row["space_tuple"], strict_map_key=False)[_FORMAT_FIELD]
            names = {one["name"]: index for index, one in enumerate(form) if isinstance(one, dict)}
            numbers[row["table_name"]] = {**names, **numbers.get(row["table_name"], {})}
    return SqlFacts(entries, numbers)


def global_ids(
    replicasets: pa.Array, replica_ids: pa.Array, lsns: pa.Array, entries: dict[str, list[IdEntry]]
) -> pa.Array:
    """Return the global id of the instance that wrote each row; null if it is not known."""
    found = np.full(len(replicasets), UNKNOWN_INSTANCE, np.int64)
    ids = replica_ids.fill_null(0).to_numpy(zero_copy_only=False)
    numbers = lsns.fill_null(0).to_numpy(zero_copy_only=False)
    names = pc.utf8_lower(replicasets)
    for uuid in pc.unique(names).to_pylist():
        if uuid in entries:
            own = pc.fill_null(pc.equal(names, uuid), False).to_numpy(zero_copy_only=False)
            found[own] = remap_rows(ids[own], numbers[own], entries[uuid])
    return pa.array(found, mask=found == UNKNOWN_INSTANCE)


def rid_verdict(a: str | None, b: str | None) -> str | None:
    """Compare two RIDs: `same`, `sync from a`, `sync from b`, `split_brain`, `unrelated`; None if one is none."""
    if a is None or b is None:
        return None
    try:
        found = compare(parse_rid(a), parse_rid(b))
    except RidError:
        return None
    return found.verdict.value if found.source is None else f"{found.verdict.value} from {found.source}"


def register_functions(
    spark: SparkSession, warehouse: str | None = None, database: str = "aggregator"
) -> None:
    """Register all functions in a session's SQL: `SQL_FUNCTIONS`.

    Args:
        warehouse: The folder or URI of the warehouse. Without it, `global_id` is always null, and `tuple_field` knows
            no space.
    """
    facts = SqlFacts() if warehouse is None else sql_facts(location_of(warehouse, database))

    # A NULL in the statement has a type of its own: each argument is cast to the type that its function takes.
    def global_id(replicaset: pa.Array, replica_id: pa.Array, lsn: pa.Array) -> pa.Array:
        numbers = (replica_id.cast(pa.int32()), lsn.cast(pa.int64()))
        return global_ids(replicaset.cast(pa.string()), *numbers, facts.id_entries)

    def of_value(value: pa.Array) -> pa.Array:
        return msgpack_json(value.cast(pa.binary()))

    def of_tuple(data: pa.Array) -> pa.Array:
        return tuple_json(data.cast(pa.binary()))

    def of_field(data: pa.Array, table: pa.Array, name: pa.Array) -> pa.Array:
        names = (table.cast(pa.string()), name.cast(pa.string()))
        return tuple_fields(data.cast(pa.binary()), *names, facts.field_numbers)

    def of_rids(a: pa.Array, b: pa.Array) -> pa.Array:
        return pa.array(map(rid_verdict, a.to_pylist(), b.to_pylist()), pa.string())

    functions: dict[str, tuple[Callable[..., pa.Array], DataType]] = {
        "global_id": (global_id, LongType()),
        "msgpack_json": (of_value, StringType()),
        "tuple_json": (of_tuple, StringType()),
        "key_json": (of_tuple, StringType()),
        "tuple_field": (of_field, StringType()),
        "rid_compare": (of_rids, StringType()),
    }
    assert set(functions) == set(SQL_FUNCTIONS)
    for name, (function, kind) in functions.items():
        spark.udf.register(name, arrow_column_function(function, kind))


SQL_FUNCTIONS = {
    "global_id": (
        "(replicaset string, replica_id int, lsn bigint) → bigint: the instance that wrote a row; NULL if unknown"
    ),
    "msgpack_json": "(value binary) → string: any MessagePack value as JSON; NULL if it is none",
    "tuple_json": "(tuple binary) → string: a tuple as a JSON array, also `operations`",
    "key_json": "(key binary) → string: a canonical key, or a key of the log, as a JSON array",
    "tuple_field": (
        "(tuple binary, table string, field string) → string: a field of an exact tuple as JSON, by its "
        "name in the newest format"
    ),
    "rid_compare": "(a string, b string) → string: same, sync from a, sync from b, split_brain or unrelated",
}
"""The functions, with their types and results. All are null where an argument is null, or is not what it must be."""

"""What two warehouses hold, compared by DuckDB row by row: the same, whatever their files look like.

Left out is what tells of the way rather than of the rows: the clock of the writer, the uuid that a warehouse gives
itself, and the books of batches and requests. Read without Spark, at any location that `warehouse.delta.location`
opens.
"""

import duckdb
import pyarrow as pa

from warehouse.delta.location import WarehouseLocation
from warehouse.delta.read import rows_of

OF_THE_WAY = {"_epochs", "_requests", "_rid"}
CLOCKS = ("first_seen", "expelled_at", "found_at", "decided_at")
OWN = "aggregator"
"""The replicaset of a warehouse's own row in `_cluster`."""


def contents(location: WarehouseLocation) -> dict[str, pa.Table]:
    """Return the tables of a warehouse that tell of rows, by name."""
    own = _own(location)
    return {name: _comparable(location, name, own) for name in location.tables() if name not in OF_THE_WAY}


def differences(one: dict[str, pa.Table], other: dict[str, pa.Table]) -> dict[str, int]:
    """Return for each table how many rows only one of the two has; tables that are equal are left out.

    Both must have the same tables, with the same columns.
    """
    assert one.keys() == other.keys()
    assert {n: one[n].schema for n in one} == {n: other[n].schema for n in other}
    counts = {name: _differing(one[name], other[name]) for name in one}
    return {name: count for name, count in counts.items() if count}


def _differing(one: pa.Table, other: pa.Table) -> int:
    with duckdb.connect() as session:
        session.register("one", one)
        session.register("other", other)
        only = "(SELECT * FROM {} EXCEPT ALL SELECT * FROM {})"
        both = f"{only.format('one', 'other')} UNION ALL {only.format('other', 'one')}"
        ((count,),) = session.execute(f"SELECT count(*) FROM ({both})").fetchall()
    return int(count)


def _own(location: WarehouseLocation) -> str:
    cluster = location.open("_cluster")
    assert cluster is not None
    (own,) = (row["uuid"] for row in rows_of(cluster) if row["replicaset_uuid"] == OWN)
    return str(own)


def _comparable(location: WarehouseLocation, name: str, own: str) -> pa.Table:
    opened = location.open(name)
    assert opened is not None
    table = opened.to_pyarrow_table()
    table = table.drop_columns([column for column in CLOCKS if column in table.column_names])
    return _without_own(table, own)


def _without_own(table: pa.Table, own: str) -> pa.Table:
    """Return a table without the uuid of the warehouse, and without the tuples and times of its own rows."""
    uuid = next((name for name in ("uuid", "instance_uuid") if name in table.column_names), None)
    if uuid is None:
        return table
    hidden = [name for name in (uuid, "timestamp", "tuple") if name in table.column_names]
    columns = ", ".join(f'CASE WHEN {uuid} = $1 THEN NULL ELSE "{name}" END AS "{name}"' for name in hidden)
    with duckdb.connect() as session:
        session.execute("SET TimeZone = 'UTC'")
        session.register("contents", table)
        return session.sql(f"SELECT * REPLACE ({columns}) FROM contents", params=[own]).to_arrow_table()

"""Rows of the driver become one commit of a system table, which says whose it is."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from schemas.errors import WarehouseError
from schemas.tables import SYSTEM_TABLES
from warehouse.delta import write
from warehouse.delta.commit_actions import USER_METADATA
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.read import newest_of_each, rows_of

VALUES: dict[pa.DataType, Any] = {
    pa.int32(): -(2**31),
    pa.int64(): 2**63 - 1,
    pa.string(): "Ünïcode '\"",
    pa.binary(): b"\x00\xff",
    pa.bool_(): False,
    pa.timestamp("us", tz="UTC"): datetime(2026, 11, 20, 1, 2, 3, 456789, UTC),
    pa.list_(pa.field("element", pa.string())): ["one", "two"],
    pa.list_(pa.field("element", pa.int32())): [-(2**31), 2**31 - 1],
    pa.map_(pa.string(), pa.int64()): [("a", 1), ("b", None)],
    pa.map_(pa.int32(), pa.binary()): [(0, b"\xc1"), (1, None)],
}


@pytest.fixture
def location(tmp_path: Path) -> WarehouseLocation:
    return location_of(str(tmp_path))


@pytest.mark.parametrize("table", SYSTEM_TABLES)
def test_rows_come_back_as_they_were(location: WarehouseLocation, table: str) -> None:
    write.create(location, table, SYSTEM_TABLES[table])
    whole = {field.name: VALUES[field.type] for field in write.schema_of(table)}
    write.append(location, table, write.arrow_rows(table, [whole, {}]))
    write.create(location, table, SYSTEM_TABLES[table])  # one that is there stays
    write.append(location, table, write.arrow_rows(table, []))
    opened = DeltaTable(location.uri(table))
    found = rows_of(opened)
    assert sorted(found, key=lambda row: row == whole) == [dict.fromkeys(whole), whole]
    commits = opened.history()
    assert [commit["userMetadata"] for commit in commits] == [USER_METADATA] * len(commits)
    assert opened.version() == 2


def test_the_columns_may_come_in_any_order_and_another_zone(location: WarehouseLocation) -> None:
    write.create(location, "_gaps", SYSTEM_TABLES["_gaps"])
    row = {"epoch": 7, "found_at": datetime(2026, 11, 20, tzinfo=UTC), "kind": "missing"}
    rows = write.arrow_rows("_gaps", [row])
    at = rows["found_at"].cast(pa.timestamp("us", tz="Europe/Berlin"))
    turned = rows.set_column(rows.schema.get_field_index("found_at"), "found_at", at)
    write.append(location, "_gaps", turned.select(turned.column_names[::-1]))
    (found,) = rows_of(DeltaTable(location.uri("_gaps")))
    assert {name: found[name] for name in row} == row


def test_a_table_that_is_not_there_is_an_error(location: WarehouseLocation) -> None:
    with pytest.raises(WarehouseError, match=r"the table is not there.*_gaps"):
        write.append(location, "_gaps", write.arrow_rows("_gaps", [{"epoch": 1}]))


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_rows_with_other_columns_than_the_table_are_refused(location: WarehouseLocation, change: str) -> None:
    write.create(location, "_gaps", SYSTEM_TABLES["_gaps"])
    rows = write.arrow_rows("_gaps", [{"epoch": 1}])
    other = rows.drop_columns(["kind"]) if change == "missing" else rows.append_column("new", rows["kind"])
    with pytest.raises(
        WarehouseError, match=f"not have the table's columns.*{'kind' if change == 'missing' else 'new'}"
    ):
        write.append(location, "_gaps", other)
    assert rows_of(DeltaTable(location.uri("_gaps"))) == []


def test_the_newest_row_of_each_key_is_found_where_keys_are_null(location: WarehouseLocation) -> None:
    write.create(location, "_vclock", SYSTEM_TABLES["_vclock"])
    entries = [(1, None, 10, 0), (1, None, 30, 2), (1, None, 20, 1), (2, 5, 7, 9), (None, None, 8, 0)]
    rows = [
        {"replicaset_id": one, "local_id": local, "lsn": lsn, "epoch": epoch}
        for one, local, lsn, epoch in entries
    ]
    for row in rows:
        write.append(location, "_vclock", write.arrow_rows("_vclock", [row]))
    found = newest_of_each(DeltaTable(location.uri("_vclock")), ("replicaset_id", "local_id"))
    assert sorted(row["lsn"] for row in found) == [7, 8, 30]
    assert all(set(row) == set(write.schema_of("_vclock").names) for row in found)

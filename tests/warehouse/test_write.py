"""Rows of the driver become one commit of a system table, which says whose it is."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from schemas.errors import WarehouseError
from schemas.tables import SYSTEM_TABLES
from warehouse import write
from warehouse.place import Place, place_of
from warehouse.read import newest_of_each, rows_of

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
def place(tmp_path: Path) -> Place:
    return place_of(str(tmp_path))


@pytest.mark.parametrize("table", SYSTEM_TABLES)
def test_rows_come_back_as_they_were(place: Place, table: str) -> None:
    write.create(place, table, SYSTEM_TABLES[table])
    whole = {field.name: VALUES[field.type] for field in write.schema_of(table)}
    write.append(place, table, write.arrow_rows(table, [whole, {}]))
    write.create(place, table, SYSTEM_TABLES[table])  # one that is there stays
    write.append(place, table, write.arrow_rows(table, []))
    opened = DeltaTable(place.uri(table))
    found = rows_of(opened)
    assert sorted(found, key=lambda row: row == whole) == [dict.fromkeys(whole), whole]
    commits = opened.history()
    assert [commit["userMetadata"] for commit in commits] == [write.MARK] * len(commits)
    assert opened.version() == 2


def test_the_columns_may_come_in_any_order_and_another_zone(place: Place) -> None:
    write.create(place, "_gaps", SYSTEM_TABLES["_gaps"])
    row = {"epoch": 7, "found_at": datetime(2026, 11, 20, tzinfo=UTC), "kind": "missing"}
    rows = write.arrow_rows("_gaps", [row])
    at = rows["found_at"].cast(pa.timestamp("us", tz="Europe/Berlin"))
    turned = rows.set_column(rows.schema.get_field_index("found_at"), "found_at", at)
    write.append(place, "_gaps", turned.select(turned.column_names[::-1]))
    (found,) = rows_of(DeltaTable(place.uri("_gaps")))
    assert {name: found[name] for name in row} == row


def test_a_table_that_is_not_there_is_an_error(place: Place) -> None:
    with pytest.raises(WarehouseError, match=r"the table is not there.*_gaps"):
        write.append(place, "_gaps", write.arrow_rows("_gaps", [{"epoch": 1}]))


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_rows_with_other_columns_than_the_table_are_refused(place: Place, change: str) -> None:
    write.create(place, "_gaps", SYSTEM_TABLES["_gaps"])
    rows = write.arrow_rows("_gaps", [{"epoch": 1}])
    other = rows.drop_columns(["kind"]) if change == "missing" else rows.append_column("new", rows["kind"])
    with pytest.raises(
        WarehouseError, match=f"not have the table's columns.*{'kind' if change == 'missing' else 'new'}"
    ):
        write.append(place, "_gaps", other)
    assert rows_of(DeltaTable(place.uri("_gaps"))) == []


def test_the_newest_row_of_each_key_is_found_where_keys_are_null(place: Place) -> None:
    write.create(place, "_vclock", SYSTEM_TABLES["_vclock"])
    entries = [(1, None, 10, 0), (1, None, 30, 2), (1, None, 20, 1), (2, 5, 7, 9), (None, None, 8, 0)]
    rows = [
        {"replicaset_id": one, "local_id": local, "lsn": lsn, "epoch": epoch}
        for one, local, lsn, epoch in entries
    ]
    for row in rows:
        write.append(place, "_vclock", write.arrow_rows("_vclock", [row]))
    found = newest_of_each(DeltaTable(place.uri("_vclock")), ("replicaset_id", "local_id"))
    assert sorted(row["lsn"] for row in found) == [7, 8, 30]
    assert all(set(row) == set(write.schema_of("_vclock").names) for row in found)

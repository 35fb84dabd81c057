"""What an unfinished batch left is rolled back once; what others committed is not touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from schemas.errors import WarehouseError
from warehouse.delta.read import rows_of
from warehouse.system_tables.epochs import roll_back
from warehouse.warehouse import Warehouse


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    made = Warehouse(None, str(tmp_path))
    made.create_system_tables()
    return made


def test_a_table_is_rolled_back_once(warehouse: Warehouse) -> None:
    warehouse.append_rows("_schema", [{"epoch": 0, "name": "unfinished"}])
    assert roll_back(warehouse, None) == ["_schema"]
    assert rows_of(warehouse.opened("_schema")) == []
    version = warehouse.version("_schema")
    assert roll_back(warehouse, None) == []
    assert warehouse.version("_schema") == version
    warehouse.append_rows("_schema", [{"epoch": 0, "name": "unfinished again"}])
    assert roll_back(warehouse, None) == ["_schema"]
    assert rows_of(warehouse.opened("_schema")) == []


def test_ids_that_were_given_stay_given(warehouse: Warehouse) -> None:
    warehouse.append_rows("_cluster", [{"global_id": 1, "uuid": "a"}])
    assert roll_back(warehouse, None) == []
    assert len(rows_of(warehouse.opened("_cluster"))) == 1


def test_a_commit_of_others_behind_an_unfinished_batch_is_an_error(warehouse: Warehouse) -> None:
    warehouse.append_rows("_schema", [{"epoch": 0, "name": "unfinished"}])
    opened = DeltaTable(warehouse.location.uri("_schema"))
    write_deltalake(opened, opened.to_pyarrow_table().slice(0, 1), mode="append")
    with pytest.raises(
        WarehouseError, match="commit 2 is not the aggregator's and follows an unfinished batch"
    ):
        roll_back(warehouse, None)

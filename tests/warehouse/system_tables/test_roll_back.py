"""What an unfinished batch left is rolled back once; what others committed is not touched."""

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from schemas.errors import ForeignChangeError
from tests.warehouse.vectors import delete_rows
from warehouse.delta.read import rows_of
from warehouse.delta.table_files import active_files
from warehouse.system_tables.epochs import Epoch, roll_back
from warehouse.warehouse import Warehouse

NO_EPOCH = Epoch(0, "q", 0, {}, {}, {}, None)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    made = Warehouse(None, str(tmp_path))
    made.create_system_tables()
    return made


def test_a_table_is_rolled_back_once(warehouse: Warehouse) -> None:
    warehouse.append_rows("_schema", [{"epoch": 0, "name": "unfinished"}])
    assert roll_back(warehouse, None).undone == ("_schema",)
    assert rows_of(warehouse.opened("_schema")) == []
    version = warehouse.version("_schema")
    assert roll_back(warehouse, None).undone == ()
    assert warehouse.version("_schema") == version
    warehouse.append_rows("_schema", [{"epoch": 0, "name": "unfinished again"}])
    assert roll_back(warehouse, None).undone == ("_schema",)
    assert rows_of(warehouse.opened("_schema")) == []


def test_ids_that_were_given_stay_given(warehouse: Warehouse) -> None:
    warehouse.append_rows("_cluster", [{"global_id": 1, "uuid": "a"}])
    assert roll_back(warehouse, None).undone == ()
    assert len(rows_of(warehouse.opened("_cluster"))) == 1


def test_a_commit_of_others_behind_an_unfinished_batch_is_an_error_until_it_is_taken_back(
    warehouse: Warehouse,
) -> None:
    warehouse.append_rows("_schema", [{"epoch": 0, "name": "unfinished"}])
    opened = DeltaTable(warehouse.location.uri("_schema"))
    write_deltalake(opened, opened.to_pyarrow_table().slice(0, 1), mode="append")
    with pytest.raises(ForeignChangeError, match=r"version 2, WRITE.*changes rows.*TO VERSION AS OF 0"):
        roll_back(warehouse, None)
    DeltaTable(warehouse.location.uri("_schema")).restore(0)
    assert roll_back(warehouse, None).undone == ()
    assert rows_of(warehouse.opened("_schema")) == []


def test_a_compaction_of_others_behind_an_unfinished_batch_is_rolled_back_with_it(
    warehouse: Warehouse,
) -> None:
    for name in ("one", "other"):
        warehouse.append_rows("_schema", [{"epoch": 0, "name": name}])
    DeltaTable(warehouse.location.uri("_schema")).optimize.compact()
    assert roll_back(warehouse, None).undone == ("_schema",)
    assert rows_of(warehouse.opened("_schema")) == []


def test_deletion_vectors_of_an_unfinished_batch_are_rolled_back(warehouse: Warehouse) -> None:
    warehouse.append_rows("_schema", [{"epoch": 0, "name": name} for name in ("a", "b", "c")])

    def delete(name: str) -> int:
        return delete_rows(
            warehouse.location, "_schema", lambda rows: [one == name for one in rows["name"].to_pylist()]
        )

    kept = replace(NO_EPOCH, versions={"_schema": delete("a")})
    delete("b")
    assert roll_back(warehouse, kept).undone == ("_schema",)
    assert sorted(row["name"] for row in rows_of(warehouse.opened("_schema"))) == ["b", "c"]
    assert [file.rows for file in active_files(warehouse.opened("_schema"))] == [2]
    assert roll_back(warehouse, kept).undone == ()

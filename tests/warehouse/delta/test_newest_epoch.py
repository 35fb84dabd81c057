"""The cut that the newest epoch names, read from real Delta tables without Spark."""

from pathlib import Path

import pytest

from schemas.errors import WarehouseError
from tests.warehouse.warehouses import Made
from warehouse.delta.location import location_of
from warehouse.delta.newest_epoch import NO_EPOCH, TableVersions, last_epoch, newest_versions


def test_a_location_that_is_not_there_has_none(tmp_path: Path) -> None:
    location = location_of(str(tmp_path / "nowhere"))
    assert last_epoch(location) == NO_EPOCH
    assert newest_versions(location) == TableVersions()
    assert location.tables() == []


def test_before_the_first_epoch_the_tables_are_as_they_were_made(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.create()
    assert newest_versions(made.location) == TableVersions(
        -1, {"_changelog": 0, "_cluster": 0, "_epochs": 0, "_quarantine": 0}
    )


def test_the_newest_epoch_names_the_versions(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.create()
    for number in range(4):
        made.batch(str(number), "accounts")
    made.write("_cluster", "an id that was given")
    made.write("_changelog", "a batch in the making")
    made.write("ledger", "a table in the making")
    (made.folder / "notes").mkdir()
    assert last_epoch(made.location) == 3
    assert newest_versions(made.location) == TableVersions(
        3, {"_changelog": 4, "_cluster": 1, "_epochs": 4, "_quarantine": 0, "accounts": 3}
    )


@pytest.mark.parametrize("address", ["{0}", "{0}/", "file://{0}", "{0}/aggregator.db", "{0}/aggregator.db/"])
def test_the_folder_of_a_warehouse_and_that_of_its_database_are_one_location(
    tmp_path: Path, address: str
) -> None:
    location = location_of(address.format(tmp_path))
    assert location.root == str(tmp_path / "aggregator.db")
    assert location.at("a", "b") == str(tmp_path / "aggregator.db" / "a" / "b")


def test_another_database(tmp_path: Path) -> None:
    assert location_of(str(tmp_path), "other").root == str(tmp_path / "other.db")


def test_a_store_that_only_spark_opens_is_refused_by_name() -> None:
    with pytest.raises(WarehouseError, match=r"no warehouse can be opened at dbfs:// without Spark"):
        location_of("dbfs:/data/warehouse")

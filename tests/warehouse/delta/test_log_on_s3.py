"""Tables on an object store whose logs lose commits: a start names them, and no commit is made after a lost one."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from schemas.errors import WarehouseError
from tests.sources.s3 import Store, installed
from warehouse.delta.commits import OpenTables
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.log_files import commit_path
from warehouse.system_tables.table_differences import TableState, compare_table

pytestmark = [pytest.mark.soak, installed]

COMMITS = 6


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WarehouseLocation]:
    with Store(tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        found = location_of("s3a://lake/warehouse")
        for number in range(COMMITS):
            write_deltalake(found.uri("hit"), pa.table({"id": [number]}), mode="append")
        yield found


def lose(location: WarehouseLocation, version: int) -> None:
    location.fs.delete_file(location.at("hit", commit_path(version)))


def state(location: WarehouseLocation, version: int = COMMITS - 1) -> TableState:
    return compare_table(location, "hit", version).state


@pytest.mark.parametrize("checkpoint", [False, True])
def test_each_hole_after_the_checkpoint_is_named(location: WarehouseLocation, checkpoint: bool) -> None:
    assert state(location) is TableState.EQUAL
    if checkpoint:
        DeltaTable(location.uri("hit")).create_checkpoint()
        for number in range(COMMITS):
            write_deltalake(location.uri("hit"), pa.table({"id": [number]}), mode="append")
        lose(location, COMMITS - 3)  # before the checkpoint
        assert state(location, 2 * COMMITS - 1) is TableState.EQUAL
    last = DeltaTable(location.uri("hit")).version()
    lose(location, last - 3)
    found = compare_table(location, "hit", last)
    assert found.state is TableState.LOST
    assert found.text == f"the log of the table lacks its version {last - 3}, but has later ones"
    with pytest.raises(WarehouseError, match=found.text):
        location.open("hit")


def test_no_commit_is_made_after_a_lost_one(location: WarehouseLocation) -> None:
    tables = OpenTables(location)
    tables.open("hit")
    lose(location, COMMITS - 1)
    with pytest.raises(WarehouseError, match=f"version {COMMITS - 1} of the table is not there any more"):
        tables.put_changes("hit", [])
    assert DeltaTable(location.uri("hit")).version() == COMMITS - 2

"""The log of a table: the same live files as delta-rs shows, and commits that nobody else can be in front of."""

import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from schemas.errors import WarehouseError
from warehouse.delta import deletion_vectors as vectors
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.log_commit import VersionTakenError, put_commit
from warehouse.delta.table_log import read_commit, read_log

TABLE = "numbers"


@pytest.fixture
def location(tmp_path: Path) -> WarehouseLocation:
    found = location_of(str(tmp_path / "w.db"))
    for part in range(3):
        rows = pa.table({"id": pa.array(range(part * 10, part * 10 + 10), pa.int64())})
        write_deltalake(found.uri(TABLE), rows, mode="append", configuration={"delta.appendOnly": "false"})
    return found


def enable_vectors(location: WarehouseLocation) -> None:
    state = read_log(location, TABLE)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [vectors.FEATURE],
        "writerFeatures": [vectors.FEATURE, "appendOnly", "invariants"],
    }
    put_commit(location, TABLE, state.version + 1, [{"protocol": protocol}])


def delete_rows(location: WarehouseLocation, path: str, rows: list[int]) -> None:
    state, name = read_log(location, TABLE), uuid.uuid4()
    content, (descriptor,) = vectors.encode_file(name, [vectors.bitmap_of(np.array(rows, np.int64))])
    Path(location.at(TABLE, vectors.file_name(name))).write_bytes(content)
    old = state.adds[path]
    remove = {
        "path": path,
        "deletionTimestamp": 0,
        "dataChange": True,
        "size": old["size"],
        "partitionValues": {},
    }
    if "deletionVector" in old:
        remove["deletionVector"] = old["deletionVector"]
    add = {**old, "deletionVector": descriptor.as_action()}
    put_commit(location, TABLE, state.version + 1, [{"remove": remove}, {"add": add}])


def ids_of(location: WarehouseLocation) -> list[int]:
    table = DeltaTable(location.uri(TABLE))
    found = pa.table(QueryBuilder().register("t", table).execute("select id from t").read_all())
    return sorted(found["id"].to_pylist())


def paths_of(location: WarehouseLocation) -> set[str]:
    table = DeltaTable(location.uri(TABLE))
    return set(pa.table(table.get_add_actions(flatten=True))["path"].to_pylist())


def test_the_live_files_are_those_of_delta_rs_after_each_kind_of_commit(location: WarehouseLocation) -> None:
    table = DeltaTable(location.uri(TABLE))
    changes: list[Any] = [
        lambda: table.delete("id < 3"),
        table.optimize.compact,
        lambda: table.alter.set_table_properties({"delta.checkpointInterval": "10"}),
        table.create_checkpoint,
        lambda: table.restore(2),
        lambda: write_deltalake(table, pa.table({"id": pa.array([99], pa.int64())}), mode="overwrite"),
    ]
    for change in changes:
        change()
        table.update_incremental()
        state = read_log(location, TABLE)
        assert state.version == table.version()
        assert set(state.adds) == paths_of(location)
    assert set(read_log(location, TABLE, 2).adds) == set(
        pa.table(DeltaTable(location.uri(TABLE), version=2).get_add_actions(flatten=True))["path"].to_pylist()
    )


def test_a_file_with_a_vector_has_it_also_after_a_checkpoint(location: WarehouseLocation) -> None:
    enable_vectors(location)
    path = sorted(paths_of(location))[0]
    before = ids_of(location)
    delete_rows(location, path, [0, 9])
    delete_rows(location, path, [0, 1, 9])
    assert len(ids_of(location)) == len(before) - 3
    state = read_log(location, TABLE)
    DeltaTable(location.uri(TABLE)).create_checkpoint()
    for version in range(state.version):
        Path(location.at(TABLE, "_delta_log", f"{version:020}.json")).unlink()
    again = read_log(location, TABLE)
    assert again.vector_of(path) == state.vector_of(path)
    assert again.adds[path]["stats"] == state.adds[path]["stats"]
    assert (again.features, again.properties) == (state.features, state.properties)
    assert again.metadata == {name: value for name, value in state.metadata.items() if value is not None}
    assert {p: dict(a)["size"] for p, a in again.adds.items()} == {
        p: dict(a)["size"] for p, a in state.adds.items()
    }


def test_one_of_many_writers_takes_a_version(location: WarehouseLocation) -> None:
    version, results = read_log(location, TABLE).version + 1, []

    def put(number: int) -> None:
        try:
            put_commit(location, TABLE, version, [{"txn": {"appId": "t", "version": number}}])
            results.append(number)
        except VersionTakenError:
            pass

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 1
    assert read_log(location, TABLE).transactions == {"t": results[0]}
    assert not list(Path(location.at(TABLE, "_delta_log")).glob(".*.tmp"))
    assert read_commit(location, TABLE, version)
    assert read_commit(location, TABLE, version + 1) is None


def test_a_missing_or_damaged_commit_is_named(location: WarehouseLocation) -> None:
    assert read_commit(location, TABLE, 17) is None
    with pytest.raises(WarehouseError, match="does not have version 17"):
        read_log(location, TABLE, 17)
    commit = Path(location.at(TABLE, "_delta_log", f"{1:020}.json"))
    commit.write_text("{")
    with pytest.raises(WarehouseError, match=r"a commit is damaged.*0001\.json"):
        read_log(location, TABLE)
    commit.unlink()
    with pytest.raises(WarehouseError, match="does not have version 2"):
        read_log(location, TABLE)

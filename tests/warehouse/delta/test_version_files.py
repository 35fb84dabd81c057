"""Two versions of a table with deletion vectors: the rows that differ, and no others, are read and found."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from observe.batch_explanation import _written_files
from observe.change_feed import diff_rows
from observe.report.facts import _table_sizes
from pipeline.replication_out.changes import changes_between, files_digest
from tests.warehouse.vectors import delete_rows
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import write_file
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.read import query_rows, rows_of
from warehouse.delta.version_files import files_at, rows_by_key_range
from warehouse.delta.write import create

ROWS = 100
TABLE = "таблица"
"""In delta-rs' URI of the table it is percent-encoded."""

SCHEMA = StructType(
    [
        StructField("_key", BinaryType()),
        StructField("_tuple", BinaryType()),
        StructField("_replicaset_id", IntegerType()),
    ]
)


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WarehouseLocation:
    """Return the place of a table with a file of ten row groups, in a folder whose name has a blank."""
    monkeypatch.setattr("warehouse.delta.data_files.ROW_GROUP_ROWS", 10)
    found = location_of(str(tmp_path / "a folder"))
    create(found, TABLE, SCHEMA)
    append(found, range(ROWS), "old")
    return found


def key(number: int) -> bytes:
    return b"%03d" % number


def append(location: WarehouseLocation, numbers: range | list[int], value: str) -> int:
    rows = pa.table(
        {
            "_key": pa.array([key(number) for number in numbers], pa.binary()),
            "_tuple": pa.array([value.encode()] * len(numbers), pa.binary()),
            "_replicaset_id": pa.array([1] * len(numbers), pa.int32()),
        }
    )
    return OpenTables(location).commit(TABLE, [write_file(location, TABLE, rows)])


def delete(location: WarehouseLocation, *numbers: int) -> int:
    wanted = {key(number) for number in numbers}
    return delete_rows(location, TABLE, lambda rows: [one in wanted for one in rows["_key"].to_pylist()])


def found_changes(
    location: WarehouseLocation, before: int, after: int
) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Return the changes between two versions as the relay finds them; those of the change feed are the same."""
    files = files_at(location, TABLE, before), files_at(location, TABLE, after)
    found = {
        int(one.key): (one.before, one.after)
        for one in changes_between(location, TABLE, *files, range_rows=25)
    }
    with rows_by_key_range(location, TABLE, *files, range_rows=25) as ranges:
        rows = [row for pair in ranges for row in diff_rows(*pair).to_pylist()]
    assert {int(row["_key"]) for row in rows} == found.keys()
    assert len(rows) == sum((one is not None) + (other is not None) for one, other in found.values())
    return found


def test_rows_that_a_vector_deletes_are_changes(location: WarehouseLocation) -> None:
    delete(location, 5, 55)
    append(location, [55, 200], "new")
    delete(location, 6, 55)
    there = {5: (b"old", None), 55: (b"old", b"new"), 200: (None, b"new")}
    assert found_changes(location, 1, 3) == there
    assert found_changes(location, 3, 1) == {number: pair[::-1] for number, pair in there.items()}
    assert found_changes(location, 3, 4) == {6: (b"old", None), 55: (b"new", None)}
    assert found_changes(location, 2, 2) == {}


def test_only_row_groups_with_deleted_rows_are_read(location: WarehouseLocation) -> None:
    delete(location, *range(ROWS - 1))
    versions = files_at(location, TABLE, 2), files_at(location, TABLE, delete(location, 99))
    with rows_by_key_range(location, TABLE, *versions) as ranges:
        (old, new), *others = ranges
    assert old is not None
    assert (old.num_rows, new, others) == (1, None, []), (
        "one row of the ten of its row group, and no other group"
    )


def test_a_version_in_a_checkpoint_has_its_vectors(location: WarehouseLocation) -> None:
    version = delete(location, 5, 55)
    before = files_at(location, TABLE, version)
    table = DeltaTable(location.uri(TABLE))
    table.create_checkpoint()
    log = Path(location.at(TABLE, "_delta_log"))
    for number in range(version + 1):
        (log / f"{number:020}.json").unlink()
    assert files_at(location, TABLE, version) == before
    assert [file.rows for file in before] == [ROWS - 2]


def test_versions_that_differ_by_a_vector_have_different_digests(location: WarehouseLocation) -> None:
    first, second = delete(location, 5), delete(location, 6)
    assert len({files_digest(files_at(location, TABLE, version)) for version in (1, first, second)}) == 3


def test_a_restored_version_has_its_vectors_again(location: WarehouseLocation) -> None:
    first, second = delete(location, 5), delete(location, 6)
    for version in (first, 1, second):
        DeltaTable(location.uri(TABLE)).restore(version)
        newest = DeltaTable(location.uri(TABLE)).version()
        assert files_at(location, TABLE, newest) == files_at(location, TABLE, version)
        assert found_changes(location, version, newest) == {}


def test_counts_are_without_deleted_rows(location: WarehouseLocation) -> None:
    first = delete(location, 5, 55)
    last = append(location, [200], "new")
    delete(location, 6)
    (size,) = _table_sizes(location, {})
    assert (size.file_count, size.row_count) == (2, ROWS - 3 + 1)
    assert len(rows_of(DeltaTable(location.uri(TABLE)))) == size.row_count
    written = _written_files(location, TABLE, 1, first)
    assert (written.added, written.removed, written.rows, written.deleted_rows) == (
        0,
        0,
        0,
        2,
    )
    written = _written_files(location, TABLE, first, last + 1)
    assert (written.added, written.removed, written.rows, written.deleted_rows) == (
        1,
        0,
        1,
        1,
    )


def test_queries_find_no_deleted_row(location: WarehouseLocation) -> None:
    gone = {5, *range(30, 45), 99}
    delete(location, *gone)
    delete(location, 6)
    live = [number for number in range(ROWS) if number not in gone | {6}]
    opened = DeltaTable(location.uri(TABLE))

    def found(rest: str) -> list[int]:
        return [int(row["_key"]) for row in query_rows(opened, f"SELECT _key FROM opened {rest}")]

    assert found("ORDER BY _key") == live
    assert query_rows(opened, "SELECT count(*) AS n FROM opened") == [{"n": len(live)}]
    for number in range(0, ROWS, 3):  # row groups that the filter leaves out do not shift the others' vectors
        assert found(f"WHERE _key = X'{key(number).hex()}'") == [number] * (number in live)
    assert found(f"WHERE _key > X'{key(28).hex()}' ORDER BY _key LIMIT 3") == [29, 45, 46]

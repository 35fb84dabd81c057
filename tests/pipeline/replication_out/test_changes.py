"""What changed between two versions of a table, by its files alone."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.replication_out import changes
from pipeline.replication_out.changes import changes_between, files_digest
from schemas.errors import WarehouseError
from warehouse.delta.data_files import write_file
from warehouse.delta.deletion_vectors import RELATIVE, Descriptor
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.table_files import FileKeys, TableFile
from warehouse.delta.version_files import key_ranges

MADE = 999_999


@pytest.fixture
def location(tmp_path: Path) -> WarehouseLocation:
    (tmp_path / "aggregator.db" / "s").mkdir(parents=True)
    return location_of(str(tmp_path))


def file(location: WarehouseLocation, rows: dict[int, str]) -> TableFile:
    keys = [b"%06d" % number for number in sorted(rows)]
    tuples = [rows[number].encode() for number in sorted(rows)]
    whose = pa.array([-1 if number == MADE else 1 for number in sorted(rows)], pa.int32())
    columns = {"_key": keys, "_tuple": tuples, "_replicaset_id": whose}
    return write_file(location, "s", pa.table(columns)).as_table_file()


def test_tuples_that_a_policy_made(location: WarehouseLocation) -> None:
    made = file(location, {1: "own", MADE: "made"})
    rows = changes_between(location, "s", frozenset(), frozenset({made}))
    assert {row.after: row.is_policy_made for row in rows} == {b"own": False, b"made": True}


def found(
    location: WarehouseLocation, before: set[TableFile], after: set[TableFile], rows_at_a_time: int = 1000
) -> dict[int, tuple[bytes | None, bytes | None]]:
    rows = list(changes_between(location, "s", frozenset(before), frozenset(after), rows_at_a_time))
    assert [row.key for row in rows] == sorted({row.key for row in rows})
    return {int(row.key): (row.before, row.after) for row in rows}


def test_rows_that_came_went_and_changed(location: WarehouseLocation) -> None:
    same = file(location, {9: "same"})
    old = file(location, {1: "stays", 2: "goes", 3: "old"})
    new = [file(location, {1: "stays", 3: "new"}), file(location, {4: "comes"})]
    forth = {2: (b"goes", None), 3: (b"old", b"new"), 4: (None, b"comes")}
    assert found(location, {same, old}, {same, *new}) == forth
    assert found(location, {same, *new}, {same, old}) == {key: pair[::-1] for key, pair in forth.items()}
    assert found(location, {same, old}, {same, old}) == {}
    assert found(location, set(), {old}) == {1: (None, b"stays"), 2: (None, b"goes"), 3: (None, b"old")}


def test_files_that_were_joined_change_nothing(location: WarehouseLocation) -> None:
    parts = {file(location, dict.fromkeys(range(k, 300, 3), "x")) for k in range(3)}
    assert found(location, parts, {file(location, dict.fromkeys(range(300), "x"))}) == {}


def test_key_by_key_range(location: WarehouseLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warehouse.delta.data_files.ROW_GROUP_ROWS", 10)
    sizes: list[int] = []
    compared = changes._changes_in_range

    def counted(old: pa.Table, new: pa.Table) -> object:
        sizes.append(old.num_rows + new.num_rows)
        return compared(old, new)

    monkeypatch.setattr(changes, "_changes_in_range", counted)
    before = dict.fromkeys(range(0, 1000, 2), "x")
    after = {number: "y" if number % 3 == 0 else "x" for number in range(0, 1000, 2) if number % 7}
    files = {file(location, {k: v for k, v in before.items() if k % 4 == r}) for r in (0, 2)}
    expected = {k: (b"x", None if k % 7 == 0 else b"y") for k in before if k % 7 == 0 or k % 3 == 0}
    assert found(location, files, {file(location, after)}, 40) == expected
    assert len(sizes) > 10
    assert max(sizes) < 100


def test_ranges_of_one_key() -> None:
    same = FileKeys((50, 50), (b"a", b"a"), (b"a", b"a"))
    assert list(key_ranges([same, same], 60)) == [(None, None)]
    assert list(key_ranges([], 60)) == [(None, None)]


def test_a_file_that_is_gone(location: WarehouseLocation) -> None:
    with pytest.raises(WarehouseError, match="cannot be read"):
        found(location, {TableFile("part-gone.parquet", 1, 1)}, set())


def test_a_digest_is_of_paths_and_deletion_vectors() -> None:
    one, other = TableFile("a", 1, 1), TableFile("b", 1, 1)
    assert files_digest({one, other}) == files_digest([other, one])
    assert files_digest({one, other}) != files_digest({one, TableFile("c", 1, 1)})
    vector = Descriptor(RELATIVE, "0=I.{Q8cL#JAbGh08#:a", 52, 1, 1)
    assert files_digest({one}) != files_digest({replace(one, vector=vector)})
    assert files_digest({replace(one, vector=vector)}) != files_digest(
        {replace(one, vector=replace(vector, offset=61))}
    )

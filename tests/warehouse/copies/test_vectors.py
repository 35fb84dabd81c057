"""Copies of tables with deletion vectors: the files of the vectors are copied and checked too."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from schemas.errors import SyncError
from tests.warehouse.copies.standby import Pair
from tests.warehouse.vectors import delete_rows
from tests.warehouse.warehouses import Made
from warehouse.copies.sync import copy_ahead
from warehouse.delta.read import rows_of


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Return a primary with a table in which one row is deleted by a vector, and a location for its standby."""
    found = Pair(tmp_path)
    found.a.batch("fourth", "accounts")
    delete(found, "third")
    return found


def delete(pair: Pair, *values: str) -> None:
    """Delete rows of `accounts` on the primary, and commit an epoch."""
    version = delete_rows(
        pair.a.location, "accounts", lambda rows: [one in values for one in rows["value"].to_pylist()]
    )
    pair.a.versions["accounts"] = version
    pair.a.commit()


def values(made: Made) -> list[str]:
    return sorted(row["value"] for row in rows_of(DeltaTable(str(made.folder / "accounts"))))


def vector_files(made: Made) -> list[Path]:
    return sorted((made.folder / "accounts").glob("deletion_vector_*.bin"))


def test_vectors_are_copied(pair: Pair) -> None:
    done = pair.sync()
    assert values(pair.b) == values(pair.a) == ["first", "fourth"]
    assert [path.name for path in vector_files(pair.b)] == [path.name for path in vector_files(pair.a)]
    assert done.checked_rows == sum(
        len(rows_of(DeltaTable(str(pair.a.folder / name)))) for name in ("_changelog", "_epochs", "accounts")
    ) + len(rows_of(DeltaTable(str(pair.a.folder / "ledger_of_a"))))


def test_a_later_vector_is_copied_alone(pair: Pair) -> None:
    pair.sync()
    delete(pair, "first")
    copied: list[int] = []
    pair.sync(on_copied=copied.append, threads=1)
    assert values(pair.b) == values(pair.a) == ["fourth"]
    assert len(copied) == 4, "a vector and a commit of accounts, a data file and a commit of _epochs"


def test_a_damaged_vector_of_the_target_is_found_and_mended(pair: Pair) -> None:
    pair.sync()
    (vector,) = vector_files(pair.b)
    content = vector.read_bytes()
    vector.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    pair.sync(check_all=True)
    assert vector.read_bytes() == content
    vector.unlink()
    pair.sync(check_all=True)
    assert vector.read_bytes() == content


def test_a_missing_vector_of_the_source_is_named(pair: Pair) -> None:
    (vector,) = vector_files(pair.a)
    vector.unlink()
    with pytest.raises(SyncError, match="vectors is missing") as raised:
        pair.sync()
    assert vector.name in str(raised.value)


def test_a_complete_target_gets_later_vectors_alone(pair: Pair) -> None:
    pair.sync()
    for value in ("first", "fourth"):
        delete(pair, value)
        copy_ahead(pair.a.location, pair.b.location, lambda: None)
        assert len(vector_files(pair.b)) == len(vector_files(pair.a))
        assert pair.sync(check_all=False, known_versions={}).copied_bytes > 0, "the logs"
        assert values(pair.b) == values(pair.a)
    assert values(pair.b) == []

"""Files of a table that the doctor misses: data files, and the files of their deletion vectors."""

from pathlib import Path

from observe.doctor.store import _unreadable_tables
from tests.warehouse.vectors import delete_rows
from warehouse.warehouse import EpochWarehouse, Warehouse


def test_a_missing_deletion_vector_is_named(tmp_path: Path) -> None:
    written = Warehouse(None, str(tmp_path))
    written.create_system_tables()
    written.append_rows("_schema", [{"epoch": 0, "name": name} for name in ("a", "b")])
    version = delete_rows(
        written.location, "_schema", lambda rows: [name == "a" for name in rows["name"].to_pylist()]
    )
    warehouse = EpochWarehouse(None, str(tmp_path))
    assert list(_unreadable_tables(warehouse, {"_schema": version})) == []
    (vector,) = Path(written.location.at("_schema")).glob("deletion_vector_*.bin")
    vector.unlink()
    assert list(_unreadable_tables(warehouse, {"_schema": version})) == [
        ("_schema", f"its file {vector.name} is missing")
    ]
    assert list(_unreadable_tables(warehouse, {"_schema": version - 1})) == []

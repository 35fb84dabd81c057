"""Rows of small Delta tables, without Spark."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import warehouse.delta.read
from warehouse.delta.read import newest, rows_of

_ROOT = Path(warehouse.delta.read.__file__).parents[2]
_AT = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Return a table of three files, of every type that the warehouse's own books have."""
    schema = pa.schema(
        [
            ("epoch", pa.int64()),
            ('a "name"', pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("versions", pa.map_(pa.string(), pa.int64())),
            ("value", pa.binary()),
        ]
    )
    for epoch, name in ((2, "é"), (10, None), (1, "")):
        row = {"epoch": epoch, 'a "name"': name, "at": _AT, "versions": [("t", epoch)], "value": b"\x00\xff"}
        write_deltalake(str(tmp_path), pa.Table.from_pylist([row], schema), mode="append")
    return DeltaTable(str(tmp_path))


def test_all_rows_and_columns(table: DeltaTable) -> None:
    rows = sorted(rows_of(table), key=lambda row: int(row["epoch"]))
    assert rows == [
        {"epoch": e, 'a "name"': name, "at": _AT, "versions": [("t", e)], "value": b"\x00\xff"}
        for e, name in ((1, ""), (2, "é"), (10, None))
    ]


def test_some_columns(table: DeltaTable) -> None:
    assert sorted(rows_of(table, ['a "name"', "epoch"]), key=lambda row: int(row["epoch"]))[0] == {
        'a "name"': "",
        "epoch": 1,
    }


def test_the_newest_is_the_highest(table: DeltaTable) -> None:
    found = newest(table, "epoch")
    assert found is not None
    assert found["epoch"] == 10


def test_of_an_earlier_version(table: DeltaTable) -> None:
    earlier = newest(DeltaTable(table.table_uri, version=0), "epoch")
    assert earlier is not None
    assert earlier["epoch"] == 2


def test_of_no_rows_there_is_no_newest(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"epoch": pa.array([], pa.int64())}))
    assert newest(DeltaTable(str(tmp_path)), "epoch") is None
    assert rows_of(DeltaTable(str(tmp_path))) == []


def test_nothing_reads_by_way_of_a_pyarrow_dataset() -> None:
    files = [
        file for folder in ("warehouse", "observe", "jobs", "udfs") for file in (_ROOT / folder).rglob("*.py")
    ]
    assert files
    assert [
        file.name
        for file in files
        if ".to_pyarrow_" in file.read_text() and file.name != "printed_queries.py"
    ] == []


def test_a_process_that_has_read_ends_well(table: DeltaTable) -> None:
    script = (
        "import sys; from deltalake import DeltaTable; from warehouse.delta.read import newest; "
        "print(newest(DeltaTable(sys.argv[1]), 'epoch')['epoch'])"
    )
    argv = [sys.executable, "-c", script, table.table_uri]
    started = [subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=_ROOT) for _ in range(4)]
    ended = [(process.communicate(timeout=60)[0], process.returncode) for process in started]
    assert ended == [(b"10\n", 0)] * 4

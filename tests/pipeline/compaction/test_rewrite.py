"""Files that are written again row group by row group: the same rows, with statistics as other files have them."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql.types import BinaryType, DoubleType, LongType, StructField, StructType, VariantType

from pipeline.compaction.rewrite import write_again, write_in_order
from pipeline.encode.columns import column_for_file
from schemas.layout import VARIANT_ARROW
from warehouse.delta import write
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import ROW_GROUP_ROWS, DataFile, FileWriter, write_file
from warehouse.delta.location import location_of
from warehouse.delta.table_files import TableFile, open_file, read_file

COLUMNS = StructType(
    [
        StructField("_key", BinaryType()),
        StructField("number", LongType()),
        StructField("plain", DoubleType()),
        StructField("special", DoubleType()),
        StructField("any", VariantType()),
    ]
)


@pytest.fixture
def tables(tmp_path: Path) -> OpenTables:
    location = location_of(str(tmp_path))
    location.fs.create_dir(location.path)
    write.create(location, "t", COLUMNS)
    return OpenTables(location)


def rows(begin: int, count: int) -> pa.Table:
    numbers = np.arange(begin, begin + count)
    variant = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x07"}
    return pa.table(
        {
            "_key": pa.array([int(number).to_bytes(4, "big") for number in numbers], pa.binary()),
            "number": numbers,
            "plain": numbers / 2,
            "special": np.where(numbers % 7 == 0, np.nan, numbers / 2),
            "any": column_for_file(pa.array([variant] * count, VARIANT_ARROW)),
        }
    )


def added(tables: OpenTables, *parts: pa.Table) -> list[TableFile]:
    for part in parts:
        tables.commit("t", [write_file(tables.location, "t", part)])
    return sorted(
        tables.files("t"), key=lambda file: read_file(tables.location, "t", file)["_key"][0].as_py()
    )


def numbers(tables: OpenTables, file: DataFile) -> list[int]:
    found: list[int] = read_file(tables.location, "t", file.as_table_file())["number"].to_pylist()
    return found


def test_full_files_become_one_with_the_rows_of_all_in_their_order(tables: OpenTables) -> None:
    older = rows(0, 100).drop_columns(["special", "any"])
    files = added(tables, older, rows(100, ROW_GROUP_ROWS + 7), rows(100_000, 50))
    (written,) = write_in_order(tables, "t", files)
    wanted = [*range(100 + ROW_GROUP_ROWS + 7), *range(100_000, 100_050)]
    assert numbers(tables, written) == wanted
    assert not written.is_new_data, "a reader of changes must not see rows that moved"
    with open_file(tables.location, "t", written.as_table_file()) as opened:
        assert [opened.footer.row_group(i).num_rows for i in range(2)] == [ROW_GROUP_ROWS + 100, 57]
    stats = json.loads(written.stats)
    assert stats["minValues"] == {"number": 0, "plain": 0.0}, "a column with NaN has no bounds"
    assert stats["maxValues"] == {"number": 100_049, "plain": 100_049 / 2}
    assert stats["nullCount"]["number"] == 0
    tables.commit("t", [written], [(file, False) for file in files])
    query = 'SELECT count(*) AS n, sum(number) AS s, count("any") AS v FROM t'
    found = QueryBuilder().register("t", DeltaTable(tables.location.uri("t"))).execute(query).read_all()
    assert pa.table(found).to_pylist() == [{"n": len(wanted), "s": sum(wanted), "v": len(wanted) - 100}]


def test_bounds_of_others_that_ignore_nan_are_not_believed(tables: OpenTables) -> None:
    part = rows(0, 100)
    writer = FileWriter(tables.location, "t", part.schema, without_nan=["plain", "special"])
    writer.write(part)
    theirs = writer.close()
    assert "special" in json.loads(theirs.stats)["maxValues"]
    (written,) = write_in_order(tables, "t", [theirs.as_table_file()])
    assert json.loads(written.stats)["maxValues"] == {"number": 99, "plain": 49.5}


def test_deleted_rows_are_left_out_and_small_row_groups_become_usual_ones(tables: OpenTables) -> None:
    (file,) = added(tables, rows(0, 4 * ROW_GROUP_ROWS))
    kept = np.arange(0, 4 * ROW_GROUP_ROWS, 3)
    gone = np.setdiff1d(np.arange(4 * ROW_GROUP_ROWS), kept)
    tables.commit("t", [], deleted={file: gone})
    (sparse,) = tables.files("t")
    (written,) = write_again(tables, "t", sparse)
    assert numbers(tables, written) == kept.tolist()
    with open_file(tables.location, "t", written.as_table_file()) as opened:
        assert opened.footer.num_row_groups == 2


def test_a_file_without_remaining_rows_is_written_nowhere(tables: OpenTables) -> None:
    (file,) = added(tables, rows(0, 10))
    tables.commit("t", [], deleted={file: np.arange(10)})
    (empty,) = tables.files("t")
    assert write_in_order(tables, "t", [empty]) == []

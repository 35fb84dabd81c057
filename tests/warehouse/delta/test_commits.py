"""Files of ours in a Delta table: Spark and delta-rs read what was written, and skip no file that has a row."""

import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake import Field as DeltaField
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from pipeline.encode.columns import column_for_file
from schemas.errors import UnsupportedError, WarehouseError
from schemas.layout import VARIANT_ARROW
from tests.soaked import partly_soaked
from warehouse.delta import write
from warehouse.delta.commit_actions import USER_METADATA
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import FileWriter, write_file
from warehouse.delta.location import WarehouseLocation, location_of

NAMES = ("keep", "began", "s", "t", "select", "a.b", 'quo"te', "back`tick", "note__u0_4", "Ünïcode")
"""Columns whose names mean something to an engine, or need quotes."""


@pytest.fixture
def location(tmp_path: Path) -> WarehouseLocation:
    found = location_of(str(tmp_path))
    found.fs.create_dir(found.path)
    return found


def times(*texts: str) -> list[datetime]:
    return [datetime.fromisoformat(text).replace(tzinfo=UTC) for text in texts]


VALUES: list[tuple[str, DataType, pa.DataType, list[Any]]] = [
    ("long", LongType(), pa.int64(), [-(2**63), -1, 0, 7, 2**63 - 1]),
    ("int", IntegerType(), pa.int32(), [-(2**31), 0, 2**31 - 1]),
    ("double", DoubleType(), pa.float64(), [-math.inf, -1.5, -0.0, 0.0, 5e-324, 1.5, math.inf, math.nan]),
    ("flag", BooleanType(), pa.bool_(), [True, False]),
    (
        "decimal",
        DecimalType(38, 2),
        pa.decimal128(38, 2),
        [Decimal("-9" * 1 + "9" * 20 + ".99"), Decimal("0.01"), Decimal(5)],
    ),
    ("whole", DecimalType(20, 0), pa.decimal128(20, 0), [Decimal(-3), Decimal(2**64 - 1)]),
    (
        "text",
        StringType(),
        pa.string(),
        [
            *("", "a", "Ω" * 40, "\U0001f600" * 33, "~\uffff"),
            *("x" * 32 + "\U0010ffff", "x" * 32 + "\U0010ffff" * 2 + "y", "\U0010ffff" * 40),
        ],
    ),
    ("bytes", BinaryType(), pa.binary(), [b"", b"\x00", b"\xff" * 40]),
    (
        "time",
        TimestampType(),
        pa.timestamp("us", tz="UTC"),
        times(
            *("0001-01-01 00:00:00", "1500-03-01 01:02:03.000001", "2026-11-22 01:02:03.654321"),
            *("2500-01-01 00:00:00.123456", "9999-12-31 23:59:59.999999"),
        ),
    ),
]
"""Name, types, and values of one column, each of which becomes a file of its own, and all of them another one."""


FOUND_BY = [(name, "delta-rs") for name, *_ in VALUES]
FOUND_BY += [(name, "Spark") for name in ("double", "decimal", "text", "time", "bytes")]
"""Spark compares bounds of `long`, `int`, `whole` and `flag` as written; those of others have a form in the log."""

FOUND_LATER = [(name, "Spark") for name, *_ in VALUES if (name, "Spark") not in FOUND_BY]


@pytest.mark.parametrize(("name", "seen_by"), partly_soaked(FOUND_BY, FOUND_LATER))
def test_each_value_is_found_by_a_filter(
    spark: SparkSession, location: WarehouseLocation, name: str, seen_by: str
) -> None:
    """A file is skipped by its statistics: wrong ones would lose rows without a word."""
    _, kind, arrow, values = next(one for one in VALUES if one[0] == name)
    write.create(location, "t", StructType([StructField("n", LongType()), StructField("x", kind)]))
    tables, numbers = OpenTables(location), list(range(len(values)))
    files: list[list[int | None]] = [[i] for i in numbers]
    files += [[*numbers], [*numbers[:1], None]]
    for own in files:
        rows = pa.table(
            {
                "n": pa.array([-1 if i is None else i for i in own], pa.int64()),
                "x": pa.array([None if i is None else values[i] for i in own], arrow),
            }
        )
        tables.commit("t", [write_file(location, "t", rows)])
    count = _counts_of_spark if seen_by == "Spark" else _counts_of_delta_rs
    found = dict(enumerate(count(spark, location, kind, values)))
    held = [values[i] for own in files for i in own if i is not None]
    assert found == {i: sum(_same(one, values[i]) for one in held) for i in numbers}


@pytest.mark.parametrize("name", ["double", "flag", "decimal", "whole", "time", "text", "bytes"])
def test_an_arrow_dataset_finds_each_value(location: WarehouseLocation, name: str) -> None:
    """delta-rs makes of a file's bounds an expression of Arrow, and one of a bound that is null is never true."""
    _, kind, arrow, values = next(one for one in VALUES if one[0] == name)
    write.create(location, "t", StructType([StructField("x", kind)]))
    tables = OpenTables(location)
    # The log has no bound for NaN, and no bound of whole milliseconds is behind the last time.
    known = values[:-1] if name in ("time", "double") else values
    for value in known:
        tables.commit("t", [write_file(location, "t", pa.table({"x": pa.array([value], arrow)}))])
    dataset = DeltaTable(location.uri("t")).to_pyarrow_dataset()
    for value in known:
        expected = [one for one in known if one == value]
        assert dataset.to_table(filter=pc.field("x") == pa.scalar(value, arrow))["x"].to_pylist() == expected


def test_an_arrow_dataset_finds_rows_of_files_with_long_texts(location: WarehouseLocation) -> None:
    write.create(location, "t", StructType([StructField("x", StringType())]))
    tables = OpenTables(location)
    texts = [["a", "b"], ["c" * 5000, "d"], ["\U0010ffff" * 5000, None], ["e", "f" * 5000], [None]]
    files = [write_file(location, "t", pa.table({"x": pa.array(one, pa.string())})) for one in texts]
    writer = FileWriter(location, "t", pa.schema([("x", pa.string())]))
    for row in ("g", "h" * 5000, "i" * 5000):
        writer.write(pa.table({"x": [row]}))
    tables.commit("t", [*files, writer.close()])
    dataset = DeltaTable(location.uri("t")).to_pyarrow_dataset()
    for text in ("a", "c" * 5000, "d", "\U0010ffff" * 5000, "e", "f" * 5000, "g", "h" * 5000, "i" * 5000):
        assert dataset.to_table(filter=pc.field("x") == text)["x"].to_pylist() == [text]


def test_bounds_of_an_overlong_decimal_are_left_out(location: WarehouseLocation) -> None:
    """A rounded bound of 10^20 would have more digits than the type, and the log could not be read."""
    write.create(location, "t", StructType([StructField("x", DecimalType(38, 18))]))
    value = Decimal("9" * 20 + ".5")
    file = write_file(location, "t", pa.table({"x": pa.array([value], pa.decimal128(38, 18))}))
    assert json.loads(file.stats)["maxValues"] == {}
    OpenTables(location).commit("t", [file])
    assert pa.table(DeltaTable(location.uri("t")).get_add_actions(flatten=True)).num_rows == 1


def test_an_arrow_dataset_finds_values_of_the_last_column_with_bounds(location: WarehouseLocation) -> None:
    """A variant counts as one column, as in delta-rs; a file without it has the same columns' bounds."""
    names = [f"c{number}" for number in range(40)]
    variants = [StructField(f"v{number}", VariantType()) for number in range(4)]
    write.create(location, "t", StructType([*variants, *(StructField(name, LongType()) for name in names)]))
    tables = OpenTables(location)
    numbers = {name: pa.array([7], pa.int64()) for name in names}
    null = column_for_file(pa.array([None], VARIANT_ARROW))
    both = ({**{one.name: null for one in variants}, **numbers}, numbers)
    tables.commit("t", [write_file(location, "t", pa.table(columns)) for columns in both])
    dataset = DeltaTable(location.uri("t")).to_pyarrow_dataset()
    assert {name: dataset.to_table(filter=pc.field(name) == 7).num_rows for name in names} == dict.fromkeys(
        names, 2
    )


@pytest.mark.spark
def test_spark_writes_the_same_text_for_infinity(spark: SparkSession, location: WarehouseLocation) -> None:
    spark.sql("SELECT 1.5D AS x UNION ALL SELECT double('Infinity')").coalesce(1).write.format("delta").save(
        location.uri("t")
    )
    values = pa.table({"x": pa.array([1.5, math.inf])})
    bounds = json.loads(write_file(location, "t", values).stats)["maxValues"]
    assert bounds == {"x": "Infinity"}
    log = (Path(location.at("t")) / "_delta_log" / f"{0:020}.json").read_text()
    stats = [json.loads(line)["add"]["stats"] for line in log.splitlines() if '"add"' in line]
    assert [json.loads(one)["maxValues"] for one in stats] == [bounds]


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (is_nan(one) and is_nan(other)))


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _counts_of_spark(
    spark: SparkSession, location: WarehouseLocation, kind: DataType, values: list[Any]
) -> list[int]:
    """Return how many rows each value's own filter finds, by one job: each filter skips files for itself."""
    rows = spark.read.format("delta").load(location.uri("t"))
    counts = []
    for number, value in enumerate(values):
        literal = (
            F.lit(value) if not isinstance(kind, TimestampType) else F.timestamp_micros(F.lit(_micros(value)))
        )
        found = rows.where(F.col("x") == literal.cast(kind)).agg(F.count("*").alias("c"))
        counts.append(found.withColumn("number", F.lit(number)))
    return [
        row["c"] for row in sorted(reduce(DataFrame.union, counts).collect(), key=lambda row: row["number"])
    ]


def _counts_of_delta_rs(
    _: SparkSession, location: WarehouseLocation, __: DataType, values: list[Any]
) -> list[int]:
    query = QueryBuilder().register("opened", DeltaTable(location.uri("t")))
    texts = [f"SELECT count(*) AS c FROM opened WHERE {_sql(value)}" for value in values]
    return [int(pa.table(query.execute(text).read_all()).to_pylist()[0]["c"]) for text in texts]


def _micros(value: datetime) -> int:
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _sql(value: Any) -> str:  # noqa: PLR0911
    if isinstance(value, bool):
        return f"x = {str(value).lower()}"
    if isinstance(value, float):
        special = {math.inf: "'inf'", -math.inf: "'-inf'"}.get(
            value, "'nan'" if is_nan(value) else repr(value)
        )
        return f"x = CAST({special} AS DOUBLE)"
    if isinstance(value, bytes):
        return f"x = X'{value.hex()}'"
    if isinstance(value, datetime):
        return f"x = to_timestamp_micros({_micros(value)})"
    if isinstance(value, str):
        return "x = '" + value + "'"
    if isinstance(value, Decimal):
        return f"x = CAST('{value}' AS DECIMAL(38, 2))"
    return f"x = {value}"


@pytest.mark.spark
def test_columns_of_any_name_are_read_as_they_were_written(
    spark: SparkSession, location: WarehouseLocation
) -> None:
    schema = StructType(
        [*(StructField(name, StringType()) for name in NAMES), StructField("any", VariantType())]
    )
    write.create(location, "t", schema)
    given = spark.sql(
        "SELECT parse_json(j) AS v FROM VALUES ('7'), ('\"text\"'), ('[1, {\"a\": null}]') AS t(j)"
    )
    variants = [*given.toArrow()["v"].to_pylist(), None]
    columns: dict[str, Any] = {name: [f"{name} {i}" for i in range(len(variants))] for name in NAMES}
    rows = pa.table({**columns, "any": column_for_file(pa.array(variants, VARIANT_ARROW))})
    OpenTables(location).commit("t", [write_file(location, "t", rows)])
    read = spark.read.format("delta").load(location.uri("t")).withColumn("any", F.to_json("any")).collect()
    assert {tuple(row)[:-1] for row in read} == {tuple(columns[name][i] for name in NAMES) for i in range(4)}
    assert {row["keep"]: row["any"] for row in read} == {
        "keep 0": "7",
        "keep 1": '"text"',
        "keep 2": '[1,{"a":null}]',
        "keep 3": None,
    }


PLAIN = StructType([StructField("n", LongType())])


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def rows_of(location: WarehouseLocation) -> list[int]:
    query = QueryBuilder().register("opened", DeltaTable(location.uri("t"))).execute("SELECT n FROM opened")
    return sorted(row["n"] for row in pa.table(query.read_all()).to_pylist())


@pytest.fixture
def tables(location: WarehouseLocation) -> OpenTables:
    write.create(location, "t", PLAIN)
    return OpenTables(location)


def test_a_commit_adds_and_removes_files_and_says_whose_it_is(
    location: WarehouseLocation, tables: OpenTables
) -> None:
    first = tables.commit(
        "t", [write_file(location, "t", numbers(1, 2)), write_file(location, "t", numbers(3))]
    )
    assert (first, rows_of(location)) == (1, [1, 2, 3])
    (touched,) = [file for file in tables.files("t") if file.rows == 2]
    assert tables.commit("t", [write_file(location, "t", numbers(2, 5))], [(touched, True)]) == 2
    assert rows_of(location) == [2, 3, 5]
    assert [one["userMetadata"] for one in DeltaTable(location.uri("t")).history(2)] == [USER_METADATA] * 2
    assert tables.commit("t", []) == 2, "without a file there is no commit"


def test_files_that_no_commit_names_are_no_part_of_the_table(
    location: WarehouseLocation, tables: OpenTables
) -> None:
    write_file(location, "t", numbers(9))
    assert (rows_of(location), tables.files("t")) == ([], [])


def test_commits_of_others_are_seen(location: WarehouseLocation, tables: OpenTables) -> None:
    other = OpenTables(location)
    other.commit("t", [write_file(location, "t", numbers(1))])
    assert tables.version("t") == 1
    assert [file.rows for file in tables.files("t")] == [1]


def test_a_column_that_others_add_before_the_first_vector_stays(
    location: WarehouseLocation, tables: OpenTables
) -> None:
    tables.commit("t", [write_file(location, "t", numbers(1, 2, 3))])
    (file,) = OpenTables(location).files("t")
    DeltaTable(location.uri("t")).alter.add_columns([DeltaField("own", "string", nullable=True)])
    tables.commit("t", [], deleted={file: np.array([1])})
    assert rows_of(location) == [1, 3]
    assert [field.name for field in DeltaTable(location.uri("t")).schema().fields] == ["n", "own"]


def test_a_file_is_written_batch_by_batch(location: WarehouseLocation, tables: OpenTables) -> None:
    writer = FileWriter(location, "t", numbers().schema)
    for begin in range(0, 100, 10):
        writer.write(numbers(*range(begin, begin + 10)))
    tables.commit("t", [writer.close()])
    assert rows_of(location) == list(range(100))
    assert [file.rows for file in tables.files_between("t", "n", 99, 200)] == [100]
    assert tables.files_between("t", "n", 100, 200) == []


def test_a_replacement_has_other_columns_and_no_row_of_before(
    location: WarehouseLocation, tables: OpenTables
) -> None:
    tables.commit("t", [write_file(location, "t", numbers(1))])
    schema = StructType([StructField("m", StringType()), StructField("any", VariantType())])
    parts = pa.array([{"metadata": b"\x01\x00\x00", "value": b"\x0c\x07"}], VARIANT_ARROW)
    rows = pa.table({"m": ["x"], "any": column_for_file(parts)})
    tables.replace("t", [write_file(location, "t", rows)], schema)
    opened = tables.open("t")
    assert [field.name for field in opened.schema().fields] == ["m", "any"]
    assert [file.rows for file in tables.files("t")] == [1]


@pytest.mark.parametrize(
    ("property_", "value", "what"),
    [
        ("delta.enableRowTracking", "true", "rowTracking"),
        ("delta.columnMapping.mode", "name", "columnMapping"),
        ("delta.constraints.positive", "n > 0", "delta.constraints.positive"),
    ],
)
def test_what_files_of_ours_would_break_is_refused_by_name(
    spark: SparkSession, location: WarehouseLocation, property_: str, value: str, what: str
) -> None:
    write.create(location, "t", PLAIN)
    table = f"delta.`{location.uri('t')}`"
    if "constraints" in property_:
        spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT positive CHECK (n > 0)")
    else:
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{property_}' = '{value}')")
    with pytest.raises(UnsupportedError, match=what):
        OpenTables(location).open("t")


def test_a_change_data_feed_is_kept(spark: SparkSession, location: WarehouseLocation) -> None:
    write.create(location, "t", PLAIN)
    spark.sql(
        f"ALTER TABLE delta.`{location.uri('t')}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    tables = OpenTables(location)
    tables.commit("t", [write_file(location, "t", numbers(1))])
    feed = spark.read.option("readChangeFeed", "true").option("startingVersion", 1).format("delta")
    assert [(row.n, row._change_type) for row in feed.load(location.uri("t")).collect()] == [(1, "insert")]


def test_a_table_that_is_not_there_is_an_error(location: WarehouseLocation) -> None:
    with pytest.raises(WarehouseError, match="is not there"):
        OpenTables(location).open("nothing")

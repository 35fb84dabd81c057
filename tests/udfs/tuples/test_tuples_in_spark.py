"""The Arrow UDFs inside Spark: variants and all types arrive, are read by SQL, and survive a Delta table."""

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from schemas.layout import TableLayout, TypeOptions, table_layout
from schemas.space import Field, KeyPart, Space
from tests.udfs.messages import datetime_ext, decimal_ext, interval_ext, pack, uuid_ext
from udfs.keys.keys import key_columns
from udfs.tuples.tuples import tuple_columns

pytestmark = pytest.mark.spark

UUID = "64d22e4d-ac92-4a23-899a-e59f34af5479"
MANY = {f"key{number:03}": number for number in range(300)}
ODD = {f"{chr(0xFB00 + number)}" if number % 2 else f"\U0001f600{number:02}": number for number in range(60)}
VALUES: dict[str, Any] = {
    "map": {"b": [1, -1, 300, 70000, 2**40, -(2**63)], "a": {"deep": [None, True, False]}},
    "many": MANY,
    "odd": ODD,
    "text": "short",
    "long": "é" * 200,
    "bytes": b"\x00\xff",
    "double": 0.1,
    "big": 2**64 - 1,
    "decimal": decimal_ext("-12.340"),
    "wide": decimal_ext("1234567890123456789012345678.0123456789"),
    "uuid": uuid_ext(UUID),
    "at": datetime_ext(1700000000, 123456000),
    "interval": interval_ext(years=1, days=-3),
    "array": list(range(300)),
    "empty": [[], {}],
}
FIELDS = (
    Field("id", "unsigned"),
    Field("name", "string"),
    Field("value", "any", is_nullable=True),
    Field("balance", "decimal", is_nullable=True),
    Field("at", "datetime", is_nullable=True),
    Field("blob", "varbinary", is_nullable=True),
    Field("ok", "boolean", is_nullable=True),
    Field("num", "number", is_nullable=True),
)
SPACE = Space(512, 1, "things", "memtx", FIELDS, (KeyPart(0, "unsigned"),))
REORDERED = Space(600, 1, "things", "memtx", (FIELDS[1], FIELDS[0]), (KeyPart(1, "unsigned"),))
LAYOUT = table_layout([SPACE, REORDERED])


def tuples() -> list[tuple[bytes | None, int]]:
    rows: list[tuple[bytes | None, int]] = [
        (pack([number, name, value]), 0) for number, (name, value) in enumerate(VALUES.items())
    ]
    rows.append((pack([2**64 - 1, "all", None, decimal_ext("1.5"), datetime_ext(0), b"\x01", True, 2]), 0))
    rows.append((pack([99, "extra", *[None] * 6, "more", {"k": 1}]), 0))
    rows.append((pack(["first", 100]), 1))
    rows.append((pack(["wrong", "type"]), 0))
    rows.append((None, 0))
    return rows


@pytest.fixture(scope="module")
def decoded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return the rows, decoded and keyed by one UDF each, written to Delta and read back."""
    path = str(tmp_path_factory.mktemp("typed") / "table")
    decode, key = tuple_columns(LAYOUT), key_columns([SPACE, REORDERED])
    rows = spark.createDataFrame(tuples(), "tuple binary, layout int").repartition(2)
    typed = rows.select(
        "tuple",
        decode(F.col("tuple"), F.col("layout")).alias("t"),
        key(F.col("tuple"), F.col("layout"), F.lit(True)).alias("k"),
    ).select("tuple", "t.*", F.col("k.key").alias("key"), F.col("k.error").alias("key_error"))
    assert typed.schema.fields[1:-2] == LAYOUT.decoded_schema().fields
    typed.write.format("delta").save(path)
    return spark.read.format("delta").load(path)


def one(decoded: DataFrame, name: str) -> Row:
    (row,) = decoded.where(F.col("name") == name).collect()
    return row


def value_of(decoded: DataFrame, name: str, sql: str) -> Any:
    """Evaluate SQL in one row; it needs `try_`, because Spark casts the variants of the other rows too."""
    (row,) = decoded.where(F.col("name") == name).select(F.expr(sql)).collect()
    return row[0]


def test_all_rows_are_read_back(decoded: DataFrame) -> None:
    assert decoded.count() == len(tuples())
    assert decoded.where("_error is null and tuple is not null").count() == len(VALUES) + 3
    (bad,) = decoded.where("_error is not null").collect()
    assert bad["_error"] == "field 1 (id): unsigned expected, string found"
    assert (bad["id"], bad["name"], bad["_extra"], bad["key"]) == (None, "type", None, None)
    assert bad["_misfits"][0] == "id"
    assert bad["key_error"] == "space things: key part 1 (field 1): unsigned expected, string found"
    (empty,) = decoded.where("tuple is null").collect()
    assert all(value is None for value in empty.asDict().values())


def test_typed_values(decoded: DataFrame) -> None:
    row = one(decoded, "all")
    assert row["id"] == Decimal(2**64 - 1)
    assert (row["balance"], row["blob"], row["ok"], row["num"]) == (Decimal("1.5"), b"\x01", True, 2.0)
    assert value_of(decoded, "all", "unix_micros(at)") == 0
    assert bytes(row["key"]) == b"\x91" + pack(2**64 - 1)
    moved = one(decoded, "first")
    assert (moved["id"], moved["value"], bytes(moved["key"])) == (Decimal(100), None, pack([100]))


@pytest.mark.parametrize("name", ["map", "many", "text", "long", "double", "big", "array", "empty", "odd"])
def test_sql_reads_a_variant_as_json(decoded: DataFrame, name: str) -> None:
    text = value_of(decoded, name, "to_json(value)")
    assert json.loads(text) == VALUES[name]


@pytest.mark.parametrize(
    ("name", "sql", "expected"),
    [
        ("map", "try_variant_get(value, '$.b[5]', 'bigint')", -(2**63)),
        ("map", "schema_of_variant(value)", "OBJECT<a: OBJECT<deep: ARRAY<BOOLEAN>>, b: ARRAY<BIGINT>>"),
        ("many", "try_variant_get(value, '$.key299', 'int')", 299),
        ("bytes", "try_variant_get(value, '$', 'binary')", bytearray(b"\x00\xff")),
        ("double", "schema_of_variant(value)", "DOUBLE"),
        ("big", "try_variant_get(value, '$', 'decimal(20,0)')", Decimal(2**64 - 1)),
        ("decimal", "try_variant_get(value, '$', 'decimal(10,2)')", Decimal("-12.34")),
        ("wide", "to_json(value)", "1234567890123456789012345678.0123456789"),
        ("uuid", "try_variant_get(value, '$', 'string')", UUID),
        ("at", "unix_micros(try_variant_get(value, '$', 'timestamp'))", 1700000000123456),
        ("interval", "try_variant_get(value, '$', 'string')", "+1 years, -3 days"),
        ("text", "try_variant_get(value, '$', 'string')", "short"),
        ("extra", "to_json(_extra)", '["more",{"k":1}]'),
        ("all", "value is null and _extra is null", True),
    ],
)
def test_sql_reads_into_a_variant(decoded: DataFrame, name: str, sql: str, expected: Any) -> None:
    assert value_of(decoded, name, sql) == expected


def test_binary_search_finds_every_key(decoded: DataFrame) -> None:
    """Spark searches objects of 32 fields and more in the order of UTF-16 units: surrogates come before U+FB00."""
    found = decoded.where("name = 'odd'").select(
        *(
            F.expr(f"try_variant_get(value, '$[\"{key}\"]', 'int')").alias(str(number))
            for key, number in ODD.items()
        )
    )
    assert list(found.first() or ()) == list(ODD.values())


def test_python_reads_a_variant(decoded: DataFrame) -> None:
    assert one(decoded, "map")["value"].toPython() == VALUES["map"]
    at = datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, datetime.UTC)
    assert one(decoded, "at")["value"].toPython() == at


def test_deltalake_reads_what_spark_wrote(decoded: DataFrame) -> None:
    deltalake = pytest.importorskip("deltalake")
    (path,) = {str(Path(file).parent) for file in decoded.inputFiles()}
    table = deltalake.DeltaTable(path.removeprefix("file:")).to_pyarrow_table(columns=["name", "value"])
    values = {row["name"]: row["value"] for row in table.to_pylist()}
    assert values["text"] == {"value": b"\x15short", "metadata": b"\x01\x00\x00"}
    assert values["all"] is None


def test_options_choose_the_types(spark: SparkSession) -> None:
    options = TypeOptions(unsigned="long", decimal_scale="string", integer="decimal")
    fields = (Field("u", "unsigned"), Field("d", "decimal"), Field("i", "integer"))
    layout: TableLayout = table_layout([Space(1, 1, "s", "memtx", fields)], options=options)
    rows = [(pack([2**63 - 1, decimal_ext("1E+3"), 2**64 - 1]),), (pack([2**63, decimal_ext("1"), 0]),)]
    typed = spark.createDataFrame(rows, "tuple binary").select(
        tuple_columns(layout)(F.col("tuple"), F.lit(0)).alias("t")
    )
    good, bad = typed.select("t.*").collect()
    assert (good["u"], good["d"], good["i"]) == (2**63 - 1, "1E+3", Decimal(2**64 - 1))
    assert bad["_error"] == "field u: a number beyond the range of bigint; `types.unsigned: precise` keeps it"

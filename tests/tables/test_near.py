"""A small table is read by delta-rs: the same rows as Spark reads, whatever their times."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from tables import warehouse
from tables.warehouse import Warehouse

pytestmark = pytest.mark.spark

COLUMNS = StructType([StructField("id", LongType()), StructField("at", TimestampType())])
ROWS = StructType([StructField("key", BinaryType()), *COLUMNS])
TIMES = (
    "0001-01-01 00:00:00",
    "1500-03-01 01:02:03.000001",
    "2026-11-22 01:02:03.654321",
    "2500-01-01 00:00:00.123456",
    "9999-12-31 23:59:59.999999",
)


@pytest.mark.parametrize("other_session", [False, True])
def test_times_of_any_year_are_those_that_spark_reads(
    spark: SparkSession, tmp_path: Path, other_session: bool
) -> None:
    place = Warehouse(spark, str(tmp_path))
    place.create("times", COLUMNS)
    session = place.session() if other_session else spark
    rows = session.createDataFrame(list(enumerate(TIMES)), "id bigint, at string")
    place.append("times", rows.selectExpr("id", "CAST(at AS timestamp) AS at"))

    def told(near: bool) -> list[tuple[int, str]]:
        frame = place.near("times", None, COLUMNS) if near else place.read("times")
        return [tuple(row) for row in frame.selectExpr("id", "CAST(at AS string)").orderBy("id").collect()]

    assert told(near=True) == told(near=False) == list(enumerate(TIMES))


def test_rows_with_certain_keys_are_those_that_spark_finds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Warehouse(spark, str(tmp_path))
    place.create("rows", ROWS)
    rows = spark.range(1000).selectExpr(
        "CAST(hex(id % 250) AS binary) AS key", "id", "timestamp_seconds(id) AS at"
    )
    for part in rows.randomSplit([1.0, 1.0, 1.0], seed=7):
        place.append("rows", part)
    keys = [b"0", b"F9", b"7F", b"FF", b""]  # the last two are in no row
    found = place.keyed("rows", None, ROWS, "key", pa.array(keys, pa.binary()))
    assert found is not None
    wanted = place.read("rows").where(F.col("key").isin(keys))
    assert sorted(found.collect()) == sorted(wanted.collect())
    assert found.count() == 12
    assert found.schema == wanted.schema
    none = place.keyed("rows", 0, ROWS, "key", pa.array(keys, pa.binary()))
    assert none is not None
    assert none.count() == 0
    monkeypatch.setattr(warehouse, "KEYED_BYTES", 10)
    assert place.keyed("rows", None, ROWS, "key", pa.array(keys, pa.binary())) is None

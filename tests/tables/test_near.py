"""A small table is read by delta-rs: the same rows as Spark reads, whatever their times."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from tables.warehouse import Warehouse

pytestmark = pytest.mark.spark

COLUMNS = StructType([StructField("id", LongType()), StructField("at", TimestampType())])
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
    warehouse = Warehouse(spark, str(tmp_path))
    warehouse.create("times", COLUMNS)
    session = warehouse.session() if other_session else spark
    rows = session.createDataFrame(list(enumerate(TIMES)), "id bigint, at string")
    warehouse.append("times", rows.selectExpr("id", "CAST(at AS timestamp) AS at"))

    def told(near: bool) -> list[tuple[int, str]]:
        frame = warehouse.near("times", None, COLUMNS) if near else warehouse.read("times")
        return [tuple(row) for row in frame.selectExpr("id", "CAST(at AS string)").orderBy("id").collect()]

    assert told(near=True) == told(near=False) == list(enumerate(TIMES))

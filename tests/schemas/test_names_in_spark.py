"""Spark and Delta accept the escaped names without quotes, and refuse the original ones."""

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from schemas.names import column_name, table_name

pytestmark = pytest.mark.spark

NAMES = [
    "my-space",
    "a.b",
    "имя",
    "SQLT",
    "sqlt",
    "a b",
    "_lsn",
    "Id",
    "id",
    "x,y;{z}=(1)\t",
    "`",
    "_cluster",
    "",
]


@pytest.fixture
def database(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE DATABASE names")
    yield "names"
    spark.sql("DROP DATABASE names CASCADE")


@pytest.mark.parametrize("name", ["my-space", "a.b", "имя", "a b"])
def test_spark_refuses_the_name_of_a_table(spark: SparkSession, database: str, name: str) -> None:
    with pytest.raises(PySparkException, match="INVALID_SCHEMA_OR_RELATION_NAME"):
        spark.sql(f"CREATE TABLE {database}.`{name}` (id INT) USING delta")


def test_one_table_holds_columns_of_all_names(spark: SparkSession, database: str) -> None:
    columns = [column_name(name) for name in NAMES]
    typed = ", ".join(f"{column} INT" for column in columns)  # not quoted: nobody needs to
    spark.sql(f"CREATE TABLE {database}.t ({typed}, _lsn BIGINT) USING delta")
    spark.sql(f"INSERT INTO {database}.t VALUES ({', '.join(map(str, range(len(NAMES))))}, 99)")
    assert spark.table(f"{database}.t").columns == [*columns, "_lsn"]
    assert spark.sql(f"SELECT {', '.join(columns)} FROM {database}.t").first() == tuple(range(len(NAMES)))


def test_tables_of_all_names_exist_together(spark: SparkSession, database: str) -> None:
    tables = [table_name(name) for name in ("SQLT", "sqlt", "2024", "a" * 300)]
    for number, table in enumerate(tables):
        one = spark.range(number, number + 1).coalesce(1)
        one.write.format("delta").saveAsTable(f"{database}.{table}")
    found = {
        row.tableName for row in spark.sql(f"SHOW TABLES IN {database}").collect() if not row.isTemporary
    }
    assert found == set(tables)
    rows = spark.sql(" UNION ALL ".join(f"SELECT '{one}', id FROM {database}.{one}" for one in tables))
    assert [tuple(row) for row in rows.collect()] == [(one, number) for number, one in enumerate(tables)]

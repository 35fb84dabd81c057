"""Each reader sees the same rows of a table with deletion vectors, whether the job or a user of Spark maintains it."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from jobs.maintain import maintain
from pipeline.compaction.rewrite import compact
from tests.pipeline.deployment import Deployment
from tests.pipeline.test_deletion_vectors import MODES, sources, vectors_of
from tests.pipeline.test_executors import POLICIES
from tests.soaked import partly_soaked
from warehouse.system_tables.maintenance import vacuum
from warehouse.warehouse import Warehouse

Rows = Counter[bytes]

SPACE = "accounts"
SIZES = [2_000, 2_000, 2_000, 5_000, 5_000, 10_000, *[30_000] * 40]


def with_query_builder(table: str) -> pa.Table:
    query = QueryBuilder().register("opened", DeltaTable(table)).execute("SELECT _tuple FROM opened")
    return pa.table(query.read_all())


def with_duckdb(table: str) -> pa.Table:
    arrow = with_query_builder(table)
    assert arrow.num_rows
    return duckdb.sql("SELECT _tuple FROM arrow").to_arrow_table()


READERS: Mapping[str, Callable[[str], pa.Table]] = {
    "QueryBuilder": with_query_builder,
    "DuckDB over QueryBuilder": with_duckdb,
    "pandas over QueryBuilder": lambda table: pa.Table.from_pandas(with_query_builder(table).to_pandas()),
    "Polars, scan_delta": lambda table: pl.scan_delta(table).select("_tuple").collect().to_arrow(),
    "Polars, read_delta": lambda table: pl.read_delta(table, columns=["_tuple"]).to_arrow(),
    "pandas over Polars": lambda table: pa.Table.from_pandas(
        pl.read_delta(table, columns=["_tuple"]).to_arrow().to_pandas()
    ),
}


def assert_readers_agree(spark: SparkSession, table: str, wanted: Rows, when: str) -> None:
    """Check what each reader sees; those that do not know vectors must refuse the table."""
    found = spark.read.format("delta").load(table).select("_tuple").collect()
    assert Counter(bytes(row[0]) for row in found) == wanted, (when, "Spark")
    for name, read in READERS.items():
        assert Counter(map(bytes, read(table)["_tuple"].to_pylist())) == wanted, (when, name)
    for method in ("to_pyarrow_table", "to_pyarrow_dataset", "to_pandas"):
        with pytest.raises((DeltaError, Exception), match=r"[dD]eletion ?[vV]ectors"):
            getattr(DeltaTable(table), method)()


def maintain_space(spark: SparkSession, deployment: Deployment, *, purge: bool = False) -> None:
    """Do what `maintain` does to the table of one space, with one VACUUM in all: it takes seconds."""
    config = deployment.config()
    warehouse = Warehouse(spark, config.warehouse, config.database)
    compact(warehouse.open_tables, SPACE, purge=purge)
    if purge:
        vacuum(warehouse, SPACE, 7 * 24.0)


def maintain_all(_: SparkSession, deployment: Deployment, *, purge: bool = False) -> None:
    assert maintain(deployment.config(), purge=purge) == 0


@pytest.mark.spark
@pytest.mark.parametrize("maintained", partly_soaked([maintain_space], [maintain_all]))
def test_each_reader_sees_the_rows_whatever_maintains_the_table(
    spark: SparkSession, tmp_path: Path, maintained: Callable[..., None]
) -> None:
    policy = POLICIES["by priority, with deletes"]
    plain, deployment = (
        Deployment(tmp_path / mode, sources(), **policy, **MODES[mode]) for mode in ("never", "always")
    )
    plain.run()
    deployment.run(SIZES)
    wanted = Counter(row["_tuple"] for row in plain.rows(SPACE))
    table = str(deployment.folder / "warehouse" / "aggregator.db" / SPACE)
    assert vectors_of(deployment)[SPACE]
    assert_readers_agree(spark, table, wanted, "written")
    maintained(spark, deployment)
    name = f"delta.`{table}`"
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"VACUUM {name}")
    assert_readers_agree(spark, table, wanted, "our maintain, Spark's OPTIMIZE and VACUUM")
    deployment.run()
    maintained(spark, deployment, purge=True)
    assert SPACE not in vectors_of(deployment)
    assert_readers_agree(spark, table, wanted, "--purge")

"""VACUUM on a table with deletion vectors: dead files of vectors go with the table's retention, live ones stay."""

import time
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from tests.warehouse.vectors import delete_rows
from warehouse.delta.data_files import write_file
from warehouse.delta.read import rows_of
from warehouse.system_tables.maintenance import vacuum
from warehouse.warehouse import Warehouse

TABLE = "s"
CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"


def delete(warehouse: Warehouse, *numbers: int) -> int:
    wanted = {b"%d" % number for number in numbers}
    return delete_rows(
        warehouse.location, TABLE, lambda rows: [one in wanted for one in rows["_key"].to_pylist()]
    )


def test_dead_vectors_go_and_live_ones_stay(tmp_path: Path, spark: SparkSession) -> None:
    warehouse = Warehouse(spark, str(tmp_path))
    warehouse.create(TABLE, StructType([StructField("_key", BinaryType())]))
    rows = pa.table({"_key": pa.array([b"%d" % number for number in range(10)], pa.binary())})
    warehouse.open_tables.commit(TABLE, [write_file(warehouse.location, TABLE, rows)])
    delete(warehouse, 1)
    (dead,) = Path(warehouse.location.at(TABLE)).glob("deletion_vector_*.bin")
    delete(warehouse, 2, 3)
    vacuum(warehouse, TABLE, 168)
    assert dead.exists(), "its version is younger than the retention"
    time.sleep(1.1)
    spark.conf.set(CHECK, "false")
    try:
        vacuum(warehouse, TABLE, 0)
    finally:
        spark.conf.unset(CHECK)
    left = list(Path(warehouse.location.at(TABLE)).glob("deletion_vector_*.bin"))
    assert (dead.exists(), len(left)) == (False, 1)
    assert warehouse.read(TABLE).count() == len(rows_of(DeltaTable(warehouse.location.uri(TABLE)))) == 7

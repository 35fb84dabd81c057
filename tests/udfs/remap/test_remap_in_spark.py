"""The instance of a row by its replica id and lsn, in queries over `format("xlog")`."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from udfs.remap.replica_ids import IdEntry, global_id_udf

pytestmark = pytest.mark.spark

ENTRIES = [
    IdEntry(1, 1, 10),
    IdEntry(2, 71, 20),
    IdEntry(3, 1, 30),
    IdEntry(3, 11, 31),
    IdEntry(3, 21, 30),
    IdEntry(4, 5, 50),
    IdEntry(4, 9, 51),
]


def expected(replica_id: int | None, lsn: int) -> int | None:
    """Return the instance of the last entry that begins at the lsn or before it."""
    own = [one for one in ENTRIES if one.replica_id == replica_id and one.since_lsn <= lsn]
    return own[-1].global_id if own else None


def test_a_row_belongs_to_the_instance_that_had_its_id_at_its_lsn(spark: SparkSession) -> None:
    """Rows older than the map have no known instance; a backfill may read such rows much later."""
    lsns = [1, 4, 5, 8, 9, 10, 11, 20, 21, 70, 71, 500]
    rows = [(r, lsn) for r in (None, 0, 1, 2, 3, 4, 31) for lsn in lsns]
    frame = spark.createDataFrame(rows, "replica_id int, lsn bigint")
    found = frame.withColumn("found", global_id_udf(ENTRIES)(F.col("replica_id"), F.col("lsn"))).collect()
    assert {tuple(row)[:2]: row.found for row in found} == {row: expected(*row) for row in rows}

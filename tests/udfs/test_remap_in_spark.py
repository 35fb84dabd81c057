"""Whose a row is, by its replica id and lsn: the column expression against the map's own words, row by row."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from udfs.remap import Mapped, Slots, global_id_column

pytestmark = pytest.mark.spark

ENTRIES = [
    Mapped(4, 1, 10, 1),
    Mapped(4, 2, 20, 71),
    Mapped(4, 3, 30, 1),
    Mapped(4, 3, 31, 11),
    Mapped(4, 3, 30, 21),
    Mapped(5, 1, 40, 1),
    Mapped(6, 3, 50, 5),
    Mapped(6, 3, 51, 9),
]


def expected(segment: int, replica_id: int | None, lsn: int) -> int | None:
    """Return the instance of the last entry that begins at the lsn or before it."""
    own = [e for e in ENTRIES if (e.segment, e.replica_id) == (segment, replica_id) and e.since_lsn <= lsn]
    return own[-1].global_id if own else None


def test_a_row_is_the_instances_that_had_the_id_at_its_lsn(spark: SparkSession) -> None:
    """Rows from before a map begins are nobody's that is known: a backfill brings such ones long after."""
    lsns = [1, 4, 5, 8, 9, 10, 11, 20, 21, 70, 71, 500]
    rows = [(s, r, lsn) for s in (4, 5, 6) for r in (None, 1, 2, 3, 31) for lsn in lsns]
    frame = spark.createDataFrame(rows, "segment int, replica_id int, lsn bigint")
    column = global_id_column(Slots(4, 3), ENTRIES)
    found = {tuple(row)[:3]: row.found for row in frame.withColumn("found", column).collect()}
    assert found == {row: expected(*row) for row in rows}

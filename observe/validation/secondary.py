"""Expectations of unique secondary indexes: no two winners of two replicasets violate one together.

`observe.validation.secondary_keys` finds the pairs; here each index is one row with the number of new pairs, so that a
pair in `_conflicts` fails only once.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from observe.validation.check import EXAMPLES, Check, few
from observe.validation.secondary_keys import IndexConflicts

TABLE = "_secondary_indexes"

_SCHEMA = StructType(
    [StructField("table", StringType()), StructField("index", StringType()), StructField("pairs", LongType())]
)


def index_check(spark: SparkSession, found: IndexConflicts) -> Check:
    """Return the check of all unique secondary indexes."""
    import great_expectations.expectations as gxe

    pairs = dict.fromkeys(found.checked, 0)
    for row in found.rows:
        pairs[row["space"], row["sequence"]] += 1
    rows = [{"table": table, "index": index, "pairs": count} for (table, index), count in pairs.items()]
    none = gxe.ExpectColumnValuesToBeInSet(
        column="pairs",
        value_set=[0],
        description="no two rows of two replicasets break a unique index together",
    )
    frame = few(spark, rows, _SCHEMA)
    return Check(TABLE, frame, (none,), ("table", "index", "pairs"), {"pairs": partial(_pairs, found)})


def _pairs(found: IndexConflicts) -> list[str]:
    return [
        f"{row['space']}.{row['sequence']}: two rows with one key, {row['key'].hex()} lost"
        for row in found.rows[:EXAMPLES]
    ]

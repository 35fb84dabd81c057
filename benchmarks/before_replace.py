"""What a choice between replicasets costs: 0, 1 and 50 % of the keys contended, policies native and in Python.

Only the choice is timed (`jobs.batch.decide`), from versions in memory to decided versions, as the best of some runs.
The unit is the same pass without any choice: each version's row passed through one window over its key.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from functools import partial

from jobs.batch.apply import Target
from jobs.batch.choices import Choice, choice_of
from jobs.batch.decide import decide
from jobs.batch.identities import Identities
from jobs.batch.pin import Pins
from jobs.batch.versions import FAULTS
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from config.deployment import Config
from config.policies import Policy
from jobs.session import spark_session
from schemas.layout import table_layout
from schemas.space import Field, KeyPart, Space

SPACE = Space(
    512,
    1,
    "accounts",
    "memtx",
    (
        Field("id", "unsigned"),
        Field("name", "string"),
        Field("value", "unsigned"),
        Field("updated", "unsigned"),
    ),
    (KeyPart(0, "unsigned"),),
)
IDS = Identities(["", "aaaaaaaa", "bbbbbbbb"], ["", "a1", "b1"])
POLICIES: Mapping[str, Policy] = {
    "last_write_wins": Policy(),
    "last_write_wins by a field": Policy(sequence=("updated",)),
    "max": Policy(policy="max", column="value"),
    "sum": Policy(policy="sum", columns=("value",)),
    "custom": Policy(policy="custom", function="benchmarks.before_replace:newer"),
}
SHARES = (0, 1, 50)
RUNS = 3


def newer(old: object, new: object, _change: object) -> object:
    """Keep the greater `updated`, as a user's function would."""
    return old if old["updated"] > new["updated"] else new  # type: ignore[index]


def versions(spark: SparkSession, keys: int, share: int) -> DataFrame:
    """Return versions of keys, of which `share` percent have two."""
    first = spark.range(keys).withColumn("replicaset_id", F.lit(1))
    second = spark.range(keys).where(F.col("id") % 100 < share).withColumn("replicaset_id", F.lit(2))
    rows = first.unionByName(second)

    def integer(value: Column) -> Column:
        return F.concat(F.lit("CE"), F.lpad(F.hex(value), 8, "0"))

    text = F.hex(F.encode(F.lpad(F.col("id").cast("string"), 20, "x"), "UTF-8"))
    stamp = (F.col("id") * 7919 + F.col("replicaset_id") * 104729) % 1000003
    parts = [F.lit("94"), integer(F.col("id")), F.lit("B4"), text, integer(stamp % 97), integer(stamp)]
    return rows.select(
        F.lit(0).alias("table"),
        "replicaset_id",
        F.unhex(F.lpad(F.hex("id"), 16, "0")).alias("_key"),
        F.lit(None).cast("int").alias("layout"),
        F.unhex(F.concat(*parts)).alias("tuple"),
        F.col("replicaset_id").cast("bigint").alias("global_id"),
        F.col("id").alias("lsn"),
        F.timestamp_seconds(stamp).alias("timestamp"),
        F.timestamp_seconds(stamp).alias("created"),
        F.lit("present").alias("state"),
        F.lit(True).alias("began"),
        F.lit(None).cast(FAULTS).alias("faults"),
        F.lit(False).alias("unknown"),
        F.lit(True).alias("changed"),
        F.lit(False).alias("is_row"),
    )


def best(work: Callable[[Pins], DataFrame]) -> float:
    """Return the seconds of the fastest run."""
    found = []
    for _ in range(RUNS):
        pins, began = Pins(is_small=False), time.perf_counter()
        work(pins).write.format("noop").mode("overwrite").save()
        found.append(time.perf_counter() - began)
        pins.release()
    return min(found)


def passed(rows: DataFrame, _pins: Pins) -> DataFrame:
    """Return the rows after one window over their key."""
    return rows.withColumn("count", F.count("*").over(Window.partitionBy("table", "_key")))


def chosen(rows: DataFrame, choice: Choice, pins: Pins) -> DataFrame:
    """Return the rows after a choice."""
    return decide(rows, IDS, {0: choice}, pins.cache)


def main() -> None:
    """Print seconds and ratios."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rows", type=int, default=500_000, metavar="N", help="keys")
    keys = options.parse_args().rows
    os.environ.setdefault(
        "PYSPARK_SUBMIT_ARGS", "--master local[2] --conf spark.ui.enabled=false pyspark-shell"
    )
    paths = {name: os.path.abspath(f".state/bench/{name}") for name in ("warehouse", "checkpoint")}  # noqa: PTH100
    config = Config.model_validate({**paths, "sources": [{"name": "none", "path": "none"}]})
    spark = spark_session(config, "before_replace")
    layout = table_layout([SPACE])
    target = Target(0, "accounts", layout, {1: 0, 2: 0}, is_empty=False, spaces=(SPACE,))
    for share in SHARES:
        rows = versions(spark, keys, share).persist()
        count = rows.count()
        unit = best(partial(passed, rows))
        print(f"{share} % of {keys} keys contended, {count} versions: one window takes {unit:.2f} s")
        for name, policy in POLICIES.items():
            choice = choice_of(target, policy, (), IDS)
            seconds = best(partial(chosen, rows, choice))
            rate = count / seconds
            print(f"  {name:28} {seconds:6.2f} s  {seconds / unit:5.2f} x  {rate:10.0f} versions/s")
        rows.unpersist()


if __name__ == "__main__":
    main()

"""What a choice between replicasets costs: 0, 1 and 50 % of the keys contended, by each kind of policy.

Only the choice is timed (`pipeline.resolve.choose`), from versions in memory to what stands under each key, as the
best of some runs. The unit is the same versions passed through one Spark window over their key.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from config.deployment import Config
from config.policies import Policy
from jobs.runtime.session import spark_session
from pipeline.resolve.choose import KeyVersions, choose
from pipeline.resolve.resolve_plan import ResolvePlan, TablePolicy, options_of
from schemas.space import Field, KeyPart, Space
from udfs.before_replace.policy import Formats
from udfs.versions.kernels.lives import PRESENT

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
REPLICASETS, INSTANCES = ["", "aaaaaaaa", "bbbbbbbb"], ["", "a1", "b1"]
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
    return rows.select("id", "replicaset_id", F.unhex(F.concat(*parts)).alias("tuple"), stamp.alias("stamp"))


def best(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest run."""
    found = []
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def passed(rows: DataFrame) -> None:
    """Pass the rows through one window over their key."""
    counted = rows.withColumn("count", F.count("*").over(Window.partitionBy("id")))
    counted.write.format("noop").mode("overwrite").save()


def in_memory(rows: DataFrame) -> KeyVersions:
    """Return the rows as the versions of keys of one table."""
    found = rows.toArrow().combine_chunks()
    keys = found["id"].to_numpy().astype(np.int32)
    replicasets = found["replicaset_id"].to_numpy()
    times = found["stamp"].to_numpy().astype(np.int64) * 1_000_000
    return KeyVersions(
        keys,
        np.zeros_like(keys),
        replicasets.astype(np.int32),
        np.full(len(keys), PRESENT, np.int8),
        found["tuple"].combine_chunks(),
        replicasets.astype(np.int64),
        keys.astype(np.int64),
        times,
        times,
    )


def plan_of(policy: Policy) -> ResolvePlan:
    """Return what a table's versions are resolved by."""
    formats, by_replicaset = Formats("accounts", (SPACE,)), np.zeros(len(REPLICASETS), np.int32)
    table = TablePolicy("accounts", policy.policy, options_of(policy, ()), formats, by_replicaset, False)
    return ResolvePlan(0, datetime.now(UTC), (table,), (True,), REPLICASETS, INSTANCES)


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
    for share in SHARES:
        rows = versions(spark, keys, share).persist()
        count = rows.count()
        unit, given = best(lambda rows=rows: passed(rows)), in_memory(rows)  # type: ignore[misc]
        print(f"{share} % of {keys} keys contended, {count} versions: one window takes {unit:.2f} s")
        for name, policy in POLICIES.items():
            plan = plan_of(policy)
            seconds = best(lambda given=given, plan=plan: choose(given, keys, plan))  # type: ignore[misc]
            rate = count / max(seconds, 1e-9)
            print(f"  {name:28} {seconds:6.2f} s  {seconds / unit:5.2f} x  {rate:10.0f} versions/s")
        rows.unpersist()


if __name__ == "__main__":
    main()

"""Time of the choice between replicasets' versions: by kind of policy, with 0, 1 and 50 % of the keys contended.

Only `pipeline.resolve.choose` is timed, on versions that are in memory; the fastest of three runs counts. It is
compared with Spark passing the same versions through one window over their key.
"""

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
from pipeline.resolve.resolve_plan import ResolvePlan, TablePolicy, policy_options
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
CONTENDED_PERCENTS = (0, 1, 50)
RUNS = 3


def newer(old: object, new: object, _change: object) -> object:
    """Return the tuple with the greater `updated`, as a user's policy would."""
    return old if old["updated"] > new["updated"] else new  # type: ignore[index]


def versions(spark: SparkSession, keys: int, contended_percent: int) -> DataFrame:
    """Return one version of each key by replicaset 1, and for some percent of the keys a second one by 2."""
    first = spark.range(keys).withColumn("replicaset_id", F.lit(1))
    second = (
        spark.range(keys).where(F.col("id") % 100 < contended_percent).withColumn("replicaset_id", F.lit(2))
    )
    rows = first.unionByName(second)

    def integer(value: Column) -> Column:
        return F.concat(F.lit("CE"), F.lpad(F.hex(value), 8, "0"))

    text = F.hex(F.encode(F.lpad(F.col("id").cast("string"), 20, "x"), "UTF-8"))
    stamp = (F.col("id") * 7919 + F.col("replicaset_id") * 104729) % 1000003
    parts = [F.lit("94"), integer(F.col("id")), F.lit("B4"), text, integer(stamp % 97), integer(stamp)]
    return rows.select("id", "replicaset_id", F.unhex(F.concat(*parts)).alias("tuple"), stamp.alias("stamp"))


def best_seconds(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some runs."""
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def choose_by_spark_window(rows: DataFrame) -> None:
    """Pass the rows through one Spark window over their key, into the noop sink."""
    counted = rows.withColumn("count", F.count("*").over(Window.partitionBy("id")))
    counted.write.format("noop").mode("overwrite").save()


def key_versions(rows: DataFrame) -> KeyVersions:
    """Return the rows as the versions that `choose` takes, all of one table."""
    arrow = rows.toArrow().combine_chunks()
    keys = arrow["id"].to_numpy().astype(np.int32)
    replicasets = arrow["replicaset_id"].to_numpy()
    times = arrow["stamp"].to_numpy().astype(np.int64) * 1_000_000
    return KeyVersions(
        keys,
        np.zeros_like(keys),
        replicasets.astype(np.int32),
        np.full(len(keys), PRESENT, np.int8),
        arrow["tuple"].combine_chunks(),
        replicasets.astype(np.int64),
        keys.astype(np.int64),
        times,
        times,
    )


def resolve_plan(policy: Policy) -> ResolvePlan:
    """Return the plan of a batch with one contended table and its policy."""
    formats, by_replicaset = Formats("accounts", (SPACE,)), np.zeros(len(REPLICASETS), np.int32)
    table = TablePolicy("accounts", policy.policy, policy_options(policy, ()), formats, by_replicaset, False)
    return ResolvePlan(0, datetime.now(UTC), (table,), (True,), REPLICASETS, INSTANCES)


def main() -> None:
    """Print the seconds of each policy, and their ratio to those of the window."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rows", type=int, default=500_000, metavar="N", help="number of keys")
    keys = options.parse_args().rows
    os.environ.setdefault(
        "PYSPARK_SUBMIT_ARGS", "--master local[2] --conf spark.ui.enabled=false pyspark-shell"
    )
    paths = {name: os.path.abspath(f".state/bench/{name}") for name in ("warehouse", "checkpoint")}  # noqa: PTH100
    config = Config.model_validate({**paths, "sources": [{"name": "none", "path": "none"}]})
    spark = spark_session(config, "before_replace")
    for percent in CONTENDED_PERCENTS:
        rows = versions(spark, keys, percent).persist()
        count, of_keys = rows.count(), key_versions(rows)
        window = best_seconds(lambda rows=rows: choose_by_spark_window(rows))  # type: ignore[misc]
        print(f"{percent} % of {keys} keys contended, {count} versions: one window takes {window:.2f} s")
        for name, policy in POLICIES.items():
            plan = resolve_plan(policy)
            seconds = best_seconds(lambda rows=of_keys, plan=plan: choose(rows, keys, plan))  # type: ignore[misc]
            rate = count / max(seconds, 1e-9)
            print(f"  {name:28} {seconds:6.2f} s  {seconds / window:5.2f} x  {rate:10.0f} versions/s")
        rows.unpersist()


if __name__ == "__main__":
    main()

"""The command `aggregator run`."""

import importlib
import os
import sys

import click

from jobs.runtime.command_line import (
    DONE,
    PENDING,
    command,
    config_option,
    load_deployment,
    print_result,
    spark_options,
)

PURGE_DELAY = "MIMALLOC_PURGE_DELAY"
"""The variable that Arrow's allocator reads when it is loaded: milliseconds until it gives memory back, -1: never."""


def load_arrow_that_keeps_memory() -> None:
    """Load Arrow so that it keeps freed memory for the next batch, if the user has not set `PURGE_DELAY`.

    By default the kernel maps and clears the memory of each batch again: a third of a large batch's time. Spark's
    processes do not inherit the setting: each would keep as much as its largest task needed.
    """
    if "pyarrow" in sys.modules or PURGE_DELAY in os.environ:
        return
    os.environ[PURGE_DELAY] = "-1"
    importlib.import_module("pyarrow")
    del os.environ[PURGE_DELAY]


@command(
    "run",
    "aggregator run --config deployment.yaml",
    "aggregator run --config deployment.yaml --once --master 'local[4]' --conf spark.driver.memory=4g",
)
@config_option
@click.option("--once", is_flag=True, help="Stop when the logs are read to their current end.")
@spark_options
def run(config: str, once: bool) -> int:
    """Read the logs of all sources into the Delta tables.

    Runs until it is stopped; with --once, until it has read all logs to their current end. Starts Spark in this
    process. To run on a cluster with its settings of Spark, use `spark-submit jobs/aggregate.py`. A new start continues
    where the last run stopped, even if that run was killed.
    """
    load_arrow_that_keeps_memory()
    from jobs.aggregate import aggregate

    end = aggregate(load_deployment(config), once=once)
    for text in (*end.pending, *end.set_aside, *end.misfits):
        print_result(text)
    if end.pending or end.set_aside or end.misfits:
        what = "waits" if end.pending else "is in no table" if end.set_aside else "is left out"
        print_result(
            f"read up to epoch {end.epoch}; what is named above {what}",
            f"aggregator status --config {config}",
        )
        return PENDING if end.pending or end.set_aside else DONE
    if end.epoch < 0:
        print_result("no source has a row yet", "aggregator status --config " + config)
    else:
        print_result(f"everything is done up to epoch {end.epoch}", f"aggregator report --config {config}")
    return DONE

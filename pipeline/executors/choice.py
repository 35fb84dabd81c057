"""Chooses where a batch is processed, in the driver or in Spark's tasks, and how its rows get there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from config.deployment import Config, ExecutorChoice
from pipeline.executors.cell_files import CellFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20

MIN_FILE_LOG_BYTES = 1 * MIB
"""The rows of a batch of at most so many bytes of logs stay in the cells."""

DRIVER_LOG_BYTES = 40 * MIB
"""Under `auto`, a batch of at most so many bytes of logs is processed in the driver, if Spark runs on one machine. The
rows of compressed logs are some seven times as large. Tasks on the same cores take longer."""

DRIVER_LOG_BYTES_ON_CLUSTER = 4 * MIB
"""Under `auto`, a batch of at most so many bytes of logs is processed in the driver of a cluster."""


def runs_on_cluster(spark: SparkSession) -> bool:
    """Return whether tasks may run on other machines than the driver."""
    return not str(spark.sparkContext.master).startswith("local")


def max_driver_log_bytes(choice: ExecutorChoice, local_bytes: int, *, is_cluster: bool) -> int:
    """Return how many bytes of logs a batch may have at most to be processed in the driver; 0: it never is.

    Decoded rows, which `local_bytes` limits, are not smaller than the logs.
    """
    if choice == "tasks":
        return 0
    if choice == "driver":
        return local_bytes
    return min(local_bytes, DRIVER_LOG_BYTES_ON_CLUSTER if is_cluster else DRIVER_LOG_BYTES)


def cell_files(config: Config, *, is_cluster: bool) -> CellFiles | None:
    """Return which batches of a deployment have their rows in files; None on a cluster of several machines."""
    if is_cluster:
        return None
    limit = max_driver_log_bytes(config.executor, config.local_bytes, is_cluster=False)
    return CellFiles(config.cache.cell_folder(config.checkpoint), MIN_FILE_LOG_BYTES, limit)

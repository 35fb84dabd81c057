"""Chooses where a batch is processed, in the driver or in Spark's tasks, and how its rows get there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from config.deployment import Config, ExecutorChoice
from pipeline.executors.cell_files import FOLDER, CellFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20

DRIVER_LOG_BYTES_ON_CLUSTER = 4 * MIB
"""Under `auto`, a batch of at most so many bytes of logs is processed in the driver of a cluster."""


def runs_on_cluster(spark: SparkSession) -> bool:
    """Return whether tasks may run on other machines than the driver."""
    return not str(spark.sparkContext.master).startswith("local")


def cell_folder(config: Config) -> str:
    """Return the folder for the rows of batches in files."""
    return str(Path(config.cache.folder(config.checkpoint)) / FOLDER)


def max_driver_log_bytes(choice: ExecutorChoice, local_bytes: int, *, is_cluster: bool) -> int:
    """Return how many bytes of logs a batch may have at most to be processed in the driver; 0: it never is.

    Args:
        local_bytes: The greatest size of its decoded rows, which are not smaller than the logs. With all of Spark on
            one machine, `auto` lets the driver process such a batch, since tasks would take longer on the same cores.
    """
    if choice == "tasks":
        return 0
    if choice == "auto" and is_cluster:
        return min(local_bytes, DRIVER_LOG_BYTES_ON_CLUSTER)
    return local_bytes


def cell_files(config: Config, *, is_cluster: bool) -> CellFiles | None:
    """Return which batches of a deployment have their rows in files; None on a cluster of several machines."""
    if is_cluster:
        return None
    limit = max_driver_log_bytes(config.executor, config.local_bytes, is_cluster=False)
    return CellFiles(cell_folder(config), limit)

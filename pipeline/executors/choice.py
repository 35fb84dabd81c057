"""Chooses where a batch is processed, in the driver or in Spark's tasks, and how its rows get there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from config.deployment import ExecutorChoice
    from sources.xlog.stream.segment import Segment

MIB = 1 << 20

CELL_LOG_BYTES = 1 * MIB
"""On one machine the cells of a batch hold its rows only up to so many bytes of logs. Larger batches are read by the
driver itself, or again by the tasks that merge them: to move the rows through Spark would take longer."""

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
    return min(local_bytes, DRIVER_LOG_BYTES_ON_CLUSTER) if is_cluster else local_bytes


def is_read_by_driver(choice: ExecutorChoice, log_bytes: int, *, is_cluster: bool, is_first: bool) -> bool:
    """Return whether the driver reads a batch itself, and Spark's tasks only count its rows.

    Args:
        is_first: Whether no batch came before it in this process: Spark's Python processes would need seconds to load
            the compiled kernels, which the driver has loaded already.
    """
    return choice != "tasks" and not is_cluster and (is_first or log_bytes > CELL_LOG_BYTES)


def cells_hold_rows(segments: Sequence[Segment], *, is_cluster: bool) -> bool:
    """Return whether the cells of a batch hold its rows, or only say where they are."""
    return is_cluster or log_bytes_of(segments) <= CELL_LOG_BYTES


def log_bytes_of(segments: Sequence[Segment]) -> int:
    """Return the number of bytes of logs that a batch reads."""
    return sum(segment.end - segment.begin for segment in segments)

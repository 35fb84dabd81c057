"""Chooses where a batch is processed: in the driver, or in Spark's tasks."""

from __future__ import annotations

from config.deployment import ExecutorChoice

MIB = 1 << 20

DRIVER_LOG_BYTES = 16 * MIB
"""Under `auto`, a batch of at most so many bytes of logs is processed in the driver: tasks would take longer."""

DRIVER_LOG_BYTES_ON_CLUSTER = 4 * MIB
"""The same on a cluster, where the driver is one machine of many."""


def max_driver_log_bytes(choice: ExecutorChoice, local_bytes: int, *, is_cluster: bool) -> int:
    """Return how many bytes of logs a batch may have at most to be processed in the driver; 0: it never is.

    Decoded rows, which `local_bytes` limits, are not smaller than the logs.
    """
    if choice == "tasks":
        return 0
    if choice == "driver":
        return local_bytes
    return min(local_bytes, DRIVER_LOG_BYTES_ON_CLUSTER if is_cluster else DRIVER_LOG_BYTES)

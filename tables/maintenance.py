"""OPTIMIZE and VACUUM of the warehouse's tables, for the holder of the writer's lock.

Joined files hold the same rows; the commit bears the aggregator's mark, so a writer that dies before the epoch takes it
back. VACUUM removes files that no version younger than its retention needs: never those of the newest one.
"""

from __future__ import annotations

from delta.tables import DeltaTable

from tables.append import MARK
from tables.warehouse import USER_METADATA, Warehouse


def compact(warehouse: Warehouse, table: str) -> int:
    """Join a table's small files, and return how many were joined."""
    session = warehouse.spark.newSession()
    session.conf.set(USER_METADATA, MARK)
    optimize = DeltaTable.forPath(session, warehouse.path(table)).optimize()
    metrics = optimize.executeCompaction().select("metrics.numFilesRemoved").first()
    return int(metrics[0]) if metrics is not None else 0


def vacuum(warehouse: Warehouse, table: str, hours: float) -> None:
    """Remove files that no version of the last `hours` needs."""
    warehouse.delta(table).vacuum(hours)

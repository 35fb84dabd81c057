"""Where the daemon begins an empty or lost spool: after the rows in the tables (documents 000, 001).

The tables' `_vclock` uses global ids; a master is asked in the ids of its own replicaset, by the inverse of the
source's applier map. Rows that wait in `_pending` are not settled and are read again. Reads the tables only, without
Spark.
"""

from __future__ import annotations

import logging
from pathlib import Path

from config.subscribe import Subscribe
from jobs.cluster import IdTables, position
from sources.spool.state import read_state
from sources.subscribe.options import Start
from warehouse.newest_epoch import EPOCHS
from warehouse.read_only import ReadOnlyWarehouse

log = logging.getLogger(__name__)


def is_empty(spool: Path) -> bool:
    """Whether a spool has no file yet.

    Raises
    ------
    SpoolError
        The spool is damaged.

    """
    return not spool.is_dir() or read_state(spool).vclock is None


def start_of(tables: IdTables, source: str) -> Start | None:
    """Return the position of a source's replicaset in the tables; None if they do not have the source."""
    for uuid in tables.read_of(source):
        return Start(uuid, position(tables, uuid, source))
    return None


def starts(section: Subscribe) -> list[Start | None]:
    """Return where each replicaset's spool begins: None if it continues, or begins with a snapshot.

    Raises
    ------
    WarehouseError
        The tables cannot be read; beginning with a snapshot instead would silently leave a gap.

    """
    if section.warehouse is None:
        return [None] * len(section.replicasets)
    warehouse = ReadOnlyWarehouse(section.warehouse, section.database)
    tables = IdTables(warehouse) if warehouse.has(EPOCHS) else None
    found = []
    for replicaset in section.replicasets:
        empty = tables is not None and is_empty(Path(replicaset.spool))
        start = (
            start_of(tables, replicaset.source or replicaset.name) if tables is not None and empty else None
        )
        if start is not None:
            log.info(
                "%s: the spool is empty: it begins at %s, as the tables say", replicaset.name, start.vclock
            )
        found.append(start)
    return found

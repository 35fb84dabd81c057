"""`_vclock`: the last settled lsn of each instance, one row per change of it; the row of the highest epoch is current.

Rows are only appended, so that no existing file is written again. `_epochs` has the same lsns by the replica ids of
each replicaset; here they are by global id, for SQL and for the inverse map (document 000, step 3). Replicaset 0 is the
aggregator itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from warehouse.read import newest_of_each
from warehouse.warehouse import Warehouse

TABLE = "_vclock"


@dataclass(frozen=True)
class Component:
    """One row of the table.

    Parameters
    ----------
    replicaset_id : int
    global_id : int or None
        Null if the instance is not known: rows of a local space in a log that names no instance.
    local_id : int or None
        The component of the replicaset's vclocks. 0 counts the changes of local spaces on the instance `global_id`;
        null is the aggregator's own component.
    lsn : int
    epoch : int

    """

    replicaset_id: int
    global_id: int | None
    local_id: int | None
    lsn: int
    epoch: int


def newest(rows: Iterable[Mapping[str, Any]]) -> list[Component]:
    """Return the newest row of each component."""
    found: dict[tuple[Any, ...], Component] = {}
    for row in sorted(rows, key=lambda row: int(row["epoch"])):
        component = Component(**row)
        found[component.replicaset_id, component.global_id, component.local_id] = component
    return list(found.values())


def load(warehouse: Warehouse) -> list[Component]:
    """Return the current row of each component."""
    rows = newest_of_each(warehouse.opened(TABLE), ("replicaset_id", "global_id", "local_id"))
    return [Component(**row) for row in rows]

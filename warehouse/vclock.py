"""`_vclock`: the last settled lsn of each instance, as rows that are appended when it moves.

An append touches no file that is there already; the row of the highest epoch holds. The same numbers stand in
`_epochs` in the replicasets' own ids; here they are in global ids, for SQL and for the inverse map (document 000,
step 3). The aggregator's own component is that of replicaset 0.
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
        Null where the instance is not known: rows of a local space in a log without an instance.
    local_id : int or None
        The component in the replicaset's own vclocks; 0 counts the changes of local spaces of `global_id` alone;
        null is the aggregator's own.
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
    """Return the components that hold."""
    rows = newest_of_each(warehouse.opened(TABLE), ("replicaset_id", "global_id", "local_id"))
    return [Component(**row) for row in rows]

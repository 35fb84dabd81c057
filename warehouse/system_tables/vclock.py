"""`_vclock`: the last settled lsn of each instance, with one row for each change; the row of the newest epoch is valid.

The settled lsn of an instance is the one up to which all of its rows were applied, or never will be. Rows are only
appended, so that no existing file is written again. `_epochs` has the same lsns by the replica ids of each replicaset;
here they are by global id, for SQL, and to compute a vclock in the replica ids of a source (`observe.instance_ids`).
Replicaset 0 is the aggregator itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from warehouse.delta.read import newest_of_each
from warehouse.warehouse import Warehouse

TABLE = "_vclock"


@dataclass(frozen=True)
class VclockComponent:
    """One row of the table: the settled lsn of an instance (or of its local spaces) after an epoch."""

    replicaset_id: int
    global_id: int | None
    """None if the instance is not known: rows of a local space in a log that names no instance."""
    local_id: int | None
    """The replica id of the component in the replicaset's vclocks. 0 counts the changes of local spaces on the instance
    `global_id`; None is the aggregator's own component."""
    lsn: int
    epoch: int


def newest_components(rows: Iterable[Mapping[str, Any]]) -> list[VclockComponent]:
    """Return the newest row of each component, a (replicaset, instance, replica id), among the given rows."""
    found: dict[tuple[Any, ...], VclockComponent] = {}
    for row in sorted(rows, key=lambda row: int(row["epoch"])):
        component = VclockComponent(**row)
        found[component.replicaset_id, component.global_id, component.local_id] = component
    return list(found.values())


def load(warehouse: Warehouse) -> list[VclockComponent]:
    """Return the newest row of each component that the table of a warehouse has."""
    rows = newest_of_each(warehouse.opened(TABLE), ("replicaset_id", "global_id", "local_id"))
    return [VclockComponent(**row) for row in rows]

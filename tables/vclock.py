"""`_vclock`: the last settled lsn of each instance, as rows that are appended when it moves.

A MERGE would cost a second each batch, an append a fifth of that; the row of the highest epoch holds. The same
numbers stand in `_epochs` in the replicasets' own ids; here they are in global ids, for SQL and for the inverse
map (document 000, step 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tables.warehouse import Warehouse

TABLE = "_vclock"


@dataclass(frozen=True)
class Component:
    """One row of the table."""

    replicaset_id: int
    global_id: int | None
    local_id: int | None
    lsn: int
    epoch: int


def append(warehouse: Warehouse, components: Iterable[Component]) -> None:
    """Add the components that moved."""
    rows = [asdict(component) for component in components]
    if rows:
        warehouse.append(TABLE, warehouse.rows(TABLE, rows))

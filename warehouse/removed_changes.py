"""What maintenance has removed from `_changelog`, as recorded in `_retention`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from warehouse.place import Place
from warehouse.read import rows_of

TABLE = "_retention"
CHANGELOG = "_changelog"


def last_removed(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], int]:
    """Return the lsn up to which rows were removed from `_changelog`, by (replicaset id, global id).

    Parameters
    ----------
    rows : iterable of mapping
        Rows of `_retention`.

    """
    found: dict[tuple[int, int], int] = {}
    for row in rows:
        if row["table"] == CHANGELOG and row["lsn"] is not None and row["global_id"] is not None:
            origin = (int(row["replicaset_id"]), int(row["global_id"]))
            found[origin] = max(found.get(origin, 0), int(row["lsn"]))
    return found


def cleaned_replicasets(place: Place) -> set[int]:
    """Return the ids of replicasets with rows removed from `_changelog`, whether they came from logs or snapshots."""
    table = place.open(TABLE)
    rows = [] if table is None else rows_of(table)
    return {int(row["replicaset_id"]) for row in rows if row["table"] == CHANGELOG}


def gone_lsns(place: Place) -> dict[tuple[int, int], int]:
    """Return `last_removed` of a warehouse; empty for one of an earlier release, which has no `_retention`."""
    table = place.open(TABLE)
    return {} if table is None else last_removed(rows_of(table))

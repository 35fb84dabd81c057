"""What maintenance has removed: files of old epochs, and rows of `_changelog`.

Maintenance with `--keep-days n` removes the files and log entries that no version of the last n days needs. So the
epochs committed in these days stay readable, and also the one before them: it was the newest when they began. Rows that
were removed from `_changelog` are recorded in `_retention`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from schemas.states import RequestKind, RequestState
from warehouse.newest_epoch import EPOCHS
from warehouse.place import Place
from warehouse.read import rows_of

REQUESTS, RETENTION, CHANGELOG = "_requests", "_retention", "_changelog"
NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def horizon_of(requests: Iterable[Mapping[str, Any]]) -> datetime:
    """Return the horizon: maintenance may have removed what was replaced before it, and nothing newer.

    Parameters
    ----------
    requests : iterable of mapping
        Rows of `_requests`.

    """
    # Maintenance that failed counts, too: it may have removed files before it failed.
    done = [
        row
        for row in requests
        if row["kind"] == RequestKind.MAINTENANCE and row["state"] != RequestState.ASKED
    ]
    return max(map(_horizon_of_one, done), default=NEVER)


def _horizon_of_one(request: Mapping[str, Any]) -> datetime:
    """Return the horizon of one maintenance; `NEVER` if its arguments are invalid, so that it was refused."""
    try:
        days = int(json.loads(request["arguments"])["keep_days"])
        return max(request["changed_at"] - timedelta(days=days), NEVER) if days > 0 else NEVER
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return NEVER


def first_kept(epochs: Mapping[int, datetime], horizon: datetime) -> int:
    """Return the first epoch that can be read: the one that was the newest at the horizon.

    Parameters
    ----------
    epochs : mapping of int to datetime
        Epoch to the time of its commit; at least one.
    horizon : datetime

    """
    before = [epoch for epoch, committed in epochs.items() if committed <= horizon]
    return max(before, default=min(epochs))


def kept(place: Place) -> tuple[datetime, int]:
    """Return the horizon of a warehouse (`horizon_of`), and its first epoch that can be read."""
    table, asked = place.open(EPOCHS), place.open(REQUESTS)
    rows = [] if table is None else rows_of(table, ["epoch", "committed_at"])
    horizon = horizon_of(
        [] if asked is None else rows_of(asked, ["kind", "state", "changed_at", "arguments"])
    )
    return horizon, first_kept({int(row["epoch"]): row["committed_at"] for row in rows}, horizon)


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
    table = place.open(RETENTION)
    rows = [] if table is None else rows_of(table)
    return {int(row["replicaset_id"]) for row in rows if row["table"] == CHANGELOG}


def gone_lsns(place: Place) -> dict[tuple[int, int], int]:
    """Return `last_removed` of a warehouse; empty for one of an earlier release, which has no `_retention`."""
    table = place.open(RETENTION)
    return {} if table is None else last_removed(rows_of(table))

"""The epochs that can still be read, because maintenance has not removed their files.

Maintenance with `--keep-days n` removes the files and log entries that no version of the last n days needs. So the
epochs committed in these days stay readable, and also the one before them: it was the newest when they began.
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

REQUESTS = "_requests"
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

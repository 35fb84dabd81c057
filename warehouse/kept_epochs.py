"""The epochs that can still be read, since no maintenance has removed their files.

A maintenance that keeps n days removes files and log entries that no version has needed for n days. So
every epoch that was the newest one at a moment since then stays: those committed since, and the one before.
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
    """Return since when everything is kept: the latest moment to which a maintenance has reached.

    Parameters
    ----------
    requests : iterable of mapping
        Rows of `_requests`.

    """
    # One that failed may have removed files before.
    done = [
        row
        for row in requests
        if row["kind"] == RequestKind.MAINTENANCE and row["state"] != RequestState.ASKED
    ]
    return max(map(_reach_of, done), default=NEVER)


def _reach_of(request: Mapping[str, Any]) -> datetime:
    """Return the moment to which a maintenance has reached; `NEVER` if its arguments are none, so it was refused."""
    try:
        days = int(json.loads(request["arguments"])["keep_days"])
        return max(request["changed_at"] - timedelta(days=days), NEVER) if days > 0 else NEVER
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return NEVER


def first_kept(epochs: Mapping[int, datetime], horizon: datetime) -> int:
    """Return the first epoch that is kept: the newest one at the horizon.

    Parameters
    ----------
    epochs : mapping of int to datetime
        When each was committed; at least one.
    horizon : datetime

    """
    before = [epoch for epoch, committed in epochs.items() if committed <= horizon]
    return max(before, default=min(epochs))


def kept(place: Place) -> tuple[datetime, int]:
    """Return since when everything is kept, and the first epoch that is."""
    table, asked = place.open(EPOCHS), place.open(REQUESTS)
    rows = [] if table is None else rows_of(table, ["epoch", "committed_at"])
    horizon = horizon_of(
        [] if asked is None else rows_of(asked, ["kind", "state", "changed_at", "arguments"])
    )
    return horizon, first_kept({int(row["epoch"]): row["committed_at"] for row in rows}, horizon)

"""Maintenance of tables: how long Delta keeps files and log entries, VACUUM, and what maintenance has removed so far.

VACUUM removes files that no version within the retention needs, and never those of the newest version. An epoch is read
at the table versions that it names, so their files and log entries must exist as long as the epoch is kept. Delta
forgets removed files after `delta.deletedFileRetentionDuration` (7 days by default), and VACUUM removes a forgotten
file by its age alone; log entries are removed after `delta.logRetentionDuration` (30 days). So both durations must be
at least as long as epochs are kept.

Maintenance with `--keep-days n` removes the files and log entries that no version of the last n days needs. So the
epochs committed in these days stay readable, and also the one that was the newest when these days began. Rows that
were removed from `_changelog` are recorded in `_retention`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from schemas.states import RequestKind, RequestState
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.delta.read import rows_of

if TYPE_CHECKING:
    from warehouse.warehouse import Warehouse


REQUESTS, RETENTION, CHANGELOG = "_requests", "_retention", "_changelog"
NO_HORIZON = datetime(1970, 1, 1, tzinfo=UTC)
"""The horizon of a warehouse without maintenance (`horizon_of`)."""

FILES_PROPERTY, LOG_PROPERTY = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
"""The properties of a table by which Delta keeps removed files, and log entries."""

DEFAULT_DAYS: Mapping[str, int] = {FILES_PROPERTY: 7, LOG_PROPERTY: 30}
"""Delta's defaults of these properties, in days."""

_DAYS_BY_UNIT = {"day": 1.0, "days": 1.0, "week": 7.0, "weeks": 7.0}

_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_DEFAULT_LISTING_TASKS = "10000"


def set_retention(warehouse: Warehouse, table: str, days: int) -> bool:
    """Make Delta keep a table's removed files for some days, its log for at least 30; return whether that changed it.

    A retention in another unit than days and weeks was set by a user, and stays.
    """
    current = {name: retention_days(name, warehouse.property(table, name)) for name in DEFAULT_DAYS}
    wanted = {FILES_PROPERTY: days, LOG_PROPERTY: max(days, DEFAULT_DAYS[LOG_PROPERTY])}
    changed = [name for name, kept in current.items() if kept is not None and kept != wanted[name]]
    values = {name: f"interval {wanted[name]} days" for name in changed}
    if not values:
        return False
    warehouse.open_tables.set_properties(table, values)
    return True


def retention_days(name: str, text: str | None) -> float | None:
    """Return the number of days in a retention property; None if its unit is not days or weeks."""
    if text is None:
        return DEFAULT_DAYS[name]
    words = text.lower().removeprefix("interval").split()
    if len(words) == 2 and words[1] in _DAYS_BY_UNIT and words[0].isdigit():
        return int(words[0]) * _DAYS_BY_UNIT[words[1]]
    return None


def vacuum(warehouse: Warehouse, table: str, hours: float) -> None:
    """Remove files that no table version of the last `hours` needs.

    Delta lists a table's files in as many tasks as a setting of Spark says. Here its default of 10,000 is lowered.
    """
    settings = warehouse.session.conf
    before = settings.get(_LISTING_TASKS) or ""
    if before == _DEFAULT_LISTING_TASKS:
        settings.set(_LISTING_TASKS, "32")
    try:
        warehouse.delta(table).vacuum(hours)
    finally:
        settings.set(_LISTING_TASKS, before)


def horizon_of(requests: Iterable[Mapping[str, Any]]) -> datetime:
    """Return the horizon: maintenance may have removed files that were replaced before this time, but no others."""
    # Maintenance that failed counts, too: it may have removed files before it failed.
    done = [row for row in requests if row["state"] != RequestState.ASKED]
    horizons = [_horizon_of_request(row) for row in done if row["kind"] == RequestKind.MAINTENANCE]
    # All earlier versions of some tables were removed then.
    horizons += [row["changed_at"] for row in done if row["kind"] == RequestKind.FORGET]
    return max(horizons, default=NO_HORIZON)


def _horizon_of_request(request: Mapping[str, Any]) -> datetime:
    """Return the horizon after a request for maintenance; `NO_HORIZON` if it was refused for invalid arguments."""
    try:
        days = int(json.loads(request["arguments"])["keep_days"])
        return max(request["changed_at"] - timedelta(days=days), NO_HORIZON) if days > 0 else NO_HORIZON
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return NO_HORIZON


def first_readable_epoch(epochs: Mapping[int, datetime], horizon: datetime) -> int:
    """Return the first epoch that can still be read: the one that was the newest at the horizon (`horizon_of`)."""
    before = [epoch for epoch, committed in epochs.items() if committed <= horizon]
    return max(before, default=min(epochs))


def retention_horizon(location: WarehouseLocation) -> tuple[datetime, int]:
    """Return (the horizon of a warehouse (`horizon_of`), the first epoch that can still be read)."""
    table, requests = location.open(EPOCHS), location.open(REQUESTS)
    rows = [] if table is None else rows_of(table, ["epoch", "committed_at"])
    horizon = horizon_of(
        [] if requests is None else rows_of(requests, ["kind", "state", "changed_at", "arguments"])
    )
    return horizon, first_readable_epoch({int(row["epoch"]): row["committed_at"] for row in rows}, horizon)


RowOrigin = tuple[int, int, int | None]
"""(replicaset id, global id, replica id) of rows; the replica id is None if none means the instance."""


def last_removed_lsns(rows: Iterable[Mapping[str, Any]]) -> dict[RowOrigin, int]:
    """Return origin to the lsn up to which the rows of that origin were removed from `_changelog`."""
    found: dict[RowOrigin, int] = {}
    for row in rows:
        if row["table"] == CHANGELOG and row["lsn"] is not None and row["global_id"] is not None:
            origin = (int(row["replicaset_id"]), int(row["global_id"]), row["local_id"])
            found[origin] = max(found.get(origin, 0), int(row["lsn"]))
    return found


def cleaned_replicasets(location: WarehouseLocation) -> set[int]:
    """Return the ids of the replicasets that had rows removed from `_changelog`, of logs or of snapshots."""
    table = location.open(RETENTION)
    rows = [] if table is None else rows_of(table)
    return {int(row["replicaset_id"]) for row in rows if row["table"] == CHANGELOG}


def read_last_removed_lsns(location: WarehouseLocation) -> dict[RowOrigin, int]:
    """Return `last_removed_lsns` of a warehouse; empty without a table `_retention`."""
    table = location.open(RETENTION)
    return {} if table is None else last_removed_lsns(rows_of(table))

"""Finds what is not done although the logs were read to their end: pending rows and requests, and sources not read.

`aggregator run --once` and `aggregator status` say it. The tables are read by delta-rs, without Spark.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from schemas.names import replicaset_label
from schemas.states import RequestState
from sources.xlog.directory.offset import InstantState
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.read import query_rows, rows_of

_PENDING_QUERY = """
    SELECT replicaset_id, reason, count(*) AS rows, min("timestamp") AS since FROM opened
    GROUP BY replicaset_id, reason ORDER BY replicaset_id, reason
"""

_OPEN_REQUESTS_QUERY = f"""
    SELECT request, kind, asked_at FROM
    (SELECT *, row_number() OVER (PARTITION BY request ORDER BY changed_at DESC) AS row_index FROM opened)
    WHERE row_index = 1 AND state = '{RequestState.ASKED}' ORDER BY asked_at
"""


def pending_rows(location: WarehouseLocation, leaders: Mapping[str, str]) -> tuple[str, ...]:
    """Return for each replicaset and reason a text: how many rows wait, since when, and for what.

    The time is that of the oldest of these rows, by the clock of the server that wrote its log.
    """
    pending, cluster = location.open("_pending"), location.open("_cluster")
    if pending is None or cluster is None:
        return ()
    uuids = {row["replicaset_id"]: str(row["replicaset_uuid"]) for row in rows_of(cluster)}
    return tuple(_pending_text(row, uuids, leaders) for row in query_rows(pending, _PENDING_QUERY))


def _pending_text(row: Mapping[str, Any], uuids: Mapping[int, str], leaders: Mapping[str, str]) -> str:
    uuid = uuids.get(row["replicaset_id"], str(row["replicaset_id"]))
    count = "1 row waits" if row["rows"] == 1 else f"{row['rows']} rows wait"
    since = row["since"]
    moment = "" if since is None else f" since {_utc(since).isoformat(timespec='seconds')}"
    return f"{count}{moment} in replicaset {replicaset_label(uuid, leaders.get(uuid))}: {row['reason']}"


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def open_requests(location: WarehouseLocation) -> tuple[str, ...]:
    """Return a text for each request to the writer that it has not carried out yet."""
    requests = location.open("_requests")
    asked = [] if requests is None else query_rows(requests, _OPEN_REQUESTS_QUERY)
    return tuple(f"{one['kind']} {one['request']}, asked {one['asked_at']}" for one in asked)


def leaders_of(end_offset: str | None) -> dict[str, str]:
    """Return the source that is read, by replicaset uuid, from an offset as text."""
    entries = (json.loads(end_offset or "null") or {}).get("replicasets", {})
    return {uuid: str(entry["leader"]) for uuid, entry in entries.items()}


def waiting_instants(end_offset: str | None) -> tuple[str, ...]:
    """Return a text for each replicaset that waits at an instant for the others, from an offset as text."""
    entries = (json.loads(end_offset or "null") or {}).get("replicasets", {})
    return tuple(
        f"replicaset {replicaset_label(uuid, entry['leader'])} waits for the others at the instant "
        f"{entry['instant']['label']} of {_of_microseconds(entry['instant']['time'])}"
        for uuid, entry in sorted(entries.items())
        if entry.get("instant", {}).get("state") == InstantState.WAITING
    )


def _of_microseconds(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1e6, UTC).isoformat(timespec="seconds")


def unread_sources(reported_offset: str | None) -> dict[str, str]:
    """Return the reason for each source that could not be read, from the newest offset that the stream reports."""
    report = json.loads(reported_offset or "null") or {}
    return {str(name): str(reason) for name, reason in report.get("unreadable", {}).items()}

"""`_requests`: work asked of the writer by those who do not hold its lock, and what became of it.

Appended; of one request the latest row holds. Asking needs no lock: the table is never rolled back, and appends of
several processes do not meet. Not here: what a kind of request does (`pipeline.requests.service`).
"""

from __future__ import annotations

import json
import uuid as uuids
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from schemas.states import RequestState
from warehouse.read import rows_of
from warehouse.warehouse import Warehouse

TABLE = "_requests"


@dataclass(frozen=True)
class Request:
    """One piece of work.

    Parameters
    ----------
    id : str
    kind : str
        backfill, snapshot, heal, rebuild, maintenance or conflicts.
    arguments : mapping
        What the kind takes.
    state : str
        asked, done or failed.
    asked_at : datetime
    message : str or None
        What was done, or why not.

    """

    id: str
    kind: str
    arguments: Mapping[str, Any]
    state: str
    asked_at: datetime
    message: str | None = None


def ask(warehouse: Warehouse, kind: str, arguments: Mapping[str, Any]) -> Request:
    """Write a request that the holder of the writer's lock answers."""
    request = Request(uuids.uuid4().hex, kind, dict(arguments), RequestState.ASKED, datetime.now(UTC))
    _append(warehouse, request)
    return request


def answer(warehouse: Warehouse, request: Request, state: str, message: str) -> Request:
    """Write the answer to a request."""
    answered = Request(request.id, request.kind, request.arguments, state, request.asked_at, message)
    _append(warehouse, answered)
    return answered


def _append(warehouse: Warehouse, request: Request) -> None:
    row = {
        "request": request.id,
        "kind": request.kind,
        "arguments": json.dumps(request.arguments, sort_keys=True),
        "state": request.state,
        "asked_at": request.asked_at,
        "changed_at": datetime.now(UTC),
        "message": request.message,
    }
    warehouse.append_rows(TABLE, [row])


def load(warehouse: Warehouse) -> tuple[Request, ...]:
    """Return the newest state of each request, the oldest request first."""
    newest: dict[str, dict[str, Any]] = {}
    for row in sorted(rows_of(warehouse.opened(TABLE)), key=lambda row: row["changed_at"]):
        newest[row["request"]] = row
    found = [
        Request(
            *(r["request"], r["kind"], _arguments(r["arguments"])),
            *(r["state"], r["asked_at"], r["message"]),
        )
        for r in newest.values()
    ]
    return tuple(sorted(found, key=lambda one: (one.asked_at, one.id)))


def _arguments(text: str | None) -> Mapping[str, Any]:
    """Return arguments from their JSON; none where they are no object, so that the writer refuses the request."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def open_requests(warehouse: Warehouse) -> tuple[Request, ...]:
    """Return the requests that have no answer yet, the oldest first."""
    return tuple(one for one in load(warehouse) if one.state == RequestState.ASKED)


def state_of(warehouse: Warehouse, request: Request) -> Request:
    """Return a request as it stands now."""
    return next((one for one in load(warehouse) if one.id == request.id), request)

"""`_requests`: work that other processes request from the writer, and the writer's answers.

Rows are only appended; the newest row of a request is its state. Asking needs no lock: the table is never rolled back,
and appends of several processes do not conflict. Not here: what a kind of request does (`pipeline.requests.service`).
"""

import json
import uuid as uuids
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from schemas.states import RequestState
from warehouse.delta.read import rows_of
from warehouse.warehouse import Warehouse

TABLE = "_requests"


@dataclass(frozen=True)
class Request:
    """A request to the writer, and its state."""

    id: str
    kind: str
    """backfill, snapshot, heal, rebuild, maintenance, conflicts or forget (`RequestKind`)."""
    arguments: Mapping[str, Any]
    state: str
    """asked, done or failed (`RequestState`)."""
    asked_at: datetime
    message: str | None = None
    """The writer's answer: what was done, or why it failed."""


def ask(warehouse: Warehouse, kind: str, arguments: Mapping[str, Any]) -> Request:
    """Write a request for the holder of the writer lock, and return it."""
    request = Request(uuids.uuid4().hex, kind, dict(arguments), RequestState.ASKED, datetime.now(UTC))
    _append(warehouse, request)
    return request


def answer(warehouse: Warehouse, request: Request, state: str, message: str) -> Request:
    """Write the writer's answer to a request, and return the request with it."""
    answered = Request(request.id, request.kind, request.arguments, state, request.asked_at, message)
    _append(warehouse, answered)
    return answered


def record(warehouse: Warehouse, kind: str, arguments: Mapping[str, Any], message: str) -> None:
    """Record work of this process, the holder of the writer lock, that others must know of."""
    request = Request(uuids.uuid4().hex, kind, dict(arguments), RequestState.DONE, datetime.now(UTC), message)
    _append(warehouse, request)


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
    """Return all requests in their newest states, the oldest request first."""
    newest: dict[str, dict[str, Any]] = {}
    for row in sorted(rows_of(warehouse.opened(TABLE)), key=lambda row: row["changed_at"]):
        newest[row["request"]] = row
    found = [
        Request(
            *(r["request"], r["kind"], _decode_arguments(r["arguments"])),
            *(r["state"], r["asked_at"], r["message"]),
        )
        for r in newest.values()
    ]
    return tuple(sorted(found, key=lambda one: (one.asked_at, one.id)))


def _decode_arguments(text: str | None) -> Mapping[str, Any]:
    """Decode the column `arguments`; return {} if it is not a JSON object: the writer then refuses the request."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def open_requests(warehouse: Warehouse) -> tuple[Request, ...]:
    """Return the requests that have no answer yet, the oldest first."""
    return tuple(one for one in load(warehouse) if one.state == RequestState.ASKED)


def with_newest_state(warehouse: Warehouse, request: Request) -> Request:
    """Return a request in its newest state."""
    return next((one for one in load(warehouse) if one.id == request.id), request)

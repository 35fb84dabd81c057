"""Asks the status page of a running job what needs attention there."""

import http.client
import json
import urllib.request
from collections.abc import Sequence
from typing import Any

from schemas.problems import Problem, problem_from_json
from sources.iproto.address import Address

ANSWER_SECONDS = 3.0
"""How long the answer of a status page is awaited; a job that is stopped accepts connections and answers nothing."""


def asked_status(address: Address) -> dict[str, Any] | None:
    """Return the content of a job's page `/status`; None if the job does not answer."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host or "", address.host)
    shown = f"[{host}]" if host and ":" in host else host
    try:
        with urllib.request.urlopen(
            f"http://{shown}:{address.port}/status", timeout=ANSWER_SECONDS
        ) as answer:
            found = json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return found if isinstance(found, dict) else None


def problems_in(status: dict[str, Any]) -> Sequence[Problem]:
    """Return the problems in the content of a page `/status`."""
    found = (problem_from_json(one) for one in status.get("problems", ()) if isinstance(one, dict))
    return [one for one in found if one is not None]

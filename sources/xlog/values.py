"""Parses the texts of options: sizes, counts, booleans, moments, lists, vclocks, uuids.

Each function raises `ValueError` with the reason; `sources.xlog.options` adds the option's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sources.xlog.format.vclock import vclock_of

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)b?\Z", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def size_of(text: str) -> int:
    """Return bytes: `64m`, `1g`, `500k`, `1048576` (as Spark writes sizes; powers of 1024); at least 1."""
    match = _SIZE.match(text.strip())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not a size like 64m")
    return int(match[1]) << 10 * _POWERS[match[2].lower()]


def count_of(text: str) -> int:
    """Return a whole number of at least 1."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ValueError(f"{text!r} is not a number of 1 or more")
    return int(text)


def boolean_of(text: str) -> bool:
    """Return `true` or `false`, in any case."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def microseconds_of(text: str) -> int:
    """Return microseconds since 1970: ISO 8601 (UTC if it names no zone), or seconds with a fraction."""
    if re.fullmatch(r"\d+(\.\d{1,6})?", text):
        whole, _, fraction = text.partition(".")
        return int(whole) * 1_000_000 + int(fraction.ljust(6, "0") or 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither an ISO 8601 time nor seconds since 1970") from None
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(microseconds=1)


def seconds_of(text: str) -> float:
    """Return seconds: a whole number or decimal fraction, not negative."""
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ValueError(f"{text!r} is not a number of seconds")
    return float(text)


def items_of(text: str) -> list[str]:
    """Return the items of a JSON list, or of a list with commas between."""
    if text.lstrip().startswith("["):
        items = json_of(text)
        if not isinstance(items, list):
            raise ValueError(f"{text!r} is not a list")
        return [str(item) for item in items]
    return [item.strip() for item in text.split(",") if item.strip()]


def uuid_of(text: object) -> str:
    """Return a uuid as Tarantool writes it: lower case, with dashes."""
    try:
        return str(UUID(str(text)))
    except ValueError:
        raise ValueError(f"{text!r} is not a uuid") from None


def uuids_of(text: str) -> frozenset[str]:
    """Return the uuids of a list; at least one."""
    uuids = frozenset(uuid_of(item) for item in items_of(text))
    if not uuids:
        raise ValueError("the list is empty")
    return uuids


def space_ids_of(text: str) -> frozenset[int]:
    """Return the space ids of a list; a name is refused, since one name has another id in each replicaset."""
    items = items_of(text)
    for item in items:
        if not (item.isascii() and item.isdecimal() and int(item) < 1 << 31):
            raise ValueError(f"{item!r} is not a space id: look a name up in _space (280) of that replicaset")
    if not items:
        raise ValueError("the list is empty")
    return frozenset(int(item) for item in items)


def json_of(text: str) -> Any:
    """Return decoded JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def vclock_option(text: str) -> dict[int, int]:
    """Return a vclock: `{"1": 100, "2": 7}`."""
    return vclock_of(json_of(text))


def vclocks_of(text: str) -> dict[str, dict[int, int]]:
    """Return a vclock per replicaset: `{"<replicaset uuid>": {"1": 100}}`."""
    document = json_of(text)
    if not isinstance(document, Mapping):
        raise ValueError("not an object {replicaset uuid: {replica id: lsn}}")
    return {uuid_of(uuid): vclock_of(document[uuid]) for uuid in sorted(document)}

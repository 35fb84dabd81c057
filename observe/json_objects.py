"""Converts results to JSON objects whose names are older than the names of the results' fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any


def json_object(result: Any, json_names: Mapping[str, str]) -> dict[str, Any]:
    """Return a dataclass, and the dataclasses in it, as a JSON object.

    Args:
        json_names: By field: its name in the object, if it has another one there.
    """
    return asdict(
        result, dict_factory=lambda pairs: {json_names.get(name, name): value for name, value in pairs}
    )

"""A policy that makes tuples, some of which no server takes."""

from typing import Any


def resolve(old: Any, new: Any, change: Any) -> Any:  # noqa: ARG001
    """Return a tuple whose name is no string where the key is even."""
    return new.update(name=7 if new.id % 2 == 0 else f"{old.name}+{new.name}")

"""How much of a test runs when: `make test` does some repetitions and generated cases, `make soak` all of them."""

import os
from collections.abc import Iterable
from typing import Any

import pytest


def partly_soaked(values: Iterable[Any], soaked: Iterable[Any]) -> list[Any]:
    """Return the values of a parameter, those of `soaked` marked as soaks."""
    return [*values, *(pytest.param(*_as_tuple(value), marks=pytest.mark.soak) for value in soaked)]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """Return the values of several parameters as they are, and a value of one in a tuple."""
    return value if isinstance(value, tuple) else (value,)


IS_SOAK = os.environ.get("SOAK") == "1"
"""Whether `make soak` runs the tests."""

SUITE_SHARE = 8
"""`make test` tries one of so many generated cases."""

MIN_EXAMPLES = 12
"""Number of generated cases that `make test` tries of each property, if it has so many."""


def examples(count: int) -> int:
    """Return how many generated cases of a property are tried: `count` in a soak, a share of them otherwise."""
    return count if IS_SOAK else min(count, max(MIN_EXAMPLES, count // SUITE_SHARE))

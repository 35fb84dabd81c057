"""Repetitions of a test: `make test` does some of them, `make soak` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def partly_soaked(values: Iterable[Any], soaked: Iterable[Any]) -> list[Any]:
    """Return the values of a parameter, those of `soaked` marked as soaks."""
    return [*values, *(pytest.param(value, marks=pytest.mark.soak) for value in soaked)]

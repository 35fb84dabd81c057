"""The list of the checks of single tables; to add one, write a function in this package and add a line to `CHECKS`.

The tables of spaces are checked together (`observe.validation.spaces`), unique secondary indexes across two rows
(`observe.validation.secondary_keys`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from observe.validation.check import Check, CheckFacts, OpenTable
from observe.validation.origins import origins_checks
from observe.validation.suites import system_checks
from pipeline.state import State

CHECKS: tuple[Callable[[OpenTable, State, CheckFacts], Iterator[Check]], ...] = (
    system_checks,
    origins_checks,
)
"""Each function yields checks of tables at the newest epoch."""

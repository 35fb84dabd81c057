"""The table of checks of single tables: a new one is a module here, or a function in one, and a line in `CHECKS`.

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
"""Each yields frames with their expectations, of the tables as of the last epoch."""

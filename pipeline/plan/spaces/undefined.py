"""Finds the ranges of a log in which a space id has no definition, and decides whether rows in them are applied.

A space id is unknown from the first row read, or from the drop of its space, until rows of `_space` and `_index` define
it. Until then its rows wait in `_pending`; the definition applies them in log order. After a drop, a truncation, or a
snapshot that contains the space, they are never applied: their effects are gone, or in the snapshot.

Spaces are unknown if the first file of a source is not the snapshot that defines them, if a whitelist excludes the
master that created the space, or if rows of several masters are merged by time.

Pure. `pipeline.plan.spaces.meanings_builder` assigns these rows to tables.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.plan.rows.position import BEGINNING, LogPosition
from pipeline.plan.spaces.system_rows import ControlChanges
from pipeline.state import SpaceDefinition
from schemas.iproto import SYSTEM_SPACE_ID_MAX
from schemas.states import SpaceEvent

_MISSING_DEFINITION = "space {} is not known: no row of _space has defined it"
_MISSING_DEFINITION_PATTERN = "^" + re.escape(_MISSING_DEFINITION).replace(r"\{\}", r"\d+") + "$"

ENGINE_WITHOUT_INDEX = "blackhole"
"""The engine whose spaces have neither a primary index nor tuples, so their definition has no index."""


@dataclass(frozen=True)
class UnknownRange:
    """A range of a log in which a space id is unknown."""

    begin: LogPosition
    """`BEGINNING` if the space was unknown before the batch."""
    end: LogPosition | None
    """None if the space is unknown at the end of the batch."""
    outcome: Literal["applied", "ended", "waiting"]
    """`applied`: the definition at `end` applies the rows; `ended`: they are never applied; `waiting`: they wait."""


UnknownRanges = Mapping[int, tuple[UnknownRange, ...]]
"""For each space id, the ranges of a batch in which the space is unknown, in log order."""


def is_defined(definition: SpaceDefinition | None) -> bool:
    """Return whether a definition is complete: rows of the space need not wait for another one."""
    if definition is None:
        return False
    space = definition.decoded()
    # A space with a malformed definition is refused; waiting would not help its rows.
    return bool(space.primary_key) or space.engine == ENGINE_WITHOUT_INDEX or space.fault is not None


def unknown_ranges(
    spaces: Mapping[int, SpaceDefinition],
    control: ControlChanges,
    space_ids: Iterable[int],
    snapshot_segments: frozenset[int],
) -> dict[int, tuple[UnknownRange, ...]]:
    """Return the ranges of a batch in which spaces are unknown, by space id."""
    wanted = {space_id for space_id in space_ids if space_id > SYSTEM_SPACE_ID_MAX}
    begins = {space_id: BEGINNING for space_id in wanted if not is_defined(spaces.get(space_id))}
    found: dict[int, list[UnknownRange]] = {}

    def end(space_id: int, position: LogPosition, outcome: Literal["applied", "ended"]) -> None:
        if space_id in begins:
            found.setdefault(space_id, []).append(UnknownRange(begins.pop(space_id), position, outcome))

    for position, space_id, definition in _definition_events(control, wanted):
        if is_defined(definition):
            end(space_id, position, "ended" if position.segment in snapshot_segments else "applied")
        elif definition is None:
            end(space_id, position, "ended")
            begins[space_id] = position
    for space_id, begin in begins.items():
        found.setdefault(space_id, []).append(UnknownRange(begin, None, "waiting"))
    return {space_id: tuple(ranges) for space_id, ranges in sorted(found.items())}


def _definition_events(
    control: ControlChanges, space_ids: set[int]
) -> list[tuple[LogPosition, int, SpaceDefinition | None]]:
    """Return the changes of the wanted spaces' definitions as (position, space id, definition), in log order."""
    events: list[tuple[LogPosition, int, SpaceDefinition | None]] = [
        (position, space_id, None)
        for position, space_id in control.emptied_unknown_spaces
        if space_id in space_ids
    ]
    for change in control.changes:
        if change.space_id in space_ids:
            is_gone = change.kind is SpaceEvent.DROPPED or not is_defined(change.definition)
            is_whole = change.kind is SpaceEvent.TRUNCATED and is_defined(change.definition)
            if not is_whole and not (change.kind is SpaceEvent.DEFINED and is_gone):
                events.append((change.position, change.space_id, None if is_gone else change.definition))
    return sorted(events, key=lambda event: event[0])


def missing_definition_reason(space_id: int) -> str:
    """Return the `_pending.reason` of rows that wait for the definition of a space."""
    return _MISSING_DEFINITION.format(space_id)


def waits_for_definition(reasons: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return which rows of `_pending` wait only for the definition of their space, by their column `reason`."""
    return pc.match_substring_regex(reasons, _MISSING_DEFINITION_PATTERN)

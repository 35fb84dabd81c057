"""Rows of spaces that are not defined yet: where they are in a log, and when they are applied.

A space id is unknown from the beginning of what is read, or from the drop of its space, until a row of `_space` and one
of `_index` define it. Its rows wait in `_pending` until then; the definition applies them, in the order of the log. A
drop, a truncation and a snapshot that has the space end them: what they did is gone, or in the snapshot.

They come about where the files of a source do not begin with the snapshot that defines its spaces, where a whitelist
leaves out the master that created the space, and where rows of several masters are merged by time.

Pure. Not here: the tables that such rows go to (`pipeline.plan.history`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.plan.control import ControlChanges, SpaceDefinition
from pipeline.plan.position import BEGINNING, LogPosition
from schemas.iproto import SYSTEM_ID_MAX
from schemas.states import SpaceEvent

_REASON = "space {} is not known: no row of _space has defined it"
_PATTERN = "^" + re.escape(_REASON).replace(r"\{\}", r"\d+") + "$"

WITHOUT_INDEX = "blackhole"
"""The engine whose spaces have no primary index, and no tuples."""


@dataclass(frozen=True)
class UnknownRange:
    """A part of a log in which a space id is unknown.

    Parameters
    ----------
    begin : LogPosition
        `BEGINNING` where the space was unknown before the batch.
    end : LogPosition or None
        None where it is unknown at the end of the batch.
    outcome : str
        `applied`: the definition at `end` applies the rows; `ended`: they mean nothing any more; `waiting`.

    """

    begin: LogPosition
    end: LogPosition | None
    outcome: Literal["applied", "ended", "waiting"]


UnknownRanges = Mapping[int, tuple[UnknownRange, ...]]
"""Space id to the parts of a batch in which it is unknown, in log order."""


def is_defined(rows: SpaceDefinition | None) -> bool:
    """Whether rows of a space can be understood by its definition."""
    if rows is None:
        return False
    space = rows.decoded()
    # One that is refused for its definition is known, by name: its rows wait for nothing.
    return bool(space.primary_key) or space.engine == WITHOUT_INDEX or space.fault is not None


def unknown_ranges(
    spaces: Mapping[int, SpaceDefinition],
    control: ControlChanges,
    ids: Iterable[int],
    snapshots: frozenset[int],
) -> dict[int, tuple[UnknownRange, ...]]:
    """Return where some spaces are unknown.

    Parameters
    ----------
    spaces : mapping of int to SpaceDefinition
        Of the replicaset before the batch.
    control : ControlChanges
        Of its control rows that count.
    ids : iterable of int
        Spaces with rows in the batch, or whose rows wait.
    snapshots : frozenset of int
        Segments that are snapshots.

    """
    wanted = {space_id for space_id in ids if space_id > SYSTEM_ID_MAX}
    begins = {space_id: BEGINNING for space_id in wanted if not is_defined(spaces.get(space_id))}
    found: dict[int, list[UnknownRange]] = {}

    def end(space_id: int, place: LogPosition, outcome: Literal["applied", "ended"]) -> None:
        if space_id in begins:
            found.setdefault(space_id, []).append(UnknownRange(begins.pop(space_id), place, outcome))

    for place, space_id, definition in _definition_events(control, wanted):
        if is_defined(definition):
            end(space_id, place, "ended" if place.segment in snapshots else "applied")
        elif definition is None:
            end(space_id, place, "ended")
            begins[space_id] = place
    for space_id, begin in begins.items():
        found.setdefault(space_id, []).append(UnknownRange(begin, None, "waiting"))
    return {space_id: tuple(ranges) for space_id, ranges in sorted(found.items())}


def _definition_events(
    control: ControlChanges, wanted: set[int]
) -> list[tuple[LogPosition, int, SpaceDefinition | None]]:
    """Return what happens to some spaces, in log order: a definition, or None where all tuples of it are gone.

    A truncation of a space that is known says nothing here: its rows are no riddle before or after it.
    """
    events: list[tuple[LogPosition, int, SpaceDefinition | None]] = [
        (place, space_id, None) for place, space_id in control.unknown_emptied if space_id in wanted
    ]
    for change in control.changes:
        if change.space_id in wanted:
            is_gone = change.kind is SpaceEvent.DROPPED or not is_defined(change.rows)
            is_whole = change.kind is SpaceEvent.TRUNCATED and is_defined(change.rows)
            if not is_whole and not (change.kind is SpaceEvent.DEFINED and is_gone):
                events.append((change.position, change.space_id, None if is_gone else change.rows))
    return sorted(events, key=lambda event: event[0])


def missing_definition_reason(space_id: int) -> str:
    """Return why rows of a space that is not known wait (`_pending.reason`)."""
    return _REASON.format(space_id)


def waits_for_definition(reasons: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return which rows of `_pending` wait for the definition of their space alone."""
    return pc.match_substring_regex(reasons, _PATTERN)

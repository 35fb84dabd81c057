"""Decides which replicasets wait at an instant of a sharded cluster, and when one stops waiting: pure functions.

A replicaset that reaches a marker waits there until every other one waits at a marker of the same label. Then the batch
is the instant: it has all rows up to the point of every replicaset, and none after. A replicaset stops waiting if the
others can no longer reach its point, or have not done so in time. Time means timestamps of rows, so that an old log is
read in the same way as a new one; for a replicaset without unread rows it is the time of the clock.

`sources.xlog.stream.markers` finds markers, `sources.xlog.stream.instants` reads up to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sources.xlog.directory.offset import Instant, InstantState, Offset, OffsetEntry

MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class ReadState:
    """How far one replicaset has been read.

    Parameters
    ----------
    instant : Instant or None
        The last instant that the replicaset has reached.
    time : int or None
        Timestamp of the next row, microseconds since 1970; the time of the clock if there is no row; None if it is
        unknown, as in a snapshot.

    """

    instant: Instant | None
    time: int | None


def hopeless_waits(
    reached: Mapping[str, ReadState], wait_seconds: float, now: int, unknown: str | None = None
) -> dict[str, str]:
    """Return the replicasets whose wait cannot succeed, each with the reason.

    Parameters
    ----------
    reached : mapping of str to ReadState
        By replicaset uuid, for all followed replicasets.
    wait_seconds : float
        How long after its marker a replicaset waits for the others.
    now : int
        The time of the clock, microseconds since 1970.
    unknown : str, optional
        A source that cannot be read and whose replicaset is unknown: no instant is complete without it.

    """
    found: dict[str, str] = {}
    for uuid, one in reached.items():
        if one.instant is None or one.instant.state is not InstantState.WAITING:
            continue
        until = one.instant.time + round(wait_seconds * MICROSECONDS)
        reasons = [
            _reason(one.instant, other, name, until) for name, other in reached.items() if name != uuid
        ]
        if unknown is not None and now > until:
            reasons.append(f"source {unknown} cannot be read")
        reason = next((text for text in reasons if text is not None), None)
        if reason is not None:
            found[uuid] = reason
    return found


def _reason(own: Instant, other: ReadState, name: str, until: int) -> str | None:
    """Return why another replicaset cannot reach a point any more; None if it waits there, or may still reach it."""
    at = other.instant
    if at is not None and at.label == own.label:
        if at.state is InstantState.WAITING:
            return None
        if at.state is InstantState.MISSED:
            return f"replicaset {name} has passed it before"
    # Markers have one order; points in different order in two replicasets are not instants.
    elif (
        at is not None
        and at.state in (InstantState.WAITING, InstantState.MISSED)
        and (at.time, at.label) > (own.time, own.label)
    ):
        return f"replicaset {name} has come to a later one, {at.label!r}, without it"
    if other.time is not None and other.time > until:
        return f"replicaset {name} has not come to it in time"
    return None


def common_label(ends: Mapping[str, OffsetEntry]) -> str | None:
    """Return the label at which all replicasets have just arrived, if there is one."""
    instants = [entry.instant for entry in ends.values()]
    labels = {one.label for one in instants if one is not None and one.state is InstantState.WAITING}
    is_whole = len(labels) == 1 and all(
        one is not None and one.state is InstantState.WAITING for one in instants
    )
    return labels.pop() if is_whole else None


def at_whole_instant(entry: OffsetEntry) -> OffsetEntry:
    """Return an entry at a point, marked as an instant that every replicaset has reached."""
    if entry.instant is None:
        return entry
    return replace(entry, instant=replace(entry.instant, state=InstantState.WHOLE))


def after_instant(entry: OffsetEntry, last: Instant | None) -> OffsetEntry:
    """Return an entry with the last instant of the stream, which it has passed."""
    if last is None:
        return entry
    following = {InstantState.WAITING: InstantState.MISSED, InstantState.WHOLE: InstantState.DONE}
    return replace(entry, instant=replace(last, state=following.get(last.state, last.state), rows=0, end=0))


@dataclass(frozen=True)
class WholeInstant:
    """An instant, and the replicasets at it."""

    label: str
    replicasets: frozenset[str]


def instant_between(start: Offset, end: Offset) -> WholeInstant | None:
    """Return the instant at which a batch ends, by its offsets; None if it does not end at one."""
    found = {}
    for uuid, entry in end.items():
        now, before = entry.instant, start[uuid].instant if uuid in start else None
        if now is not None and now.state is InstantState.WHOLE and now != before:
            found[uuid] = now.label
    labels = set(found.values())
    return WholeInstant(labels.pop(), frozenset(found)) if len(labels) == 1 else None

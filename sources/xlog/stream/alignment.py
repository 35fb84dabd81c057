"""Which replicasets wait at an instant of a sharded cluster, and when one stops waiting: pure rules.

A replicaset that comes to a marker stands there until every other one stands at a marker of the same label. Then the
batch is the instant: all rows up to the point of every replicaset, and none behind. One stops waiting where the others
cannot come to its point any more, or have not within a bound. Time is that of the rows where there are any, so that an
old log is read as the new one was; of a replicaset that has nothing left to read it is the clock's.

Not here: finding markers (`sources.xlog.stream.markers`), reading (`sources.xlog.stream.instants`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sources.xlog.directory.offset import Entry, Instant, InstantState, Offset

MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class Reach:
    """How far the stream is in one replicaset.

    Parameters
    ----------
    instant : Instant or None
        The last one that it has come to.
    time : int or None
        Of the next row, microseconds since 1970; the clock's where there is none; None where it cannot be known, in a
        snapshot.

    """

    instant: Instant | None
    time: int | None


def given_up(
    reached: Mapping[str, Reach], wait_seconds: float, now: int, unknown: str | None = None
) -> dict[str, str]:
    """Return the replicasets that wait in vain, each with the reason.

    Parameters
    ----------
    reached : mapping of str to Reach
        By replicaset uuid, all that are followed.
    wait_seconds : float
        How long after its marker a replicaset waits for the others.
    now : int
        The clock's time, microseconds since 1970.
    unknown : str, optional
        A source that cannot be read and whose replicaset is unknown: nothing is whole without it.

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


def _reason(own: Instant, other: Reach, name: str, until: int) -> str | None:
    """Return why another replicaset does not come to a point any more; None where it stands there, or may come."""
    at = other.instant
    if at is not None and at.label == own.label:
        if at.state is InstantState.WAITING:
            return None
        if at.state is InstantState.MISSED:
            return f"replicaset {name} has passed it before"
    # Markers come in one order; points that two replicasets have in another order are no instants.
    elif (
        at is not None
        and at.state in (InstantState.WAITING, InstantState.MISSED)
        and (at.time, at.label) > (own.time, own.label)
    ):
        return f"replicaset {name} has come to a later one, {at.label!r}, without it"
    if other.time is not None and other.time > until:
        return f"replicaset {name} has not come to it in time"
    return None


def common_label(ends: Mapping[str, Entry]) -> str | None:
    """Return the label at which all replicasets stand, where they have just come to do so."""
    instants = [entry.instant for entry in ends.values()]
    labels = {one.label for one in instants if one is not None and one.state is InstantState.WAITING}
    is_whole = len(labels) == 1 and all(
        one is not None and one.state is InstantState.WAITING for one in instants
    )
    return labels.pop() if is_whole else None


def whole(entry: Entry) -> Entry:
    """Return an entry at a point that every replicaset has come to."""
    if entry.instant is None:
        return entry
    return replace(entry, instant=replace(entry.instant, state=InstantState.WHOLE))


def passed(entry: Entry, last: Instant | None) -> Entry:
    """Return an entry behind the last instant that the stream had come to."""
    if last is None:
        return entry
    kept = {InstantState.WAITING: InstantState.MISSED, InstantState.WHOLE: InstantState.DONE}
    return replace(entry, instant=replace(last, state=kept.get(last.state, last.state), rows=0, end=0))


@dataclass(frozen=True)
class WholeInstant:
    """An instant, and the replicasets that stand at it."""

    label: str
    replicasets: frozenset[str]


def instant_between(start: Offset, end: Offset) -> WholeInstant | None:
    """Return the instant that a batch is, by its offsets; None where it is none."""
    found = {}
    for uuid, entry in end.items():
        now, before = entry.instant, start[uuid].instant if uuid in start else None
        if now is not None and now.state is InstantState.WHOLE and now != before:
            found[uuid] = now.label
    labels = set(found.values())
    return WholeInstant(labels.pop(), frozenset(found)) if len(labels) == 1 else None

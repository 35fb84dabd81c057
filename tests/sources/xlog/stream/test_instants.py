"""Which replicasets wait at a point, and when they stop waiting."""

from dataclasses import replace

import pytest

from sources.xlog.directory.offset import Instant, InstantState, OffsetEntry
from sources.xlog.stream.instants import (
    ReplicasetProgress,
    common_label,
    hopeless_waits,
    instant_between,
    with_complete_instant,
    with_passed_instant,
)

SECOND = 1_000_000
WAIT = 60.0


def at(label: str, seconds: float, state: InstantState = InstantState.WAITING) -> Instant:
    return Instant(label, round(seconds * SECOND), {1: 1}, state)


def entry(instant: Instant | None = None, position: int = 9) -> OffsetEntry:
    return OffsetEntry("a", "00000000000000000000.xlog", position, {}, instant=instant)


def reason(own: Instant, other: Instant | None, seconds: float | None, now: float = 0.0) -> str | None:
    time = None if seconds is None else round(seconds * SECOND)
    reached = {"A": ReplicasetProgress(own, None), "B": ReplicasetProgress(other, time)}
    return hopeless_waits(reached, WAIT, round(now * SECOND)).get("A")


@pytest.mark.parametrize(
    ("other", "seconds", "expected"),
    [
        (None, 160.0, None),
        (None, 160.1, "in time"),
        (None, None, None),
        (at("p", 1000), 1000, None),
        (at("p", 90, InstantState.MISSED), 101, "has passed it before"),
        (at("p", 90, InstantState.DONE), 101, None),
        (at("q", 99), 101, None),
        (at("q", 101), 101, "a later one, 'q'"),
        (at("q", 100), 101, "a later one, 'q'"),
        (at("o", 100), 101, None),
        (at("q", 101, InstantState.MISSED), 101, "a later one, 'q'"),
        (at("q", 101, InstantState.DONE), 101, None),
        (at("q", 101, InstantState.WHOLE), 101, None),
    ],
)
def test_when_a_wait_cannot_succeed(
    other: Instant | None, seconds: float | None, expected: str | None
) -> None:
    found = reason(at("p", 100), other, seconds)
    assert (found is None) == (expected is None)
    assert expected is None or expected in str(found)


def test_a_replicaset_that_is_not_at_a_point_does_not_wait() -> None:
    reached = {
        "A": ReplicasetProgress(at("p", 1, InstantState.DONE), 9),
        "B": ReplicasetProgress(None, 999 * SECOND),
    }
    assert hopeless_waits(reached, WAIT, 999 * SECOND) == {}


def test_the_wait_for_an_unreadable_source_is_by_the_clock() -> None:
    reached = {"A": ReplicasetProgress(at("p", 100), 100)}
    assert hopeless_waits(reached, WAIT, 160 * SECOND, "b1") == {}
    assert hopeless_waits(reached, WAIT, 161 * SECOND, "b1") == {"A": "source b1 cannot be read"}
    assert hopeless_waits(reached, WAIT, 161 * SECOND) == {}


def test_all_must_have_come_to_one_label() -> None:
    both = {"A": entry(at("p", 1)), "B": entry(at("p", 2))}
    assert common_label(both) == "p"
    for other in (None, at("q", 2), at("p", 2, InstantState.DONE), at("p", 2, InstantState.WHOLE)):
        assert common_label(both | {"B": entry(other)}) is None


def test_the_instant_of_a_batch_follows_from_its_offsets() -> None:
    start = {"A": entry(at("p", 1)), "B": entry(None, 5)}
    end = {"A": with_complete_instant(start["A"]), "B": with_complete_instant(entry(at("p", 2)))}
    found = instant_between(start, end)
    assert found is not None
    assert (found.label, found.replicaset_uuids) == ("p", frozenset({"A", "B"}))
    assert instant_between(end, end) is None
    later = {"A": with_passed_instant(entry(None, 20), end["A"].instant), "B": end["B"]}
    assert instant_between(end, later) is None
    assert later["A"].instant == replace(at("p", 1), state=InstantState.DONE)


def test_a_point_that_is_passed_without_the_others_is_missed() -> None:
    last = replace(at("p", 1), rows_passed=3, block_end=90)
    assert with_passed_instant(entry(None, 20), last).instant == replace(
        at("p", 1), state=InstantState.MISSED
    )
    assert with_passed_instant(entry(None, 20), None) == entry(None, 20)

"""Policies that choose: whatever order versions come in, the one that the policy's words name stands."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import mp
from tests.udfs.before_replace.versions import OTHER, SPACE, candidates
from udfs.before_replace.candidate import Candidate
from udfs.before_replace.choice import ORDERS, by_priority, choose, complement
from udfs.sequence import sequence_bytes

PLACES = {"value": [[1], [2]], "value_at": [[2], [1]]}


def with_bytes(versions: list[Candidate], *, value: bool = True, sequence: bool = False) -> list[Candidate]:
    tuples = pa.array([one.tuple for one in versions], pa.binary())
    which = pa.array([one.layout for one in versions], pa.int32())
    values = sequence_bytes(tuples, which, PLACES["value"]).to_pylist()
    ages = sequence_bytes(tuples, which, PLACES["value_at"]).to_pylist()
    return [
        one._replace(value=v if value else None, sequence=a if sequence else None)
        for one, v, a in zip(versions, values, ages, strict=True)
    ]


def field(one: Candidate, name: str) -> object:
    space = (SPACE, OTHER)[one.layout]
    fields = mp.decode(one.tuple or b"")
    return fields[[f.name for f in space.fields].index(name)]


@pytest.mark.parametrize("policy", [*ORDERS, "source_priority"])
@settings(deadline=None)  # the first example compiles kernels
@given(data=st.data(), versions=candidates(), sequence=st.booleans(), deletes_all=st.booleans())
def test_the_order_of_arrival_does_not_matter(
    policy: str, data: st.DataObject, versions: list[Candidate], sequence: bool, deletes_all: bool
) -> None:
    order = by_priority(["c", "a"]) if policy == "source_priority" else ORDERS[policy]
    known = with_bytes(versions, sequence=sequence)
    shuffled = data.draw(st.permutations(known))
    winner = choose(known, order, deletes_all=deletes_all)
    assert choose(shuffled, order, deletes_all=deletes_all) == winner
    assert (winner is None) == all(one.tuple is None and not deletes_all for one in known)


@pytest.mark.parametrize("policy", [*ORDERS, "source_priority"])
@settings(deadline=None)  # the first example compiles kernels
@given(data=st.data(), versions=candidates(least=2, deleted=False))
def test_choosing_in_steps_chooses_the_same(
    policy: str, data: st.DataObject, versions: list[Candidate]
) -> None:
    """What won among some versions meets the rest: a late replicaset changes nothing but what it should."""
    order = by_priority(["c", "a"]) if policy == "source_priority" else ORDERS[policy]
    known = with_bytes(versions)
    cut = data.draw(st.integers(1, len(known)))
    first = choose(known[:cut], order)
    assert first is not None
    assert choose([first, *known[cut:]], order) == choose(known, order)


@settings(deadline=None)  # the first example compiles kernels
@given(versions=candidates(deleted=False))
def test_the_last_write_has_the_greatest_sequence_or_time(versions: list[Candidate]) -> None:
    winner = choose(with_bytes(versions, sequence=True), ORDERS["last_write_wins"])
    assert winner is not None
    assert field(winner, "value_at") == max(field(one, "value_at") for one in versions)  # type: ignore[type-var]
    by_time = choose(versions, ORDERS["last_write_wins"])
    assert by_time is not None
    assert (by_time.timestamp or 0) == max(one.timestamp or 0 for one in versions)


@settings(deadline=None)  # the first example compiles kernels
@given(versions=candidates(deleted=False))
def test_the_first_write_was_created_first(versions: list[Candidate]) -> None:
    winner = choose(versions, ORDERS["first_write_wins"])
    assert winner is not None
    if any(one.created is None for one in versions):
        assert winner.created is None
    else:
        assert winner.created == min(one.created for one in versions if one.created is not None)


@pytest.mark.parametrize(("policy", "best"), [("max", max), ("min", min)])
@settings(deadline=None)  # the first example compiles kernels
@given(versions=candidates(deleted=False))
def test_the_greatest_and_the_least_value_win(policy: str, best: object, versions: list[Candidate]) -> None:
    winner = choose(with_bytes(versions), ORDERS[policy])
    assert winner is not None
    values = [field(one, "value") for one in versions if field(one, "value") is not None]
    expected = best(values) if values else None  # type: ignore[operator]
    assert field(winner, "value") == expected


def test_priority_goes_by_the_list_and_then_by_time() -> None:
    a, b, c = (Candidate(mp.encode([1, u]), u, "i", 1, t) for u, t in (("a", 3), ("b", 2), ("c", 1)))
    assert choose([a, b, c], by_priority(["c"])) == c
    assert choose([a, b, c], by_priority(["b", "c"])) == b
    assert choose([a, b], by_priority(["c"])) == a


def test_a_deleted_version_wins_where_it_takes_part_and_is_last() -> None:
    kept, gone = Candidate(mp.encode([1]), "a", "i", 1, 1), Candidate(None, "b", "j", 1, 2)
    assert choose([kept, gone], ORDERS["last_write_wins"]) == kept
    assert choose([kept, gone], ORDERS["last_write_wins"], deletes_all=True) == gone
    assert choose([gone], ORDERS["last_write_wins"]) is None


def test_what_has_no_value_stays_lowest_when_the_order_turns_round() -> None:
    nothing, low, high = (
        sequence_bytes(pa.array([mp.encode([x])]), 0, [[0]])[0].as_py() for x in (None, 1, 2)
    )
    assert nothing < low < high
    turned = [complement(value) for value in (nothing, high, low)]
    assert turned == sorted(turned, key=lambda value: value or b"")
    assert complement(None) is None

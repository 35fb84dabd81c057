"""Policies that choose: the right version wins for any order of arrival."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.policies import Policy
from tests.oracle import mp
from tests.pipeline.resolve.chosen import winner_of
from tests.udfs.before_replace.versions import OTHER, SPACE, candidates
from udfs.before_replace.policy import Candidate

CHOOSING: Mapping[str, Policy] = {
    "last_write_wins": Policy(),
    "by sequence": Policy(sequence=("value_at",)),
    "first_write_wins": Policy(policy="first_write_wins"),
    "source_priority": Policy(policy="source_priority", priority=("c", "a")),
    "max": Policy(policy="max", column="value"),
    "min": Policy(policy="min", column="value"),
}


def field(one: Candidate, name: str) -> object:
    space = (SPACE, OTHER)[one.format_index]
    fields = mp.decode(one.tuple or b"")
    return fields[[f.name for f in space.fields].index(name)]


@pytest.mark.parametrize("name", CHOOSING)
@settings(deadline=None)  # the first example compiles kernels
@given(data=st.data(), versions=candidates(), deletes_all=st.booleans())
def test_the_order_of_arrival_does_not_matter(
    name: str, data: st.DataObject, versions: list[Candidate], deletes_all: bool
) -> None:
    policy = CHOOSING[name].model_copy(update={"deletes": "all" if deletes_all else "own"})
    winner = winner_of(versions, policy)
    assert winner_of(data.draw(st.permutations(versions)), policy) == winner
    assert (winner is None) == all(one.tuple is None and not deletes_all for one in versions)


@pytest.mark.parametrize("name", CHOOSING)
@settings(deadline=None)  # the first example compiles kernels
@given(data=st.data(), versions=candidates(least=2, deleted=False))
def test_choosing_in_steps_chooses_the_same(
    name: str, data: st.DataObject, versions: list[Candidate]
) -> None:
    """The winner among some versions competes with the rest: a late replicaset changes only its own keys' results."""
    policy = CHOOSING[name]
    cut = data.draw(st.integers(1, len(versions)))
    first = winner_of(versions[:cut], policy)
    assert first is not None
    assert winner_of([first, *versions[cut:]], policy) == winner_of(versions, policy)


@settings(deadline=None)  # the first example compiles kernels
@given(versions=candidates(deleted=False))
def test_the_last_write_has_the_greatest_sequence_or_time(versions: list[Candidate]) -> None:
    winner = winner_of(versions, CHOOSING["by sequence"])
    assert winner is not None
    assert field(winner, "value_at") == max(field(one, "value_at") for one in versions)  # type: ignore[type-var]
    by_time = winner_of(versions, CHOOSING["last_write_wins"])
    assert by_time is not None
    assert (by_time.timestamp or 0) == max(one.timestamp or 0 for one in versions)


@settings(deadline=None)  # the first example compiles kernels
@given(versions=candidates(deleted=False))
def test_the_first_write_was_created_first(versions: list[Candidate]) -> None:
    winner = winner_of(versions, CHOOSING["first_write_wins"])
    assert winner is not None
    if any(one.created is None for one in versions):
        assert winner.created is None
    else:
        assert winner.created == min(one.created for one in versions if one.created is not None)


@pytest.mark.parametrize(("policy", "best"), [("max", max), ("min", min)])
@settings(deadline=None)  # the first example compiles kernels
@given(versions=candidates(deleted=False))
def test_the_greatest_and_the_least_value_win(policy: str, best: object, versions: list[Candidate]) -> None:
    winner = winner_of(versions, CHOOSING[policy])
    assert winner is not None
    values = [field(one, "value") for one in versions if field(one, "value") is not None]
    expected = best(values) if values else None  # type: ignore[operator]
    assert field(winner, "value") == expected


def test_priority_goes_by_the_list_and_then_by_time() -> None:
    a, b, c = (Candidate(mp.encode([1, u]), u, "i", 1, t) for u, t in (("a", 3), ("b", 2), ("c", 1)))

    def first(*names: str) -> Policy:
        return Policy(policy="source_priority", priority=names)

    assert winner_of([a, b, c], first("c")) == c
    assert winner_of([a, b, c], first("b", "c")) == b
    assert winner_of([a, b], first("c")) == a


def test_a_deleted_version_wins_if_it_takes_part_and_is_last() -> None:
    kept, gone = Candidate(mp.encode([1]), "a", "i", 1, 1), Candidate(None, "b", "j", 1, 2)
    assert winner_of([kept, gone], Policy()) == kept
    assert winner_of([kept, gone], Policy(deletes="all")) == gone
    assert winner_of([gone], Policy()) is None


@pytest.mark.parametrize("policy", ["max", "min"])
def test_a_version_without_a_value_never_wins(policy: str) -> None:
    nothing, low, high = (
        Candidate(mp.encode([1, x]), replicaset, "i", 1, 9 - i)
        for i, (x, replicaset) in enumerate([(None, "z"), (1, "a"), (2, "b")])
    )
    expected = high if policy == "max" else low
    assert winner_of([nothing, low, high], CHOOSING[policy]) == expected
    assert winner_of([nothing, low], CHOOSING[policy]) == low

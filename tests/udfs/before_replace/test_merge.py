"""Policies that make tuples: fields from their newest versions, sums; other fields keep their exact bytes."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import TupleError
from tests.oracle import mp
from tests.udfs.before_replace.orders import last_write
from tests.udfs.before_replace.versions import OTHER, SPACE, candidates
from udfs.before_replace.merge import sum_fields, with_fields
from udfs.before_replace.policies import POLICIES
from udfs.before_replace.policy import Candidate, Formats, Outcome, PolicyOptions
from udfs.operations.decimals import encode

FORMATS = Formats("accounts", (SPACE, OTHER))
Made = tuple[str, PolicyOptions]
MERGE: Made = ("merge_fields", PolicyOptions(fields={"value": ("value_at",)}))
SUM: Made = ("sum", PolicyOptions(columns=("value",)))


def outcomes(policy: Made, keys: list[list[Candidate]]) -> list[Outcome]:
    make = POLICIES[policy[0]].make
    assert make is not None
    return make(keys, policy[1], FORMATS)


def made(policy: Made, versions: list[Candidate]) -> tuple[int, bytes | None]:
    ordered = sorted(versions, key=last_write)
    (outcome,) = outcomes(policy, [ordered])
    assert outcome.fault is None
    if outcome.winner is not None:
        return ordered[outcome.winner].format_index, ordered[outcome.winner].tuple
    return outcome.format_index, outcome.tuple


def fields(layout: int, data: bytes | None) -> dict[str, object]:
    names = [one.name for one in (SPACE, OTHER)[layout].fields]
    return dict(zip(names, mp.decode(data or b""), strict=False))


def test_the_first_field_can_be_replaced() -> None:
    version = Candidate(b"\x92\x01\x02", "r", "i", 1)
    assert with_fields(version, FORMATS, {"id": b"\x07"}) == b"\x92\x07\x02"
    assert with_fields(version, FORMATS, {"id": None, "note": None}) == b"\x92\xc0\x02"


@pytest.mark.parametrize("policy", [MERGE, SUM], ids=["merge_fields", "sum"])
@settings(deadline=None)  # the first example compiles kernels
@given(data=st.data(), versions=candidates(least=2, deleted=False))
def test_the_order_of_arrival_does_not_matter(
    policy: Made, data: st.DataObject, versions: list[Candidate]
) -> None:
    assert made(policy, versions) == made(policy, data.draw(st.permutations(versions)))


@settings(deadline=None)  # the first example compiles kernels
@given(versions=candidates(least=2, deleted=False))
def test_a_merged_field_comes_from_the_version_with_its_newest_value(versions: list[Candidate]) -> None:
    layout, data = made(MERGE, versions)
    result = fields(layout, data)
    ordered = sorted(versions, key=last_write)
    known = [fields(one.format_index, one.tuple) for one in ordered]
    newest = max(range(len(known)), key=lambda i: (known[i]["value_at"], i))
    assert result["value_at"] == known[newest]["value_at"]
    assert result["value"] == known[newest]["value"]
    assert layout == ordered[-1].format_index
    assert result.get("note") == known[-1].get("note")


@settings(deadline=None)  # the first example compiles kernels
@given(versions=candidates(least=2, deleted=False))
def test_a_sum_is_over_all_versions_and_the_rest_the_last_writers(versions: list[Candidate]) -> None:
    layout, data = made(SUM, versions)
    ordered = sorted(versions, key=last_write)
    known = [fields(one.format_index, one.tuple) for one in ordered]
    numbers = [one["value"] for one in known if one["value"] is not None]
    total = fields(layout, data)["value"]
    if not numbers:
        assert total is None
    else:
        assert total == pytest.approx(sum(numbers))  # type: ignore[arg-type]
    assert fields(layout, data)["value_at"] == known[-1]["value_at"]


def versions_of(*values: bytes) -> list[Candidate]:
    header = b"\x92\x01"
    return [Candidate(header + value, f"r{i}", "i", 1, i) for i, value in enumerate(values)]


def test_a_sum_is_exact_and_has_tarantools_types() -> None:
    big = mp.encode(2**64 - 2)
    total = sum_fields(versions_of(big, mp.encode(1)), FORMATS, ["value"])
    assert list(mp.decode(total)) == [1, 2**64 - 1]
    total = sum_fields(versions_of(encode(Decimal("0.1")), mp.encode(2)), FORMATS, ["value"])
    assert total == b"\x92\x01" + encode(Decimal("2.1"))


@pytest.mark.parametrize(
    ("values", "what"),
    [((2**64 - 1, 1), "Integer overflow"), ((1, "text"), "expected a number")],
)
def test_values_that_cannot_be_added_are_a_fault(values: tuple[object, ...], what: str) -> None:
    versions = versions_of(*map(mp.encode, values))
    with pytest.raises(TupleError, match=what):
        sum_fields(versions, FORMATS, ["value"])
    (outcome,) = outcomes(SUM, [versions])
    assert (outcome.winner, outcome.tuple) == (None, None)
    assert what in str(outcome.fault)


def test_a_result_that_is_one_of_the_versions_is_that_version() -> None:
    one = Candidate(mp.encode([1, 5, 2, "a"]), "a", "i", 1, 1)
    other = Candidate(mp.encode([1, 4, 1, "a"]), "b", "i", 1, 2)
    assert outcomes(MERGE, [[other, one]]) == [Outcome(1)]
    (outcome,) = outcomes(MERGE, [[one, other]])
    assert outcome.winner == 0


def test_a_result_with_the_bytes_of_another_format_is_none_of_the_versions() -> None:
    one = Candidate(mp.encode([1, 5, 12]), "a", "i", 1, 1)
    other = Candidate(mp.encode([1, 5, 7]), "b", "i", 1, 2, format_index=1)
    assert outcomes(SUM, [[one, other]]) == [Outcome(None, mp.encode([1, 5, 12]), 1)]


def test_a_field_past_the_end_is_set_after_nulls() -> None:
    short = Candidate(mp.encode([1]), "b", "i", 1, 2)
    full = Candidate(mp.encode([1, "x", 7]), "a", "i", 1, 1)
    (outcome,) = outcomes(MERGE, [[full, short]])
    assert outcome.winner == 0
    value_only: Made = ("merge_fields", PolicyOptions(fields={"note": ("note",)}))
    noted = Candidate(mp.encode([1, "x", 7, "n"]), "a", "i", 1, 1)
    (outcome,) = outcomes(value_only, [[noted, short]])
    assert list(mp.decode(outcome.tuple or b"")) == [1, None, None, "n"]

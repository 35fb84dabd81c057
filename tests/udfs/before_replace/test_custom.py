"""Custom functions: their arguments, their results, and their errors."""

import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.policies import Policy
from schemas.errors import ConfigurationError, PolicyError
from tests.oracle import mp
from tests.pipeline.resolve.chosen import Chosen, chosen
from tests.udfs.before_replace import rules
from tests.udfs.before_replace.orders import last_write
from tests.udfs.before_replace.versions import OTHER, SPACE, candidates
from udfs.before_replace.custom import Change, Origin, fold_custom, load_function
from udfs.before_replace.policy import Candidate, Outcome
from udfs.before_replace.row import Row, decode, encode

HERE = "tests.udfs.before_replace.rules"
NAMES = [[one.name for one in space.fields] for space in (SPACE, OTHER)]


def version(number: int, *fields: object, gone: bool = False) -> Candidate:
    data = None if gone else mp.encode([1, *fields])
    return Candidate(data, f"r{number}", f"i{number}", number, number, number, global_id=number)


@settings(deadline=None)  # the first example compiles kernels
@given(data=st.data(), versions=candidates(least=2))
def test_sorted_versions_give_one_answer_whatever_order_they_came_in(
    data: st.DataObject, versions: list[Candidate]
) -> None:
    def answer(found: list[Candidate]) -> Outcome:
        return fold_custom(
            lambda old, new, _change: old or new, sorted(found, key=last_write), NAMES, "accounts"
        )

    assert answer(versions) == answer(data.draw(st.permutations(versions)))


def test_returning_old_or_new_keeps_that_version() -> None:
    low, high = version(1, 5), version(2, 3)
    assert fold_custom(rules.greater_balance, [low, high], NAMES, "s") == Outcome(0)
    assert fold_custom(rules.greater_balance, [high, low], NAMES, "s") == Outcome(1)
    assert fold_custom(rules.greater_balance, [low, high, version(3, 9)], NAMES, "s") == Outcome(2)


def test_none_deletes_and_a_deleted_version_is_none() -> None:
    small, gone = version(1, 5), version(2, gone=True)
    assert fold_custom(rules.greater_balance, [small, gone], NAMES, "s") == Outcome(None, None)
    assert fold_custom(rules.greater_balance, [version(1, 50), gone], NAMES, "s") == Outcome(0)
    assert fold_custom(rules.greater_balance, [small, gone, version(3, 70)], NAMES, "s") == Outcome(2)


def test_a_returned_tuple_is_the_next_calls_old() -> None:
    versions = [version(1, 1, 0, "x"), version(2, 2, 0, "y"), version(3, 4, 0, "z")]
    outcome = fold_custom(rules.joined, versions, NAMES, "accounts")
    assert list(mp.decode(outcome.tuple or b"")) == [1, 7, 0, "accounts REPLACE"]
    assert outcome.winner is None


def test_the_function_gets_both_origins() -> None:
    changes: list[Change] = []

    def keep(_old: object, new: object, change: Change) -> object:
        changes.append(change)
        return new

    fold_custom(keep, [version(1, 1), version(2, gone=True), version(3, 3)], NAMES, "s")
    assert [change.op for change in changes] == ["DELETE", "REPLACE"]
    assert changes[0].old == Origin("r1", "i1", 1, 1, 1, 1)
    assert changes[1].old == changes[0].new == Origin("r2", "i2", 2, 2, 2, 2)


def test_a_tuple_that_is_made_has_the_last_writers_format() -> None:
    first, last = version(1, 5, 7, "left out"), version(2, 3, 9)._replace(format_index=1)

    def sum_in_old(old: Any, new: Any, _change: Any) -> Any:
        return old.update(value=old.value + new.value)

    made = fold_custom(sum_in_old, [first, last], NAMES, "s")
    assert made == Outcome(None, mp.encode([1, 7, 14]), 1)
    made = fold_custom(sum_in_old, [last, first], NAMES, "s")
    assert made == Outcome(None, mp.encode([1, 14, 3]), 0)


def test_equal_bytes_of_another_format_are_another_tuple() -> None:
    first, last = version(1, 5, 7), version(2, 5, 7)._replace(format_index=1)
    assert fold_custom(lambda _old, new, _change: new, [first, last], NAMES, "s") == Outcome(1)
    assert fold_custom(lambda old, _new, _change: old, [first, last], NAMES, "s") == Outcome(0)


def test_an_exception_is_a_fault_with_its_traceback() -> None:
    outcome = fold_custom(rules.failing, [version(1, 1), version(2, 2)], NAMES, "s")
    assert (outcome.winner, outcome.tuple) == (None, None)
    assert "ValueError: odd keys are not mine" in str(outcome.fault)
    assert "rules.py" in str(outcome.fault)


def test_a_result_that_is_not_a_tuple_is_a_fault() -> None:
    outcome = fold_custom(rules.no_tuple, [version(1, 1), version(2, 2)], NAMES, "s")
    assert "returned str" in str(outcome.fault)


def test_an_impure_function_is_found() -> None:
    with pytest.raises(PolicyError, match="not pure") as caught:
        fold_custom(rules.impure, [version(1, 1), version(2, 2)], NAMES, "accounts", repeats_calls=True)
    assert caught.value.fields["space"] == "accounts"
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields


def resolve(function: str, *keys: list[list[object]]) -> list[Chosen]:
    versions = [[Candidate(mp.encode(one), f"r{i}", "i", 5) for i, one in enumerate(key)] for key in keys]
    policy = Policy(policy="custom", function=f"{HERE}:{function}")
    return chosen(versions, [policy] * len(keys))


def test_a_faulty_key_does_not_hold_up_others() -> None:
    bad, good = resolve("failing", [[1, 1], [1, 2]], [[2, 1], [2, 2]])
    assert "odd keys" in str(bad.fault)
    assert good == Chosen(1)


def test_the_primary_key_cannot_be_changed() -> None:
    (one,) = resolve("other_key", [[1, 1], [1, 2]])
    assert "another primary key" in str(one.fault)


@pytest.mark.parametrize("name", ["no.such.module:f", f"{HERE}:nothing", "json:__doc__"])
def test_a_missing_function_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_function(name)
    assert caught.value.fields["function"] == name


VALUES = [1, -1, 2**64 - 1, 1.5, "text", b"\x00", True, None, [1, {"a": 2}], Decimal("1.50")]
VALUES += [UUID(int=5), datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC), "\udcff"]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_are_decoded_and_encoded_unchanged(value: object) -> None:
    assert decode(encode(value)) == value
    row = Row(mp.encode([1, 2, 3]), ("id", "value"))
    assert row.update(value=value)[1] == value
    assert row.update(value=value).data[:2] == row.data[:2]


def test_a_row_knows_its_fields_by_name_and_keeps_the_bytes_that_it_does_not_replace() -> None:
    row = Row(b"\x93\xcd\x00\x02\xa1x\xcb" + bytes(8), ("id", "name", "more", "last"))
    assert (row.id, row["name"], row.get("last", 5), row[-1]) == (2, "x", 5, 0.0)
    assert row.with_values([2, "y", 0.0]).data == b"\x93\xcd\x00\x02\xa1y\xcb" + bytes(8)
    assert row.update(last=1).data[-1:] == b"\x01"
    with pytest.raises(KeyError):
        row.update(other=1)
    with pytest.raises(AttributeError):
        _ = row.other

"""UPDATE and UPSERT against recorded answers of a real 2.6.0."""

from collections import Counter
from dataclasses import replace

import pytest

from schemas.errors import TupleError, UnsupportedError
from tests.udfs.answers import Answered, answers
from tests.udfs.cases import PRIMARY_KEY
from tests.udfs.operations.test_operations import FORMAT, MODERN
from tests.udfs.oracle import UPDATE, Answer
from udfs.operations.msgpack_walk import join_tuple, split_tuple
from udfs.operations.operations import apply_update, apply_upsert, quick_update
from udfs.operations.tuple_format import TupleFormat

TUPLE_FOUND = 3
"""`ER_TUPLE_FOUND`: an UPDATE gave the tuple another one's key; of a free key it says `PRIMARY_KEY`."""

UNSUPPORTED = -1


@pytest.fixture(scope="module")
def asked() -> list[Answered]:
    return list(answers())


def made(one: Answered, fmt: TupleFormat) -> Answer:
    operations, base = one.case.operations, one.case.index_base
    try:
        if one.kind == UPDATE:
            return apply_update(one.old, operations, base, fmt)
        return apply_upsert(one.old, one.old, operations, base, fmt)
    except TupleError as error:
        return int(error.fields["code"])
    except UnsupportedError:
        return UNSUPPORTED


def said(one: Answered) -> Answer:
    return PRIMARY_KEY if one.answer == TUPLE_FOUND else one.answer


def test_every_answer_is_ours(asked: list[Answered]) -> None:
    wrong = [one for one in asked if made(one, FORMAT) not in (said(one), UNSUPPORTED)]
    assert wrong == []


def test_the_answers_are_of_all_kinds(asked: list[Answered]) -> None:
    codes = Counter(one.answer if isinstance(one.answer, int) else 0 for one in asked)
    assert codes[0] > 1000
    assert {1, 25, 26, 28, 29, 37, 95, 201} <= set(codes)
    changed = sum(isinstance(one.answer, bytes) and one.answer != one.old for one in asked)
    assert changed > 600


def test_few_requests_that_the_server_accepts_are_refused(asked: list[Answered]) -> None:
    refused = [one for one in asked if made(one, FORMAT) == UNSUPPORTED]
    assert len(refused) < len(asked) / 100


def test_newer_rules_give_the_same_results_for_requests_that_2_6_accepts(asked: list[Answered]) -> None:
    fmt = replace(MODERN, rules=replace(MODERN.rules, has_wide_decimals=False))
    accepted = [one for one in asked if one.kind == UPDATE and isinstance(one.answer, bytes)]
    wrong = [one for one in accepted if made(one, fmt) not in (one.answer, UNSUPPORTED)]
    assert wrong == []


def test_the_shortcut_gives_the_answer_or_nothing(asked: list[Answered]) -> None:
    taken = 0
    for one in asked:
        fields = split_tuple(one.old)
        quick = quick_update(
            fields, one.case.operations, one.case.index_base, FORMAT.number_by_name, frozenset({0})
        )
        if quick is not None:
            assert join_tuple([quick.get(number, field) for number, field in enumerate(fields)]) == one.answer
            taken += 1
    assert taken > 20


def test_an_insertion_is_refused_exactly_where_the_request_is_wrong(asked: list[Answered]) -> None:
    for one in asked:
        if one.kind == UPDATE or made(one, FORMAT) == UNSUPPORTED:
            continue
        try:
            inserted: Answer = apply_upsert(None, one.old, one.case.operations, one.case.index_base, FORMAT)
        except TupleError as error:
            inserted = int(error.fields["code"])
        assert inserted == (one.answer if isinstance(one.answer, int) else one.old)

"""The shortcut gives what the tree of operations gives, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas.errors import TupleError, UnsupportedError
from tests.udfs import generated
from tests.udfs.cases import pack
from tests.udfs.generated import Generated, simple_requests, steady
from udfs.operations.msgpack_walk import encode_array, join, split
from udfs.operations.operations import apply_update
from udfs.operations.quick_update import quick_update
from udfs.operations.tuple_format import TupleFormat, names_only
from udfs.operations.update_rules import LATEST, rules_of

NAMES = ("id", "n", "m", "l")
KEY = frozenset({0})


@pytest.mark.parametrize("rules", [rules_of("2.6.0"), LATEST], ids=["2.6", "3"])
@steady
@given(case=st.one_of(simple_requests(), generated.requests()))
def test_the_shortcut_gives_what_the_tree_gives(rules: object, case: Generated) -> None:
    fmt = TupleFormat(names_only(NAMES).names, rules=rules)  # type: ignore[arg-type]
    old = encode_array(case.count + 1) + b"\x05" + case.fields
    before = split(old)
    quick = quick_update(before, case.operations, case.index_base, fmt.names, KEY)
    assert before == split(old)
    if quick is None:
        return
    try:
        whole = apply_update(old, case.operations, case.index_base, fmt)
    except (TupleError, UnsupportedError) as error:
        raise AssertionError(case) from error
    assert join([quick.get(number, field) for number, field in enumerate(before)]) == whole


@steady
@given(case=simple_requests())
def test_the_shortcut_handles_simple_rows(case: Generated) -> None:
    fields = [b"\x01", b"\x05", b"\xcd\x01\x00"]
    operations = pack([["+", "n", 300], ["=", 3, "x"]])
    assert quick_update(fields, operations, 1, names_only(NAMES).names, KEY) == {
        1: b"\xcd\x01\x31",
        2: b"\xa1x",
    }
    assume(case.count)
    assert quick_update(fields, pack([["=", 1, 9]]), 1, names_only(NAMES).names, KEY) is None


@pytest.mark.parametrize(
    "operations",
    [
        [["+", 2, 1], ["+", 2, 1]],
        [["=", 2, 1], ["-", 2, 1]],
        [["+", 2, 2**64 - 1]],
        [["-", 2, 2**64 - 1]],
        [["+", 2, 1.0]],
        [["+", 3, 1]],
        [["=", 4, 1]],
        [["=", -4, 1]],
        [["=", -3, 1]],
        [["!", 2, 1]],
        [["#", 2, 1]],
        [["=", "n.x", 1]],
        [["=", "nobody", 1]],
        [["=", 2, 1]] * 16,
        [],
    ],
)
def test_the_shortcut_handles_nothing_else(operations: list[object]) -> None:
    fields = [b"\x01", b"\x05", b"\xa1x"]
    assert quick_update(fields, pack(operations), 1, names_only(NAMES).names, KEY) is None

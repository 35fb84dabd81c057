"""UPDATE and UPSERT on raw tuples: facts of a real server (see `test_operations_live` for the server itself)."""

from dataclasses import replace
from typing import Any

import pytest

from tests.oracle import mp
from tests.oracle.operations import Context, FormatField, update, upsert
from tests.oracle.values import OperationError
from tests.recordings.raw import Raw, array, decimal, double, raw

NAMED = Context((FormatField("id", "unsigned"), FormatField("n", "number"), FormatField("d", "double")))
SINCE_2_8 = replace(NAMED, version=(2, 8))
SINCE_3 = replace(NAMED, version=(3, 8))


def changed(fields: list[Any], *operations: list[Any], context: Context = NAMED) -> Any:
    done = update(array(*fields), array(*(Raw(array(*one)) for one in operations)), context)
    return list(mp.decode(done))


def changed_raw(fields: list[Any], *operations: list[Any], context: Context = NAMED) -> bytes:
    return update(array(*fields), array(*(Raw(array(*one)) for one in operations)), context)


@pytest.mark.parametrize(
    ("fields", "operations", "expected"),
    [
        ([1, 2], [["=", 2, "x"]], [1, "x"]),
        ([1, 2], [["=", "n", "x"]], [1, "x"]),
        ([1, 2], [["=", -1, "x"]], [1, "x"]),
        ([1, 2], [["=", 3, "x"]], [1, 2, "x"]),
        ([1, 2], [["!", 2, "x"]], [1, "x", 2]),
        ([1, 2], [["!", -1, "x"]], [1, 2, "x"]),
        ([1, 2, 3, 4], [["#", 2, 2]], [1, 4]),
        ([1, 2, 3, 4], [["#", 3, 99]], [1, 2]),
        ([1, 2, 3, 4], [["#", -1, 1]], [1, 2, 3]),
        ([1, 2], [["+", 2, 5]], [1, 7]),
        ([1, 2], [["-", 2, 5]], [1, -3]),
        ([1, 0xF0], [["&", 2, 0x3C]], [1, 0x30]),
        ([1, 0xF0], [["|", 2, 0x0F]], [1, 0xFF]),
        ([1, 0xF0], [["^", 2, 0xFF]], [1, 0x0F]),
        ([1, "abcdef"], [[":", 2, 2, 3, "XY"]], [1, "aXYef"]),
        ([1, "abcdef"], [[":", 2, -3, 1, "XY"]], [1, "abcdXYf"]),
        ([1, "abcdef"], [[":", 2, 1, -2, ""]], [1, "ef"]),
        ([1, "abcdef"], [[":", 2, 3, -9, "X"]], [1, "abXcdef"]),
        ([1, "abcdef"], [[":", 2, 99, 5, "!"]], [1, "abcdef!"]),
        ([1, {"a": [1, {"b": 2}]}], [["+", "[2].a[2].b", 1]], [1, {"a": (1, {"b": 3})}]),
        ([1, {"a": [1, 2]}], [["!", "n.a[1]", 0]], [1, {"a": (0, 1, 2)}]),
        ([1, {"a": 1, "b": 2}], [["#", "n.a", 1]], [1, {"b": 2}]),
        ([1, {"a b": 1}], [["=", '[2]["a b"]', 2]], [1, {"a b": 2}]),
        ([1, 2, 3], [["!", 1, 0], ["+", 2, 1]], [0, 2, 2, 3]),
        ([1, 2, 3], [["#", 1, 1], ["+", 1, 1]], [3, 3]),
        ([1, 2**63], [["+", 2, 2**63 - 1]], [1, 2**64 - 1]),
    ],
)
def test_an_operation_gives(fields: list[Any], operations: list[list[Any]], expected: list[Any]) -> None:
    assert changed(fields, *operations) == expected


@pytest.mark.parametrize(
    "operation",
    [
        ["=", 4, 0],
        ["=", 0, 0],
        ["=", "nobody", 0],
        ["!", 5, 0],
        ["#", 3, 1],
        ["#", 2, 0],
        ["+", 2, "text"],
        ["+", 1, 2**64 - 1],
        ["-", 2, 2**63],
        ["&", 2, 1],
        ["|", 1, -1],
        [":", 1, 1, 1, ""],
        [":", 2, 1, 1, ""],
        ["=", "[1].x", 0],
        ["=", "[1][1]", 0],
        ["?", 1, 1],
    ],
)
def test_what_fails_fails_the_update_and_is_passed_over_by_an_upsert(operation: list[Any]) -> None:
    with pytest.raises(OperationError):
        changed([1, -1], operation)
    operations = array(Raw(array("=", 1, 5)), Raw(array(*operation)))
    assert upsert(array(1, -1), operations, NAMED) == array(5, -1)


def test_a_field_is_computed_on_only_once() -> None:
    with pytest.raises(OperationError, match="double update"):
        changed([1, 1], ["+", 2, 1], ["+", 2, 1])
    twice = array(Raw(array("+", 2, 1)), Raw(array("+", 2, 10)))
    assert upsert(array(1, 1), twice, NAMED) == array(1, 2)


def test_what_is_not_touched_keeps_its_bytes() -> None:
    fields = [raw("cd0001"), raw("d90161"), raw("ca3f800000"), 5]
    assert changed_raw(fields, ["+", 4, 1]) == array(*fields[:3], 6)


def test_what_is_set_keeps_the_bytes_of_the_operation() -> None:
    assert changed_raw([1, 2], ["=", 2, raw("cf0000000000000005")]) == array(1, raw("cf0000000000000005"))


def test_the_tuples_header_becomes_short() -> None:
    long_header = b"\xdd\x00\x00\x00\x02" + mp.encode(1) + mp.encode(2)
    assert update(long_header, array(Raw(array("+", 2, 1))), NAMED) == array(1, 3)


def test_a_new_key_goes_to_the_front_of_its_map() -> None:
    assert changed_raw([1, {"a": 1}], ["=", "n.b", 2]) == array(1, {"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("old", "added", "expected"),
    [
        (double(0.5), 1, raw("ca3fc00000")),
        (double(0.1), 1, double(1.1)),
        (raw("ca3f000000"), raw("ca3dcccccd"), raw("cb3fe3333334000000")),
        (double(float("inf")), 1, double(float("inf"))),
        (2**53 + 1, double(0.0), raw("ca5a000000")),
        (2**53 + 1, 1, raw("cf0020000000000002")),
    ],
)
def test_a_float_takes_four_bytes_where_they_lose_nothing(old: Any, added: Any, expected: Raw) -> None:
    assert changed_raw([1, old], ["+", "n", added]) == array(1, expected)


def test_a_field_of_type_double_keeps_eight_bytes() -> None:
    assert changed_raw([1, 2, double(0.5)], ["+", "d", 1]) == array(1, 2, double(1.5))


@pytest.mark.parametrize(
    ("old", "added", "expected"),
    [
        (decimal("15", 1), decimal("50", 2), decimal("200", 2)),
        (decimal("15", 1), 1, decimal("25", 1)),
        (decimal("15", 1), double(0.1), decimal("16", 1)),
        (1, decimal("5", 1), decimal("15", 1)),
        (decimal("1", 38), 0, decimal("1", 38)),
        (decimal("1", 1, negative=True), decimal("1", 1), decimal("0", 1)),
    ],
)
def test_a_decimal_makes_decimals(old: Any, added: Any, expected: Any) -> None:
    assert changed_raw([1, old], ["+", "n", added]) == array(1, expected)


def test_a_decimal_that_does_not_fit_fails() -> None:
    nines = decimal("9" * 38, 0)
    with pytest.raises(OperationError, match="overflow"):
        changed([1, nines], ["+", "n", 1])
    assert changed_raw([1, nines], ["+", "n", 1], context=SINCE_3) == array(1, decimal("1" + "0" * 38, 0))


def test_gaps_are_filled_since_2_8() -> None:
    assert changed([1], ["=", 4, "x"], context=SINCE_2_8) == [1, None, None, "x"]
    assert changed([1], ["!", 3, "x"], context=SINCE_2_8) == [1, None, "x"]
    assert changed([1], ["#", 4, 1], context=SINCE_2_8) == [1]


def test_binaries_are_spliced_since_3() -> None:
    assert changed([1, b"xyz"], [":", 2, 2, 1, b"\x00\x01"], context=SINCE_3) == [1, b"x\x00\x01z"]


def test_numbers_may_count_from_nought() -> None:
    assert changed([1, 2], ["=", 0, "x"], context=Context(index_base=0)) == ["x", 2]

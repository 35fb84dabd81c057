"""UPDATE and UPSERT on the hand-written cases; every one of them holds on a real 2.6.0 too."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas.errors import TupleError, UnsupportedError
from schemas.space import Field, KeyPart, Space
from tests.udfs import generated
from tests.udfs.answers import TYPES
from tests.udfs.cases import (
    CASES,
    FIELDS,
    NO_NAME,
    UNKNOWN_OP,
    WRONG,
    Case,
    Raw,
    decimal,
    double,
    pack,
    single,
)
from tests.udfs.generated import Generated, requests, simple_requests, steady
from udfs.operations.msgpack_walk import encode_array, join_tuple, split_tuple
from udfs.operations.operations import apply_update, apply_upsert, quick_update
from udfs.operations.tuple_format import TupleFormat, format_of, format_of_names
from udfs.operations.update_rules import LATEST, rules_of
from udfs.versions.key_state import Fold, RowChange, Version

SPACE = Space(
    512,
    1,
    "cases",
    "memtx",
    tuple(Field(name, TYPES[name], is_nullable=name != "id") for name in FIELDS),
    (KeyPart(0, "unsigned"),),
)
FORMAT = format_of(SPACE, rules_of("2.6.0-0-g47aa4e01e"))
MODERN = format_of(SPACE, LATEST)


def update(case: Case, fmt: TupleFormat = FORMAT) -> bytes:
    return apply_update(pack([1, *case.old]), pack(case.operations), case.index_base, fmt)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_update(case: Case) -> None:
    if isinstance(case.result, int):
        with pytest.raises(TupleError) as caught:
            update(case)
        assert caught.value.fields["code"] == case.result
    else:
        assert update(case).hex() == pack([1, *case.result]).hex()


@pytest.mark.parametrize("case", [case for case in CASES if len(case.operations) == 1], ids=lambda c: c.name)
def test_upsert_skips_operations_that_update_refuses_unless_the_request_is_wrong(case: Case) -> None:
    old, operations = pack([1, *case.old]), pack(case.operations)
    if isinstance(case.result, list):
        assert apply_upsert(old, pack([1]), operations, case.index_base, FORMAT) == pack([1, *case.result])
        return
    if case.name in WRONG:
        for held in (old, None):
            with pytest.raises(TupleError) as caught:
                apply_upsert(held, old, operations, case.index_base, FORMAT)
            assert caught.value.fields["code"] == case.result
    else:
        assert apply_upsert(old, pack([1]), operations, case.index_base, FORMAT) == old


def test_an_upsert_continues_after_a_skipped_operation() -> None:
    operations = pack([["+", 3, 1], ["+", 2, 1], ["=", "n.x", 5]])
    assert apply_upsert(pack([1, 5, "x"]), pack([1]), operations, 1, FORMAT) == pack([1, 6, "x"])


def test_an_upsert_inserts_exactly_its_tuple() -> None:
    inserted = b"\xdc\x00\x02\x01\xcf" + b"\0" * 7 + b"\5"
    assert apply_upsert(None, inserted, pack([["+", 2, 1]]), 1, FORMAT) == inserted


def test_a_row_of_a_vinyl_run_holds_several_upserts() -> None:
    """As 2.11 and 3.9 write them: the second adds to the field that the first sets."""
    groups = pack([[["=", 1, 100]], [["+", 1, 1], ["=", 2, "t"]]])
    assert apply_upsert(None, pack([2, 7, 0]), groups, 0, FORMAT) == pack([2, 8, "t"])
    assert apply_upsert(pack([2, 1, 0]), pack([2, 7, 0]), groups, 0, FORMAT) == pack([2, 101, "t"])
    assert apply_upsert(pack([1, 1]), pack([1, 7]), pack([[["+", 1, 1]]]), 0, FORMAT) == pack([1, 2])


def test_an_upsert_that_would_change_the_key_leaves_the_tuple_itself() -> None:
    old = b"\xdc\x00\x02\x01\x05"
    assert apply_upsert(old, pack([1]), pack([["=", 1, 7], ["=", 2, 6]]), 1, FORMAT) is old


def test_a_key_may_be_rewritten_as_the_same_number() -> None:
    fmt = TupleFormat(primary_key=(KeyPart(0, "number"),))
    operations = pack([["=", 1, double(1)]])
    assert apply_upsert(pack([1]), pack([1]), operations, 1, fmt) == pack([double(1)])
    assert apply_update(pack([1]), operations, 1, fmt) == pack([double(1)])


def test_a_key_that_changes_behind_skipped_operations_counted_from_the_end_is_refused() -> None:
    operations = pack([["!", 9, 0], ["=", -2, 7]])
    with pytest.raises(UnsupportedError, match="counts fields from the end"):
        apply_upsert(pack([1, 2]), pack([1]), operations, 1, FORMAT)


def test_a_key_inside_a_map_is_found_by_its_path() -> None:
    fmt = TupleFormat(number_by_name={b"m": 0}, primary_key=(KeyPart(0, "string", ".id"),))
    old = pack([{"id": "x", "n": 1}])
    assert apply_upsert(old, old, pack([["+", "m.n", 1]]), 1, fmt) == pack([{"id": "x", "n": 2}])
    assert apply_upsert(old, old, pack([["=", "m.id", "y"]]), 1, fmt) is old


def test_a_key_under_a_collation_that_changes_is_refused() -> None:
    fmt = TupleFormat(primary_key=(KeyPart(0, "string", collation=2),))
    with pytest.raises(UnsupportedError, match="collation 2"):
        apply_upsert(pack(["a"]), pack(["a"]), pack([["=", 1, "A"]]), 1, fmt)
    plain = TupleFormat(primary_key=(KeyPart(0, "string", collation=3),))
    assert apply_upsert(pack(["a"]), pack(["a"]), pack([["=", 1, "A"]]), 1, plain) == pack(["a"])


def test_an_index_makes_a_field_a_double_too() -> None:
    space = Space(
        512, 1, "s", "memtx", (Field("id", "unsigned"), Field("n", "number")), (KeyPart(0, "unsigned"),)
    )
    operations = pack([["+", "n", 1]])
    assert apply_update(pack([1, 1.5]), operations, 1, format_of(space)) == pack([1, single(2.5)])
    indexed = format_of(replace(space, secondary_parts=(KeyPart(1, "double"),)))
    assert apply_update(pack([1, 1.5]), operations, 1, indexed) == pack([1, double(2.5)])


@pytest.mark.parametrize(
    ("types", "version", "expected"),
    [
        (("any", "double"), "2.6.0", double),
        (("scalar", "double"), "3.9.0", double),
        (("double", "scalar"), "3.9.0", double),
        (("double", "number"), "2.11.9", double),
        (("double", "number"), "3.9.0", single),
        (("double", "number", "double"), "3.9.0", double),
        (("number", "double", "number"), "3.0.0", double),
        (("number", "double", "number"), "3.1.0", single),
        (("double", "number", "float64"), "3.9.0", double),
    ],
)
def test_a_field_has_the_narrowest_of_its_types(
    types: tuple[str, ...], version: str, expected: Callable[[float], object]
) -> None:
    """Since 3.1 `number` and `double` are equally wide, and the last one decides."""
    fields = (Field("id", "unsigned"), Field("n", types[0]))
    parts = tuple(KeyPart(1, one) for one in types[1:])
    space = Space(512, 1, "s", "memtx", fields, (KeyPart(0, "unsigned"),), secondary_parts=parts)
    result = apply_update(pack([1, 1.5]), pack([["+", "n", 1]]), 1, format_of(space, rules_of(version)))
    assert result == pack([1, expected(2.5)])


def test_a_multikey_index_makes_every_element_a_double() -> None:
    space = Space(
        *(512, 1, "s", "memtx", (Field("id", "unsigned"), Field("m", "any")), (KeyPart(0, "unsigned"),)),
        secondary_parts=(KeyPart(1, "double", "[*].a"),),
    )
    old, new = [{"a": 1.5, "b": 1.5}, {"a": 1.5}], pack([["+", "m[1].a", 1], ["+", "m[1].b", 1]])
    result = apply_update(pack([1, old]), new, 1, format_of(space))
    assert result == pack([1, [{"b": single(2.5), "a": double(2.5)}, {"a": 1.5}]])
    both = pack([["+", "m[1].a", 1], ["+", "m[2].a", 2]])
    result = apply_update(pack([1, [{"a": 1.5}, {"a": 1.5}]]), both, 1, format_of(space))
    assert result == pack([1, [{"a": double(2.5)}, {"a": double(3.5)}]])


def test_an_index_with_a_path_that_cannot_be_read_is_ignored() -> None:
    parts = (KeyPart(1, "double", "a\u0301"), KeyPart(1, "double", "["), KeyPart(2, "double"))
    space = Space(512, 1, "s", "memtx", (), (KeyPart(0, "unsigned"),), secondary_parts=parts)
    result = apply_update(pack([1, {}, 1.5]), pack([["+", 3, 1]]), 1, format_of(space))
    assert result == pack([1, {}, double(2.5)])


def test_the_type_of_the_next_element_is_used() -> None:
    """The server looks a 1-based path up as if it were 0-based."""
    space = Space(
        512, 1, "s", "memtx", (Field("id", "unsigned"), Field("m", "array")), (KeyPart(0, "unsigned"),)
    )
    fmt = format_of(replace(space, secondary_parts=(KeyPart(1, "double", "[2]"),)))
    old = pack([1, [1.5, 1.5]])
    assert apply_update(old, pack([["+", "m[1]", 1]]), 1, fmt) == pack([1, [double(2.5), 1.5]])
    assert apply_update(old, pack([["+", "m[2]", 1]]), 1, fmt) == pack([1, [1.5, single(2.5)]])
    both = pack([["+", "m[2]", 1], ["+", "m[1]", 1]])
    assert apply_update(old, both, 1, fmt) == pack([1, [single(2.5), double(2.5)]])


def test_an_index_makes_a_double_inside_a_map() -> None:
    space = Space(
        512, 1, "s", "memtx", (Field("id", "unsigned"), Field("m", "map")), (KeyPart(0, "unsigned"),)
    )
    fmt = format_of(replace(space, secondary_parts=(KeyPart(1, "double", ".a.d"),)))
    result = apply_update(pack([1, {"a": {"d": 1.5, "e": 1.5}}]), pack([["+", "m.a.d", 1]]), 1, fmt)
    assert result == pack([1, {"a": {"d": double(2.5), "e": 1.5}}])
    both = pack([["+", "m.a.d", 1], ["+", "m.a.e", 1]])
    result = apply_update(pack([1, {"a": {"d": 1.5, "e": 1.5}}]), both, 1, fmt)
    assert result == pack([1, {"a": {"e": single(2.5), "d": double(2.5)}}])


@pytest.mark.parametrize(
    ("old", "operations", "result"),
    [
        ([1], [["=", 5, 9]], [1, None, None, 9]),
        ([1], [["!", 5, 9]], [1, None, None, 9]),
        ([1], [["=", "ключ", 9]], [1, None, 9]),
        ([1], [["+", 2, 1], ["+", 2, 1], ["-", 2, 5]], [-2]),
        ([1], [["=", 2, 5], ["+", 2, 1]], [6]),
        ([0b1111], [["&", 2, 0b1100], ["|", 2, 1]], [0b1101]),
        ([Raw(b"\xc4\x02ab")], [[":", 2, 2, 1, "X"]], [Raw(b"\xc4\x02aX")]),
        (["ab"], [[":", 2, 2, 1, Raw(b"\xc4\x01X")]], ["aX"]),
        (["abc"], [[":", 2, 1, 1, "X"], [":", 2, -1, 0, "Y"]], ["XbcY"]),
        ([{"a": 1}], [["=", 2, {"a": 5}], ["+", "n.a", 1]], [{"a": 6}]),
        ([{"a": 1, "b": 1}], [["+", "n.a", 1], ["+", "n.b", 1], ["+", "n.a", 1]], [{"b": 2, "a": 3}]),
        ([1], [["#", 5, 1]], [1]),
        ([Raw(b"\xd0\x05")], [["|", 2, 2]], [7]),
        ([decimal("9" * 38)], [["+", 2, decimal("1")]], [decimal("1" + "0" * 38)]),
    ],
)
def test_servers_of_3_do_more(old: list[object], operations: list[object], result: list[object]) -> None:
    assert apply_update(pack([1, *old]), pack(operations), 1, MODERN) == pack([1, *result])
    with pytest.raises((TupleError, AssertionError)):
        assert apply_update(pack([1, *old]), pack(operations), 1, FORMAT) == pack([1, *result])


def test_no_server_fills_gaps_inside_a_field() -> None:
    for operations in ([["=", "[2][9]", 1]], [["+", "[2][1]", 1], ["=", "[2][9]", 1]]):
        with pytest.raises(TupleError, match="was not found"):
            apply_update(pack([1, [1, 2]]), pack(operations), 1, MODERN)


@pytest.mark.parametrize(
    ("old", "operations", "new"),
    [
        ({"a": 1}, [["+", "n.a", 1], ["+", "n.a", 1]], {"a": 3}),
        ({"a": 1}, [["=", "n.b", 1], ["=", "n.b", 2]], {"b": 2, "a": 1}),
        ({"a": {"b": 1}}, [["=", "n.a", {"c": 2}], ["+", "n.a.c", 1]], {"a": {"c": 3}}),
        ({"b": 0, "a": 1}, [["=", "n.a", 5], ["=", "n.a", 6]], {"a": 6, "b": 0}),
        ([1, 2], [["=", "n[1]", 5], ["#", "n[1]", 1]], [2]),
    ],
)
def test_servers_of_3_accept_one_path_twice(old: object, operations: list[object], new: object) -> None:
    """Seen in 3.9, which puts changed keys first in a map."""
    assert apply_update(pack([1, old]), pack(operations), 1, MODERN) == pack([1, new])


LARGEST = 2**64 - 1


@pytest.mark.parametrize(
    ("old", "operations", "new"),
    [
        (-9, [["-", 2, 2**63 - 1]], "f7"),
        (-9, [["-", 2, 2**63 - 1], ["+", 2, 1]], "f8"),
        (-9, [["+", 2, -3], ["-", 2, 2**63 - 1]], "f5"),
        (9, [["+", 2, 3], ["+", 2, LARGEST]], "eb"),
        (9, [["+", 2, LARGEST - 20], ["+", 2, 2**63 - 1]], "f3"),
        (9, [["+", 2, LARGEST - 20], ["+", 2, 2**63 - 1], ["+", 2, 2**63 - 1], ["+", 2, 100]], "f6"),
        (-9, [["+", 2, -3], ["-", 2, 2**63 - 1], ["+", 2, 100]], "d38000000000000059"),
        (-9, [["+", 2, -3], ["-", 2, 2**63 - 1], ["+", 2, 1.5]], "ca5f000000"),
        (9, [["+", 2, 3], ["+", 2, LARGEST], ["+", 2, 1.5]], "ca41480000"),
        (-9, [["+", 2, -3], ["-", 2, 2**63 - 1], ["+", 2, decimal("1.5")]], "c70c0101092233720368547757985c"),
        (9, [["+", 2, 3], ["+", 2, LARGEST], ["&", 2, 7]], "eb"),
        (-9, [["+", 2, -3], ["-", 2, 2**63 - 1], ["|", 2, 7]], "f5"),
        (-9, [["+", 2, -3], ["-", 2, 2**63 - 1], ["=", 2, 7]], "07"),
    ],
)
def test_an_upsert_goes_on_with_a_sum_that_overflowed(old: int, operations: list[object], new: str) -> None:
    """Answers of 3.9: the second operation on a field overflows, is skipped, and yet leaves its sum."""
    assert apply_upsert(pack([1, old]), pack([1]), pack(operations), 1, MODERN).hex() == "9201" + new
    if len(operations) > 1:
        with pytest.raises(TupleError, match="Integer overflow"):
            apply_update(pack([1, old]), pack(operations), 1, MODERN)


def test_a_decimal_that_overflows_after_another_operation_is_refused() -> None:
    operations = pack([["+", 2, 1], ["+", 2, decimal("9E+999999")], ["+", 2, decimal("9E+999999")]])
    with pytest.raises(UnsupportedError, match="decimal overflow"):
        apply_upsert(pack([1, decimal("9E+999999")]), pack([1]), operations, 1, MODERN)


def test_an_upsert_follows_the_rules_of_its_server() -> None:
    operations = pack([["+", 2, 1], ["+", 2, 1], ["=", 4, 0]])
    assert apply_upsert(pack([1, 5]), pack([1]), operations, 1, FORMAT) == pack([1, 6])
    assert apply_upsert(pack([1, 5]), pack([1]), operations, 1, MODERN) == pack([1, 7, None, 0])


@pytest.mark.parametrize(("fmt", "code"), [(MODERN, 201), (FORMAT, 29)], ids=["3.9", "2.6"])
def test_a_path_into_a_result_of_arithmetic_finds_no_field(fmt: TupleFormat, code: int) -> None:
    with pytest.raises(TupleError) as caught:
        apply_update(pack([1, 2]), pack([["+", 2, 1], ["=", "[2].a", 1]]), 1, fmt)
    assert caught.value.fields["code"] == code


def test_a_key_in_long_form_is_not_removed_by_path() -> None:
    long_key = b"\x92\x01\x82\xd9\x01a\x05\xa1b\x06"
    with pytest.raises(UnsupportedError, match="write a broken tuple"):
        apply_update(long_key, pack([["#", "[2].a", 1]]), 1, FORMAT)
    assert apply_update(long_key, pack([["#", "[2].b", 1]]), 1, FORMAT) == b"\x92\x01\x81\xd9\x01a\x05"


def test_two_operations_in_a_map_one_of_them_by_an_integer_key_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="integer key"):
        apply_update(pack([1, {1: 5, "a": 6}]), pack([["+", "[2][1]", 1], ["+", "[2].a", 1]]), 1, FORMAT)


@pytest.mark.parametrize(
    "old",
    [b"", b"\x01", b"\x92\x01", b"\x91\x01\x02", b"\x91\xd9\xff", b"\x91\xc1", b"\xdc\x00", b"\x91\xcf\x00"],
)
def test_a_tuple_that_is_not_one_is_an_error(old: bytes) -> None:
    with pytest.raises(TupleError) as caught:
        apply_update(old, pack([["=", 2, 1]]), 1, FORMAT)
    assert caught.value.fields["code"] == 20


@pytest.mark.parametrize(
    "operations", [b"", b"\x05", b"\x91\x93\xa1=\x02", b"\x90\x90", b"\x91\x93\xa1=\x02\xc1"]
)
def test_operations_that_are_not_messagepack_are_an_error(operations: bytes) -> None:
    with pytest.raises(TupleError) as caught:
        apply_upsert(None, pack([1]), operations, 1, FORMAT)
    assert caught.value.fields["code"] == 20


@steady
@given(requests(), st.data())
def test_damaged_bytes_are_an_error_or_another_tuple(case: Generated, data: st.DataObject) -> None:
    old = encode_array(case.count + 1) + b"\x01" + case.fields
    parts = [bytearray(old), bytearray(case.operations)]
    damaged = parts[data.draw(st.integers(0, 1))]
    index = data.draw(st.integers(0, len(damaged) - 1))
    if data.draw(st.booleans()):
        damaged[index] = data.draw(st.integers(0, 255))
    else:
        del damaged[index:]
    for fmt in (FORMAT, MODERN):
        state = Fold([fmt])
        state.start(Version(bytes(parts[0]), 1, 1, 1, 1))
        state.apply(RowChange("UPDATE", None, bytes(parts[1]), case.index_base, 1, 2, 3))
        state.apply(RowChange("UPSERT", bytes(parts[0]), bytes(parts[1]), case.index_base, 1, 3, 4))
        assert state.version.tuple is not None


def test_errors_have_the_servers_texts() -> None:
    fmt = format_of_names(["id", "n"])
    texts = {
        "Field 9 was not found in the tuple": [["+", 9, 1]],
        "Field ''[2].x'' was not found in the tuple": [["+", "[2].x", 1]],
        "Field 'y' was not found in the tuple": [["+", "y", 1]],
        "Unknown UPDATE operation #2: wrong number of arguments, expected 3, got 2": [["=", 2, 1], ["=", 2]],
        'Unknown UPDATE operation #1: "?"': [["?", 2, 1]],
        "Argument type in operation '&' on field 'n' does not match field type: expected a positive integer": [
            ["&", "n", -1]
        ],
        "Field '[2].1' UPDATE error: invalid JSON in position 5": [["=", "[2].1", 1]],
    }
    for text, operations in texts.items():
        with pytest.raises(TupleError) as caught:
            apply_update(pack([1, {}]), pack(operations), 1, fmt)
        assert caught.value.reason == text
    assert {NO_NAME, UNKNOWN_OP} == {201, 28}


QUICK_NAMES = ("id", "n", "m", "l")
KEY = frozenset({0})


@pytest.mark.parametrize("rules", [rules_of("2.6.0"), LATEST], ids=["2.6", "3"])
@steady
@given(case=st.one_of(simple_requests(), generated.requests()))
def test_the_shortcut_gives_what_the_tree_gives(rules: object, case: Generated) -> None:
    fmt = TupleFormat(format_of_names(QUICK_NAMES).number_by_name, rules=rules)  # type: ignore[arg-type]
    old = encode_array(case.count + 1) + b"\x05" + case.fields
    before = split_tuple(old)
    quick = quick_update(before, case.operations, case.index_base, fmt.number_by_name, KEY)
    assert before == split_tuple(old)
    if quick is None:
        return
    try:
        whole = apply_update(old, case.operations, case.index_base, fmt)
    except (TupleError, UnsupportedError) as error:
        raise AssertionError(case) from error
    assert join_tuple([quick.get(number, field) for number, field in enumerate(before)]) == whole


@steady
@given(case=simple_requests())
def test_the_shortcut_handles_simple_rows(case: Generated) -> None:
    fields = [b"\x01", b"\x05", b"\xcd\x01\x00"]
    operations = pack([["+", "n", 300], ["=", 3, "x"]])
    assert quick_update(fields, operations, 1, format_of_names(QUICK_NAMES).number_by_name, KEY) == {
        1: b"\xcd\x01\x31",
        2: b"\xa1x",
    }
    assume(case.count)
    assert (
        quick_update(fields, pack([["=", 1, 9]]), 1, format_of_names(QUICK_NAMES).number_by_name, KEY) is None
    )


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
    assert quick_update(fields, pack(operations), 1, format_of_names(QUICK_NAMES).number_by_name, KEY) is None

"""Sequences compare like values in plain Python over fractions; no input bytes make them fail."""

import itertools
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.soaked import examples
from tests.udfs import sequence_values as values
from tests.udfs.sequence_values import (
    CLUSTERS,
    LOWEST,
    NUMBERS,
    SHORT_BYTES,
    UNORDERED,
    VALUES,
    Value,
    packed,
    tuples_of,
)
from udfs.keys.sequence import sequence_bytes

PROPERTY = settings(deadline=None, max_examples=examples(100))


def single_parts(chosen: list[Value]) -> list[bytes]:
    made: list[bytes] = sequence_bytes(tuples_of(*([one] for one in chosen)), 0, [[0]]).to_pylist()
    return made


def assert_same_order(keys: list[bytes], orders: list[Any]) -> None:
    """Compare all neighbours in the true order, equality included; the rest follows."""
    ranked = sorted(range(len(orders)), key=lambda i: orders[i])
    for low, high in itertools.pairwise(ranked):
        if orders[low] == orders[high]:
            assert keys[low] == keys[high], (orders[low], orders[high])
        else:
            assert keys[low] < keys[high], (orders[low], orders[high])


@PROPERTY
@given(st.lists(VALUES, min_size=2, max_size=40))
def test_values_of_all_types_keep_their_order(chosen: list[Value]) -> None:
    assert_same_order(single_parts(chosen), [order for _, order in chosen])


@PROPERTY
@given(st.lists(NUMBERS, min_size=2, max_size=60))
@example([values.integer(2**53 + 1), values.double(2.0**53), values.integer(2**53)])
@example([values.integer(2**64 - 1), values.double(2.0**64), values.decimal(2**64 - 1, 0)])
@example([values.double(0.1), values.decimal(1, -1), values.double(0.09999999999999999)])
@example([values.double(-0.0), values.integer(0), values.decimal(0, -5, negative=True)])
@example([values.double(5e-324), values.decimal(1, -400), values.integer(0), values.decimal(1, -400, True)])
@example([values.double(5e-324), values.decimal(5, -324), values.decimal(49, -325), values.double(1e-323)])
@example([values.double(1e-310), values.decimal(1, -310), values.double(2e-310), values.decimal(2, -310)])
@example([values.double(1.7976931348623157e308), values.decimal(1, 400), values.double(float("inf"))])
def test_numbers_keep_their_exact_order_whatever_their_types(chosen: list[Value]) -> None:
    assert_same_order(single_parts(chosen), [order for _, order in chosen])


@PROPERTY
@given(CLUSTERS)
@example([values.integer(-(2**53) - step) for step in range(4)])
def test_nearly_equal_numbers_keep_their_exact_order(chosen: list[Value]) -> None:
    assert_same_order(single_parts(chosen), [order for _, order in chosen])


@PROPERTY
@given(st.data(), st.integers(1, 3))
def test_parts_are_compared_one_after_another(data: st.DataObject, parts: int) -> None:
    few = data.draw(st.lists(VALUES, min_size=2, max_size=4))
    rows = data.draw(
        st.lists(
            st.lists(st.sampled_from(few) | VALUES, min_size=parts, max_size=parts), min_size=2, max_size=20
        )
    )
    keys = sequence_bytes(tuples_of(*rows), 0, [range(parts)]).to_pylist()
    assert_same_order(keys, [[order for _, order in row] for row in rows])


@PROPERTY
@given(st.lists(st.tuples(SHORT_BYTES, SHORT_BYTES), min_size=2, max_size=30))
def test_a_string_ends_where_it_ends(pairs: list[tuple[bytes, bytes]]) -> None:
    """`a` + `b…` is not `ab` + `…`, and zeros inside are not the end."""
    keys = sequence_bytes(tuples_of(*([values.text(a), values.binary(b)] for a, b in pairs)), 0, [[0, 1]])
    assert_same_order(keys.to_pylist(), pairs)


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 70000])
def test_long_strings_of_zeros_have_enough_room(size: int) -> None:
    keys = sequence_bytes(
        tuples_of(*[[values.text(bytes(size)), values.binary(bytes(size))]] * 3), 0, [[1, 0, 1]]
    )
    keys.validate(full=True)
    one = b"\x01\x01" * size + b"\x00"
    assert keys.to_pylist() == [b"\x04" + one + b"\x03" + one + b"\x04" + one] * 3


@pytest.mark.parametrize("value", [0, 2, -7, 2**53, -(2**60), 2**62, -(2**63)])
def test_a_number_has_one_sequence_in_all_encodings(value: int) -> None:
    written = [
        values.integer(value),
        values.integer(value, 8),
        values.double(float(value)),
        values.single(float(value)),
        values.decimal(abs(value), 0, value < 0),
        values.decimal(abs(value) * 10**9, -9, value < 0),
    ]
    assert len(set(single_parts(written))) == 1
    assert single_parts([values.integer(value + 1)])[0] > single_parts(written)[0]


def test_a_decimal_that_is_a_double_is_that_double() -> None:
    """All decimals of up to 38 digits, even if a floating-point estimate is a few units in the last place off."""
    halves = [(odd * 5**power, -power, odd * 2.0**-power) for power in range(52) for odd in (1, 3, 7)]
    doubled = [(2**power, 0, 2.0**power) for power in range(127)]
    decimals = single_parts(
        [values.decimal(coefficient, power) for coefficient, power, _ in halves + doubled]
    )
    assert decimals == single_parts([values.double(value) for *_, value in halves + doubled])


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_every_width_of_an_integer_is_read(width: int) -> None:
    chosen = [values.integer(value, width) for value in (-128, -1, 0, 127)]
    assert_same_order(single_parts(chosen), [order for _, order in chosen])


def test_the_zone_of_a_datetime_does_not_matter() -> None:
    moscow, utc = values.datetime(1700000000, 0, 180), values.datetime(1700000000, 0, 0)
    assert moscow[0] != utc[0]
    assert len(set(single_parts([moscow, utc]))) == 1


def test_powers_of_ten_beyond_all_doubles_are_ordered() -> None:
    raw = [
        values.extension(1, msgpack.packb(scale) + digits)
        for scale in (-(2**29), 2**29)
        for digits in (b"\x1d", b"\x1c")
    ]
    low, high, below, above = single_parts([(one, LOWEST) for one in raw])
    ends = [
        values.double(float("-inf")),
        values.decimal(1, 700, True),
        values.integer(0),
        values.decimal(1, -700),
    ]
    ends += [values.decimal(1, 700), values.double(float("inf"))]
    least, small, zero, tiny, large, most = single_parts(ends)
    assert least < low < small < below < zero < above < tiny < large < high < most


GOLDEN = [
    (values.boolean(True), "0101"),
    (values.integer(1), "02bff000000000000000"),
    (values.integer(-1), "02400fffffffffffffff"),
    (values.double(float("nan")), "02000000000000000000"),
    (values.integer(2**53 + 1), "02c34000000000000001800000107d000000000003e80000000000000000"),
    (values.text(b"a\x00\x01"), "03610101010200"),
    (values.binary(b""), "0400"),
    (values.uuid(bytes(range(16))), "05000102030405060708090a0b0c0d0e0f"),
    (values.datetime(1, 5, 0), "06800000000000000100000005"),
]


@pytest.mark.parametrize(("value", "expected"), GOLDEN)
def test_the_bytes_are_those_in_existing_tables(value: Value, expected: str) -> None:
    """With another encoding, stored sequences could not be compared with new ones."""
    assert single_parts([value])[0].hex() == expected


@pytest.mark.parametrize("raw", UNORDERED, ids=bytes.hex)
def test_values_without_an_order_are_the_lowest(raw: bytes) -> None:
    assert single_parts([(raw, LOWEST)]) == [b"\x00"]


def test_each_format_has_its_own_fields() -> None:
    one, two, three = values.integer(1), values.integer(2), values.integer(3)
    rows = tuples_of([one, two, three], [three, one, two], [three, one, two], [one])
    formats = [[0, 2], [1, -1], [2, 0], [0, 7]]
    keys = sequence_bytes(rows, pa.array([0, 1, 2, 3], pa.int32()), formats).to_pylist()
    first, second, third = single_parts([one, two, three])
    assert keys == [first + third, first + b"\x00", second + third, first + b"\x00"]


def test_a_tuple_of_no_known_format_lacks_all_fields() -> None:
    rows = tuples_of(*[[values.integer(1)]] * 4)
    which = pa.array([0, 1, -1, None], pa.int32())
    keys = sequence_bytes(rows, which, [[0, 0]]).to_pylist()
    assert keys[0] == 2 * single_parts([values.integer(1)])[0]
    assert keys[1:] == [b"\x00\x00"] * 3


def test_nulls_stay_null_and_slices_keep_their_rows() -> None:
    rows = [[values.text(b"%d" % number)] if number % 3 else None for number in range(20)]
    whole = sequence_bytes(tuples_of(*rows), 0, [[0]])
    assert [key is None for key in whole.to_pylist()] == [row is None for row in rows]
    which = pa.array([0] * 20, pa.int32())
    for start, stop in ((0, 5), (3, 17), (7, 7), (19, 20)):
        part = tuples_of(*rows)[start:stop]
        assert sequence_bytes(part, which[start:stop], [[0]]).equals(whole[start:stop])


@pytest.mark.parametrize("rows", [[], [None], [None, None]])
def test_no_tuples_at_all(rows: list[None]) -> None:
    assert sequence_bytes(pa.array(rows, pa.binary()), 0, [[0]]).to_pylist() == rows


def test_a_sequence_of_no_columns_is_empty() -> None:
    assert sequence_bytes(tuples_of([values.integer(1)], None), 0, [[]]).to_pylist() == [b"", None]


def test_large_binary_tuples_are_taken_too() -> None:
    rows = tuples_of([values.integer(5)]).cast(pa.large_binary())
    assert sequence_bytes(rows, 0, [[0]]).to_pylist() == single_parts([values.integer(5)])


def test_formats_that_differ_in_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[1, 2\] sequence columns"):
        sequence_bytes(tuples_of([values.integer(5)]), 0, [[0], [0, 1]])


@PROPERTY
@given(st.lists(VALUES, min_size=1, max_size=5), st.data())
def test_a_truncated_tuple_keeps_its_whole_fields(row: list[Value], data: st.DataObject) -> None:
    whole = packed([raw for raw, _ in row])
    cut = data.draw(st.integers(0, len(whole)))
    order = data.draw(st.permutations(range(len(row))))
    ends = [1 + sum(len(raw) for raw, _ in row[: part + 1]) for part in range(len(row))]
    keys = sequence_bytes(pa.array([whole[:cut]], pa.binary()), 0, [order]).to_pylist()
    alone = single_parts(row)
    assert keys == [b"".join(alone[part] if ends[part] <= cut else b"\x00" for part in order)]


@PROPERTY
@given(st.lists(st.binary(max_size=40), max_size=10))
def test_no_bytes_raise_an_error(rows: list[bytes]) -> None:
    keys = sequence_bytes(pa.array(rows, pa.binary()), 0, [[1, 0]])
    keys.validate(full=True)
    assert keys.null_count == 0

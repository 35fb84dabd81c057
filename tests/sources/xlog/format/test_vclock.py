"""Vclocks: order, and the strict reading of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sources.xlog.format.vclock import (
    are_equal,
    is_at_most,
    rows_ahead,
    vclock_maximum,
    vclock_of,
    without_local,
)

vclocks = st.dictionaries(st.integers(0, 31), st.integers(0, 5), max_size=4)


def test_a_missing_component_is_zero() -> None:
    assert is_at_most({1: 0}, {})
    assert not is_at_most({1: 1}, {})
    assert is_at_most({}, {1: 1})
    assert are_equal({0: 0, 1: 5}, {1: 5})
    assert not are_equal({1: 5}, {1: 5, 2: 1})


def test_incomparable_vclocks_are_each_beyond_the_other() -> None:
    assert not is_at_most({1: 2, 2: 1}, {1: 1, 2: 2})
    assert not is_at_most({1: 1, 2: 2}, {1: 2, 2: 1})


def test_shared_leaves_out_the_local_component_and_zeros() -> None:
    assert without_local({2: 3, 0: 9, 1: 0}) == {2: 3}


def test_distance_counts_rows_that_the_other_lacks() -> None:
    assert rows_ahead({0: 100, 1: 5, 2: 3}, {1: 2, 2: 7}) == 3


@given(vclocks, vclocks)
def test_the_join_is_the_least_that_is_not_below_either(a: dict[int, int], b: dict[int, int]) -> None:
    both = vclock_maximum(a, b)
    assert is_at_most(a, both)
    assert is_at_most(b, both)
    assert all(lsn in (a.get(i, 0), b.get(i, 0)) for i, lsn in both.items())


@given(vclocks, vclocks)
def test_is_at_most_is_an_order(a: dict[int, int], b: dict[int, int]) -> None:
    assert is_at_most(a, a)
    assert are_equal(a, b) == (
        vclock_maximum(a, b) == vclock_maximum(b, b) == vclock_maximum(a, a)
        or (is_at_most(a, b) and is_at_most(b, a))
    )
    if rows_ahead(a, b) == 0:
        assert is_at_most(without_local(a), b)


def test_json_becomes_a_vclock_in_the_order_of_ids() -> None:
    assert list(vclock_of({"10": 1, "2": 5})) == [2, 10]


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        {1: 2},
        {"01": 1},
        {"٣": 1},
        {"-1": 1},
        {"32": 1},
        {"1": -1},
        {"1": True},
        {"1": 1.0},
        {"1": 1 << 63},
        {"1": "5"},
    ],
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"replica id|lsn|vclock"):
        vclock_of(value)

"""Counts of missing lsns of an origin, without the ranges in `_gaps`."""

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from observe.validation.origins import (
    count_numbers_in_ranges,
    lsns_behind_vclock,
    missing_ranges,
    with_failure_counts,
)


def gap(epoch: int, first: int, last: int, state: str = "open", kind: str = "missing") -> dict[str, Any]:
    lsns = {"replicaset_id": 1, "local_id": 2, "first_lsn": first, "last_lsn": last}
    return {"epoch": epoch, "kind": kind, "state": state, **lsns}


def test_missing_ranges_are_those_whose_newest_row_is_not_filled() -> None:
    rows = [gap(3, 5, 6, "filled"), gap(1, 5, 6), gap(2, 9, 9, "skipped"), gap(2, 1, 1, kind="divergence")]
    assert missing_ranges(rows) == {(1, 2): [(9, 9)]}


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda r: (r[0], r[0] + r[1]))),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_ranges_that_overlap_cover_each_number_once(
    ranges: list[tuple[int, int]], first: int, last: int
) -> None:
    numbers = set(itertools.chain.from_iterable(range(begin, end + 1) for begin, end in ranges))
    assert count_numbers_in_ranges(ranges, first, last) == len(numbers & set(range(first, last + 1)))


def counts_of(local_id: int, lsns: list[int]) -> dict[str, Any]:
    numbers = {"rows": len(lsns), "lsns": len(set(lsns)), "first_lsn": min(lsns), "last_lsn": max(lsns)}
    return {
        "replicaset_id": 1,
        "local_id": local_id,
        "instance": None,
        "unknown_ids": 0,
        "in_future": 0,
        **numbers,
    }


def missing(lsns: list[int], settled: int, gaps: list[tuple[int, int]] | None = None) -> tuple[int, int, int]:
    (origin,) = with_failure_counts([counts_of(2, lsns)], {(1, 2): settled}, {(1, 2): gaps or []})
    return origin["missing"], origin["duplicates"], origin["beyond_settled"]


def test_an_lsn_is_missing_in_the_middle_or_before_the_settled_vclock() -> None:
    assert missing([3, 4, 5], 5) == (0, 0, 0)
    assert missing([3, 5], 5) == (1, 0, 0)
    assert missing([3, 4], 6) == (2, 0, 0)
    assert missing([3, 5, 5], 5) == (1, 1, 0)
    assert missing([3, 4, 5], 4) == (0, 0, 1)


def test_ranges_in_gaps_are_not_missing() -> None:
    assert missing([3, 7], 7, [(4, 6)]) == (0, 0, 0)
    assert missing([3, 7], 7, [(4, 5)]) == (1, 0, 0)
    assert missing([3, 4], 4, [(5, 9)]) == (0, 0, 0)


def test_rows_of_local_spaces_may_end_and_begin_again() -> None:
    (origin,) = with_failure_counts([counts_of(0, [1, 5])], {}, {})
    assert (origin["missing"], origin["beyond_settled"]) == (0, 0)


def test_an_instance_whose_last_lsn_is_not_in_the_vclock_is_counted() -> None:
    names = ("replicaset_id", "global_id", "local_id", "lsn", "epoch")
    rows = [
        dict(zip(names, row, strict=True)) for row in ((1, 5, 2, 9, 4), (1, 5, 2, 1, 3), (1, 6, 2, 12, 4))
    ]
    assert lsns_behind_vclock({(1, 2, 5): 9, (1, 2, 6): 12}, rows) == {(1, 2): 0}
    assert lsns_behind_vclock({(1, 2, 5): 10, (1, 2, 6): 12, (1, 3, 7): 4}, rows) == {(1, 2): 1, (1, 3): 4}

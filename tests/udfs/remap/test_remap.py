"""Vclocks in global ids and back: `remap_vclock` and `unmap_vclock` are inverse, and different ids stay different."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from udfs.remap.replica_ids import (
    IdEntry,
    current_global_ids,
    id_runs,
    remap_rows,
    remap_runs,
    remap_vclock,
    unmap_vclock,
)

MAPS = st.lists(st.tuples(st.integers(1, 31), st.integers(1, 2**40)), max_size=40)
VCLOCKS = st.dictionaries(st.integers(1, 31), st.integers(0, 2**63 - 1), max_size=31)


def test_a_vclock_gets_global_ids() -> None:
    assert remap_vclock({1: 10, 2: 20}, [(2, 7), (1, 9)]) == {9: 10, 7: 20}
    assert unmap_vclock({9: 10, 7: 20}, [(2, 7), (1, 9)]) == {1: 10, 2: 20}


def test_equal_ids_of_two_replicasets_get_different_global_ids() -> None:
    assert remap_vclock({1: 10}, [(1, 3)]).keys().isdisjoint(remap_vclock({1: 10}, [(1, 4)]))


def test_ids_that_are_in_no_map_are_left_out() -> None:
    assert remap_vclock({0: 5, 1: 10, 3: 30}, [(1, 9)]) == {9: 10}
    assert unmap_vclock({9: 10, 8: 80}, [(1, 9)]) == {1: 10}


def test_an_id_that_was_reassigned_means_the_last_instance() -> None:
    assert remap_vclock({1: 10}, [(1, 3), (1, 4)]) == {4: 10}


def test_an_instance_that_was_registered_again_has_its_last_id() -> None:
    assert remap_vclock({3: 10, 4: 7}, [(3, 5), (4, 5)]) == {5: 7}


@given(VCLOCKS, MAPS)
def test_remap_and_unmap_are_inverse(vclock: dict[int, int], ids: list[tuple[int, int]]) -> None:
    known = current_global_ids(ids)
    there = remap_vclock(vclock, ids)
    assert len(there) == len(known.keys() & vclock.keys())
    assert unmap_vclock(there, ids) == {
        local_id: lsn for local_id, lsn in vclock.items() if local_id in known
    }
    assert remap_vclock(unmap_vclock(there, ids), ids) == there


ENTRIES = st.lists(st.builds(IdEntry, st.integers(1, 4), st.integers(1, 30), st.integers(1, 9)), max_size=6)
ROWS = st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 30), st.integers(1, 6)), max_size=12)


@given(ROWS, ENTRIES)
def test_runs_get_the_same_global_ids_as_their_rows(
    rows: list[tuple[int, int, int]], entries: list[IdEntry]
) -> None:
    ids = np.repeat(np.array([one[0] for one in rows], np.int32), [one[2] for one in rows])
    lsns = np.array([lsn + i for _, lsn, count in rows for i in range(count)], np.int64)
    ordered = sorted(entries, key=lambda one: one.since_lsn)
    runs = id_runs(ids, lsns)
    assert int(runs.row_counts.sum()) == len(ids)
    global_ids, counts = remap_runs(runs, ordered)
    assert np.repeat(global_ids, counts).tolist() == remap_rows(ids, lsns, ordered).tolist()

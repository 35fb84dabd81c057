"""Runs of rows get the same global ids as their rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from udfs.remap.replica_ids import IdEntry, id_runs, remap_rows, remap_runs

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

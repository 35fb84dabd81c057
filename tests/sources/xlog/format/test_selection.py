"""Which rows are wanted: every condition against the same in Python."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.iproto import RequestType
from sources.xlog.format.block import EOF_MARKER, encode_block
from sources.xlog.format.encode import encode_row
from sources.xlog.format.selection import Selection, filter_of
from tests.sources.xlog import samples

SPACES = (272, 511, 512, 513, 514)


def everything() -> list[bytes]:
    """Return rows of several replicas, spaces, times and types."""
    rows = [
        samples.insert(lsn, space_id=SPACES[lsn % 5], replica_id=1 + lsn % 3, timestamp=float(lsn))
        for lsn in range(1, 40)
    ]
    rows += [samples.insert(lsn, replica_id=None, group_id=1, timestamp=float(lsn)) for lsn in (3, 4)]
    rows += [encode_row(RequestType.NOP, timestamp=9.0, replica_id=2, lsn=50)]
    rows += [
        encode_row(RequestType.RAFT_CONFIRM, b"\x82\x02\x01\x03\x05", timestamp=9.0, replica_id=1, lsn=51)
    ]
    return [*rows, b"\x81\x00\x02\x81\x21\x90"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = everything()
    parts = [encode_block(b"".join(rows[k : k + 7]), compress=k % 2 == 0) for k in range(0, len(rows), 7)]
    return samples.put(tmp_path_factory.mktemp("log"), samples.HEADER + b"".join(parts) + EOF_MARKER)


def wanted(row: dict[str, Any], s: Selection) -> bool:
    space, lsn, replica = row["space_id"], row["lsn"], row["replica_id"] or 0
    time = None if row["timestamp"] is None else int(row["timestamp"].timestamp() * 1e6)
    protocol, system = str(row["type"]).startswith("RAFT"), space is not None and space <= 511
    return all(
        (
            not s.control_only or protocol or system,
            s.space_ids is None or space in s.space_ids or (space is None and s.with_spaceless),
            s.replica_ids is None or replica in s.replica_ids,
            s.from_vclock is None or (lsn is not None and lsn > s.from_vclock.get(replica, 0)),
            s.to_vclock is None or (lsn is not None and lsn <= s.to_vclock.get(replica, 0)),
            s.from_timestamp is None or (time is not None and time >= s.from_timestamp),
            s.to_timestamp is None or (time is not None and time < s.to_timestamp),
        )
    )


VCLOCKS = st.none() | st.dictionaries(st.integers(0, 4), st.integers(0, 60))
TIMES = st.none() | st.integers(0, 50).map(lambda seconds: seconds * 1_000_000)
SELECTIONS = st.builds(
    Selection,
    space_ids=st.none() | st.frozensets(st.sampled_from([*SPACES, 1, 2**31 - 1])),
    with_spaceless=st.booleans(),
    replica_ids=st.none() | st.frozensets(st.integers(0, 4)),
    from_vclock=VCLOCKS,
    to_vclock=VCLOCKS,
    from_timestamp=TIMES,
    to_timestamp=TIMES,
    control_only=st.booleans(),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SELECTIONS)
def test_a_selection_is_the_filter_of_all_rows(path: str, selection: Selection) -> None:
    rows = samples.table(path).to_pylist()
    found = samples.table(path, 0, None, selection)
    assert found.to_pylist() == [row for row in rows if wanted(row, selection)]


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (Selection(), 44),
        (Selection(with_spaceless=True), 44),
        (Selection(space_ids=frozenset({512})), 10),
        (Selection(space_ids=frozenset()), 0),
        (Selection(space_ids=frozenset(), with_spaceless=True), 3),
        (Selection(replica_ids=frozenset({0})), 3),
        (Selection(from_vclock={}), 43),
        (Selection(to_vclock={}), 0),
        (Selection(from_timestamp=39_000_000), 1),
        (Selection(to_timestamp=1_000_001), 1),
        (Selection(control_only=True), 8 + 7 + 1),
    ],
)
def test_how_many_rows_each_condition_leaves(path: str, selection: Selection, count: int) -> None:
    assert samples.table(path, 0, None, selection).num_rows == count


def test_row_numbers_count_rows_that_are_left_out(path: str) -> None:
    rows = {(row["position"], row["row"]): row for row in samples.table(path).to_pylist()}
    for row in samples.table(path, 0, None, Selection(space_ids=frozenset({513}))).to_pylist():
        assert rows[row["position"], row["row"]] == row


def test_a_selection_travels() -> None:
    selection = Selection(space_ids=frozenset({1}), from_vclock={1: 2})
    assert pickle.loads(pickle.dumps(selection)) == selection


def test_only_conditions_make_a_filter_active() -> None:
    assert not filter_of(None).has_conditions
    assert not filter_of(Selection(with_spaceless=True)).has_conditions
    assert filter_of(Selection(replica_ids=frozenset())).has_conditions


def test_no_selected_row_is_no_batch(path: str) -> None:
    assert samples.table(path, 0, None, Selection(space_ids=frozenset({9}))) == pa.Table.from_batches(
        [], samples.table(path).schema
    )

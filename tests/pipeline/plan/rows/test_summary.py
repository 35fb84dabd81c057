"""Summaries of parts of a log: what each holds, and that cutting a part changes nothing."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.plan.rows.position import LogPosition
from pipeline.plan.rows.summary import LsnRun, Summary, concat_summaries, summarize_rows
from pipeline.plan.rows.transactions import WaitingTransaction
from schemas.iproto import SystemSpace
from tests.pipeline import logs
from tests.pipeline.logs import (
    A2,
    A3,
    Transaction,
    batch,
    local_row,
    put,
    register,
    settling_row,
    synchronous_row,
    txn,
)


def runs(*transactions: Transaction) -> list[tuple[int, int, int, int]]:
    return [
        (run.replica_id, run.first_lsn, run.last_lsn, run.start.position)
        for run in summarize_rows(batch(*transactions), 0).runs
    ]


def test_nothing_is_the_summary_of_no_rows() -> None:
    assert summarize_rows(batch(), 0) == Summary() == concat_summaries([])


def test_interleaved_origins_have_a_run_each() -> None:
    rows = [txn(1, put()), txn(2, put(), put()), txn(1, put()), txn(2, put())]
    assert runs(*rows) == [(1, 1, 2, 100), (2, 1, 3, 150)]


def test_a_hole_begins_a_run() -> None:
    rows = [txn(1, put()), txn(2, put()), txn(1, put(), lsn=5), txn(1, put())]
    assert runs(*rows) == [(1, 1, 1, 100), (2, 1, 1, 150), (1, 5, 6, 200)]


def test_going_back_begins_a_run() -> None:
    rows = [txn(1, put(), put(), put()), txn(1, put(), put(), lsn=2), txn(1, put())]
    assert runs(*rows) == [(1, 1, 3, 100), (1, 2, 4, 150)]


def test_the_same_lsn_again_begins_a_run() -> None:
    assert runs(txn(1, put()), txn(1, put(), lsn=1)) == [(1, 1, 1, 100), (1, 1, 1, 150)]


def test_rows_of_cluster_break_every_run() -> None:
    rows = [txn(1, put()), txn(2, put()), txn(1, register(3, A3)), txn(2, put()), txn(1, put())]
    assert runs(*rows) == [(1, 1, 1, 100), (2, 1, 1, 150), (1, 2, 3, 200), (2, 2, 2, 250)]


def test_local_rows_are_a_run_of_component_0() -> None:
    rows = [txn(1, local_row(put())), txn(1, put()), txn(1, local_row(put()))]
    assert runs(*rows) == [(0, 1, 2, 100), (1, 1, 1, 150)]


def test_rows_without_lsn_are_in_no_run() -> None:
    rows = logs.rows_of([txn(1, put()), txn(1, put())])
    rows[0]["lsn"] = rows[0]["tsn"] = None
    assert [(run.first_lsn, run.last_lsn) for run in summarize_rows(logs.batch_of(rows), 0).runs] == [(2, 2)]


def test_counts_are_by_segment_space_and_type() -> None:
    rows = batch(
        txn(1, put(512), put(512), put(513)),
        txn(1, logs.change("DELETE", 512, key=[1])),
        txn(1, {"type": "NOP"}),
        txn(1, settling_row("CONFIRM", 1, 3)),
    )
    assert summarize_rows(rows, 7).row_counts == Counter(
        {
            (7, 512, "REPLACE"): 2,
            (7, 513, "REPLACE"): 1,
            (7, 512, "DELETE"): 1,
            (7, -1, "NOP"): 1,
            (7, -1, "RAFT_CONFIRM"): 1,
        }
    )


def test_control_rows_are_those_that_steer() -> None:
    confirm = settling_row("CONFIRM", 1, 3)
    rows = batch(
        txn(1, put(512)),
        txn(2, register(2, A2), put(SystemSpace.SCHEMA, "x", 1)),
        txn(1, logs.define(600, "s"), logs.index(600), logs.truncate(600)),
        txn(1, put(SystemSpace.SEQUENCE, 1), confirm),
    )
    found = summarize_rows(rows, 3).control
    assert [
        (row.position.position, row.position.row, row.space_id, row.replica_id, row.lsn) for row in found
    ] == [
        (150, 0, 320, 2, 1),
        (150, 1, 272, 2, 2),
        (200, 0, 280, 1, 2),
        (200, 1, 288, 1, 3),
        (200, 2, 330, 1, 4),
        (250, 1, None, 1, 6),
    ]
    assert {row.position.segment for row in found} == {3}
    assert found[0].tuple == logs.pack([2, A2])
    assert (found[4].operations, found[4].index_base) == (logs.pack([["+", 1, 1]]), 0)
    assert (found[5].type, found[5].body) == ("RAFT_CONFIRM", confirm["body"])


@pytest.mark.parametrize("kind", ["PROMOTE", "DEMOTE", "CONFIRM", "ROLLBACK"])
def test_all_that_settles_is_control(kind: str) -> None:
    assert [row.type for row in summarize_rows(batch(txn(1, settling_row(kind, 1, 1))), 0).control] == [
        f"RAFT_{kind}"
    ]


def test_a_flag_on_the_last_row_makes_the_whole_transaction_wait() -> None:
    rows = batch(txn(1, put()), txn(1, put(), put(), synchronous_row(put())), txn(1, put()))
    assert summarize_rows(rows, 2).transactions.waiting == (
        WaitingTransaction(LogPosition(2, 150, 0), 1, 2, 4),
    )


def test_rows_of_a_listed_space_wait_with_their_transaction() -> None:
    rows = batch(txn(1, put(512), put(600), put(512)), txn(2, put(512)), txn(1, put(600)))
    assert summarize_rows(rows, 0).transactions.waiting == ()
    assert summarize_rows(rows, 0, {600}).transactions.waiting == (
        WaitingTransaction(LogPosition(0, 100, 0), 1, 1, 3, ((600, LogPosition(0, 100, 1)),)),
        WaitingTransaction(LogPosition(0, 200, 0), 1, 4, 4, ((600, LogPosition(0, 200, 0)),)),
    )


def test_each_listed_space_of_a_transaction_is_named_with_its_last_row() -> None:
    rows = batch(txn(1, put(601), put(600), put(601), put(512)))
    positions = ((600, LogPosition(0, 100, 1)), (601, LogPosition(0, 100, 2)))
    (waiting,) = summarize_rows(rows, 0, {600, 601, 602}).transactions.waiting
    assert waiting.space_positions == positions


def test_an_asynchronous_one_that_queues_behind_does_not_wait_for_itself() -> None:
    behind = {**put(), "wait_sync": True}
    assert (
        len(summarize_rows(batch(txn(1, synchronous_row(put())), txn(1, behind)), 0).transactions.waiting)
        == 1
    )


def test_transactions_of_two_origins_with_one_number_are_two() -> None:
    rows = batch(txn(1, put(), lsn=5), txn(2, synchronous_row(put()), lsn=5))
    assert [(row.replica_id, row.tsn) for row in summarize_rows(rows, 0).transactions.waiting] == [(2, 5)]


def test_a_row_of_a_local_space_is_part_of_its_transaction() -> None:
    rows = batch(
        txn(1, local_row(put(700)), put(), local_row(put(700)), synchronous_row(put())), lsns={1: 10, 0: 50}
    )
    assert summarize_rows(rows, 0).transactions.waiting == (
        WaitingTransaction(LogPosition(0, 100, 0), 1, 11, 12),
    )


def test_a_cut_through_a_transaction_of_local_rows_alone_does_not_matter() -> None:
    rows = logs.rows_of([txn(1, local_row(put(700)), local_row(put(700)), local_row(put(700)))])
    whole = summarize_rows(logs.batch_of(rows), 0)
    for cut in (1, 2):
        parts = [summarize_rows(logs.batch_of(part), 0) for part in (rows[:cut], rows[cut:])]
        assert concat_summaries(parts) == whole


CHANGES = st.sampled_from(
    [
        *(put(512), put(513), put(600), synchronous_row(put(512)), local_row(put(700)), {"type": "NOP"}),
        *(register(3, A3), logs.define(512, "s"), settling_row("CONFIRM", 1, 2)),
    ]
)
TRANSACTIONS = st.builds(
    Transaction,
    st.integers(1, 3),
    st.lists(CHANGES, min_size=1, max_size=4).map(tuple),
    st.none() | st.none() | st.integers(1, 8),
)


@settings(deadline=None)
@given(
    st.lists(TRANSACTIONS, min_size=1, max_size=8).map(logs.rows_of),
    st.lists(st.integers(0, 32), max_size=5),
)
def test_any_cut_gives_the_summary_of_the_whole(rows: list[logs.Row], cuts: list[int]) -> None:
    whole = summarize_rows(logs.batch_of(rows), 4, {512, 600})
    ends = [*sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [
        summarize_rows(logs.batch_of(rows[a:b]), 4, {512, 600})
        for a, b in zip([0, *ends[:-1]], ends, strict=True)
    ]
    assert concat_summaries(parts) == whole
    assert concat_summaries([concat_summaries(parts[:2]), concat_summaries(parts[2:])]) == whole


def test_runs_of_two_segments_stay_two() -> None:
    """What was read before is summarized again for each segment, so a run lies in one."""
    first, second = batch(txn(1, put(), put())), batch(txn(1, put()), lsns={1: 2})
    found = concat_summaries([summarize_rows(first, 0), summarize_rows(second, 1)])
    assert found.runs == (LsnRun(1, 1, 2, LogPosition(0, 100, 0)), LsnRun(1, 3, 3, LogPosition(1, 100, 0)))
    assert found.row_count == 3

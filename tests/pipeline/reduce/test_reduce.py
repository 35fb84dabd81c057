"""Rows of a log → the versions that a batch changes, over several spaces of one table."""

from __future__ import annotations

import pyarrow as pa

from pipeline.changelog.rows import segment_rows
from pipeline.changelog.segment_plan import segment_plans
from pipeline.lookup.reduce_plan import reduce_plan
from pipeline.lookup.requests import group_keyed_rows
from pipeline.lookup.versions import BASE_VERSIONS
from pipeline.reduce.reduce import Reduced, reduce
from tests.pipeline import logs
from tests.pipeline.logs import A1, Transaction, define, drop, drop_index, index, put, register, txn
from tests.pipeline.plan.planner import Piece, Planner


def reduced(*transactions: Transaction) -> Reduced:
    """Return what one batch changes in tables that were empty before."""
    rows = logs.batch(txn(1, register(1, A1)), *transactions)
    planner = Planner()
    plan = planner.batch(Piece(rows))
    keyed = segment_rows(rows, segment_plans(plan)[0]).keyed
    known = reduce_plan(plan)
    return reduce(group_keyed_rows(pa.Table.from_batches([keyed]), known), BASE_VERSIONS.empty_table(), known)


def passing(space_id: int) -> list[logs.Row]:
    """Return the rows of a space that is created, written to and dropped."""
    return [define(space_id, "a"), index(space_id), put(space_id, 1), drop_index(space_id), drop(space_id)]


def test_spaces_that_leave_nothing_in_their_table() -> None:
    """Several spaces of one name come and go within a batch: nothing changes."""
    found = reduced(txn(1, *passing(600)), txn(1, *passing(601)))
    assert found.changes.num_rows == 0


def test_the_last_space_of_a_name_has_the_row() -> None:
    found = reduced(txn(1, *passing(600)), txn(1, *passing(601)[:2], put(601, 1, "new")))
    assert [logs.pack([1, "new"])] == found.changes["tuple"].to_pylist()

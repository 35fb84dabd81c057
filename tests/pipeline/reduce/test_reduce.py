"""Rows of a log → the versions that a batch changes, over several spaces of one table."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from pipeline.changelog.rows import segment_rows
from pipeline.changelog.segment_plan import segment_plans
from pipeline.lookup.reduce_plan import reduce_plan
from pipeline.lookup.requests import group_keyed_rows
from pipeline.lookup.versions import BASE_VERSIONS
from pipeline.reduce.reduce import Reduced, reduce
from tests.pipeline import logs
from tests.pipeline.logs import (
    A1,
    Row,
    Transaction,
    change,
    define,
    drop,
    drop_index,
    index,
    put,
    register,
    txn,
)
from tests.pipeline.plan.planner import Piece, Planner
from udfs.versions.kernels.lives import PRESENT

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def reduced(*transactions: Transaction) -> Reduced:
    """Return what one batch changes in tables that were empty before."""
    rows = logs.batch(txn(1, register(1, A1)), *transactions)
    return reduced_after(Planner(), rows, BASE_VERSIONS.empty_table())


def reduced_after(planner: Planner, rows: pa.RecordBatch, base_versions: pa.Table) -> Reduced:
    plan = planner.batch(Piece(rows))
    keyed = segment_rows(rows, segment_plans(plan)[0]).keyed
    known = reduce_plan(plan)
    return reduce(group_keyed_rows(pa.Table.from_batches([keyed]), known), base_versions, known)


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


@pytest.mark.parametrize(
    "row",
    [put(600, 1, "new"), {**change("UPDATE", 600, key=[1], ops=[["=", 2, "new"]]), "index_base": 1}],
    ids=lambda row: row["type"],
)
def test_the_first_row_of_a_batch_changes_the_first_version_before_it(row: Row) -> None:
    """Both have the index 0, and no other row or version is there."""
    planner = Planner()
    planner.batch(
        Piece(logs.batch(txn(1, register(1, A1)), txn(1, define(600, "a"), index(600), put(600, 1, "old"))))
    )
    before = {
        **{"table": 0, "replicaset_id": 1, "key": logs.pack([1]), "state": PRESENT, "global_id": 9, "lsn": 4},
        **{"tuple": logs.pack([1, "old"]), "timestamp": MOMENT, "created": MOMENT, "in_versions": False},
        **{"is_row": True, "file": 0, "row": 0},
    }
    rows = logs.batch(txn(1, row), lsns={1: 4})
    found = reduced_after(planner, rows, pa.Table.from_pylist([before], BASE_VERSIONS))
    (version,) = found.changes.to_pylist()
    assert (version["tuple"], version["created"]) == (logs.pack([1, "new"]), MOMENT)
    assert (version["global_id"], version["lsn"], version["base"]) == (1, 5, 0)

"""What healing adds to a batch, and when it is refused before anything is read."""

from collections import Counter
from typing import Any, cast

import pytest

from pipeline.plan.healing import Healing
from pipeline.plan.rows.position import LogSegment
from pipeline.plan.rows.summary import Summary
from pipeline.requests.healing import plan_healing
from pipeline.state import ReplicasetState
from schemas.errors import UnsupportedError
from tests.pipeline.logs import A1, A

NOTHING = cast(Any, None)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (ReplicasetState(1, A, settled={1: 9}, read={1: 10}), "rows of it wait"),
        (
            ReplicasetState(1, A, settled={1: 4}, read={1: 4}),
            "the snapshot is at {1: 5}, the tables are at {1: 4}",
        ),
        (
            ReplicasetState(1, A, settled={1: 9, 40: 2}, read={1: 9, 40: 2}, id_translations={"a2": {1: 40}}),
            "at {40: 5}",
        ),
    ],
)
def test_the_tables_must_have_come_to_the_snapshot(known: ReplicasetState, why: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan_healing(NOTHING, known, "a2", {1: 5}, NOTHING)
    assert why in str(caught.value)


def test_what_is_done_again_counts_and_closes() -> None:
    healing = Healing(
        A, NOTHING, {(600, "UPDATE"): 3, (600, "INSERT"): 2}, [{"local_id": 1, "state": "open"}]
    )
    own = Summary(5, row_counts=Counter({(0, 600, "INSERT"): 4, (0, 601, "INSERT"): 1}))
    found = healing.add_counts({A: own, "other": own})
    assert found["other"] == own
    expected = {(0, 600, "INSERT"): 6, (0, 601, "INSERT"): 1, (0, 600, "UPDATE"): 3}
    assert (found[A].row_count, found[A].row_counts) == (5, expected)
    (closed,) = healing.gap_rows(7)
    assert (closed["epoch"], closed["state"], closed["local_id"]) == (7, "healed", 1)
    (segment,) = healing.as_healing_segments([LogSegment(0, A, "a1", "f.snap", A1, True, {1: 5})])
    assert segment.is_healing

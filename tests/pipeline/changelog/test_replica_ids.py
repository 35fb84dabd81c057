"""The replica id of a row whose instance has had several, and whose source may have ids of its own."""

import pyarrow as pa
import pytest

from pipeline.changelog.replica_ids import NO_REPLICA_ID, lsns_of_ids, replica_ids_in_replicaset
from pipeline.state import ApplierMapEntry, ReplicasetState
from tests.pipeline.logs import A

TWICE, OTHER, ELSEWHERE = 11, 12, 13
MAP = ((1, 10), (2, TWICE), (2, OTHER), (3, TWICE), (32, ELSEWHERE))
STATE = ReplicasetState(
    1,
    A,
    applier_map=tuple(ApplierMapEntry(local_id, global_id, 1) for local_id, global_id in MAP),
    id_translations={"a2": {3: 32, 7: 3}},
)


@pytest.mark.parametrize(
    ("global_id", "source", "replica_id", "expected"),
    [
        (10, "a1", 1, 1),
        (TWICE, "a1", 2, 2),
        (TWICE, "a1", 3, 3),
        (TWICE, "a2", 2, 2),
        pytest.param(TWICE, "a2", 7, 3, id="translated"),
        pytest.param(TWICE, "a2", 3, 3, id="from before the translation"),
        (OTHER, "a1", 2, 2),
        (ELSEWHERE, "a2", 3, 32),
        pytest.param(TWICE, None, 2, 2, id="no source"),
        pytest.param(TWICE, "a1", None, 3, id="a local space"),
        pytest.param(99, "a1", 2, NO_REPLICA_ID, id="in no map"),
        pytest.param(None, "a1", 2, NO_REPLICA_ID, id="no instance"),
    ],
)
def test_a_row_has_the_id_by_which_its_instance_wrote_it(
    global_id: int | None, source: str | None, replica_id: int | None, expected: int
) -> None:
    schema = pa.schema([("global_id", pa.int64()), ("source", pa.string()), ("replica_id", pa.int32())])
    row = {"global_id": global_id, "source": source, "replica_id": replica_id}
    others = [{"global_id": 10, "source": "a1", "replica_id": 1}] * 2
    rows = pa.Table.from_pylist([others[0], row, others[1]], schema)
    assert replica_ids_in_replicaset(rows, STATE).tolist() == [1, expected, 1]
    assert replica_ids_in_replicaset(rows.slice(0, 0), STATE).tolist() == []


def test_an_id_that_a_vclock_lacks_has_no_lsns() -> None:
    rows = pa.table({"global_id": [TWICE, 99, 10], "source": ["a1"] * 3, "replica_id": [3, 1, 1]})
    ids = replica_ids_in_replicaset(rows, STATE)
    assert lsns_of_ids(ids, {1: 5, 40: 9}).tolist() == [0, 0, 5]
    assert lsns_of_ids(ids, {}).tolist() == [0, 0, 0]

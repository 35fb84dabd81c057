"""The offset log of a checkpoint: one source's offset, or a refusal; and what the state says of itself."""

import pytest

from pipeline.checkpoint import parse_offset_file
from pipeline.state import ReplicasetState, State
from pipeline.stream import check_end_offset
from schemas.errors import OffsetError

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
OFFSET = '{"replicasets":{},"version":1}'


def test_the_third_line_is_the_offset() -> None:
    assert parse_offset_file(f"v1\n{METADATA}\n{OFFSET}", "offsets/0") == OFFSET


def test_a_source_without_offset_has_none() -> None:
    assert parse_offset_file(f"v1\n{METADATA}\n-", "offsets/0") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1",
        f"v1\n{METADATA}",
        f"v2\n{METADATA}\n{OFFSET}",
        f"v1\n{METADATA}\n{OFFSET}\n{OFFSET}",
    ],
    ids=["empty", "torn", "no source", "another version", "two sources"],
)
def test_anything_else_is_refused_with_its_position(text: str) -> None:
    with pytest.raises(OffsetError, match="not that of one source") as caught:
        parse_offset_file(text, "checkpoint/offsets/7")
    assert caught.value.fields["file"] == "checkpoint/offsets/7"


def test_a_batch_that_has_ended_elsewhere_is_of_another_job() -> None:
    check_end_offset({7: "a"}, 7, "a")
    check_end_offset({7: "a"}, 8, "b")
    check_end_offset({7: None}, 7, None)
    with pytest.raises(OffsetError, match="batch 7 has ended elsewhere") as caught:
        check_end_offset({7: "a"}, 7, "b")
    assert "start with a new checkpoint" in caught.value.fields["advice"]


def test_a_replicaset_waits_while_more_is_read_than_settled() -> None:
    assert not ReplicasetState(1, "a", settled={1: 5}, read={1: 5}).has_waiting_rows
    assert ReplicasetState(1, "a", settled={1: 5}, read={1: 6}).has_waiting_rows
    assert ReplicasetState(1, "a", settled={1: 5}, read={1: 5, 2: 1}).has_waiting_rows


def test_replaced_replicasets_leave_the_others() -> None:
    one, other = ReplicasetState(1, "a", settled={1: 5}), ReplicasetState(2, "b", settled={1: 7})
    state = State(epoch=3, replicasets={"a": one, "b": other})
    after = state.with_replicasets({"b": ReplicasetState(2, "b", settled={1: 8})})
    assert (after.epoch, after.vclocks()) == (3, {"a": {1: 5}, "b": {1: 8}})
    assert state.vclocks() == {"a": {1: 5}, "b": {1: 7}}

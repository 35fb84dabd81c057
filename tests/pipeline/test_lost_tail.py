"""Healing by a snapshot that lies within the tail that its member lost: nothing of the rest is applied once more."""

from pathlib import Path

import pytest

from pipeline.requests.read_again import TimeSpan, read_source_again
from pipeline.requests.snapshots import heal
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment

S = 600


def begun(folder: Path) -> Node:
    return Node(folder, "a1").define(S, "s").put(S, 1, "same", 1, 1)


def divergences(deployment: Deployment) -> dict[tuple[int, int], str]:
    """Return the state of each divergence, by its lsns."""
    found = {}
    for row in sorted(deployment.rows("_gaps"), key=lambda row: int(row["epoch"])):
        assert row["kind"] == "divergence"
        found[row["first_lsn"], row["last_lsn"]] = row["state"]
    return found


class Case:
    """A deployment that followed lsns 5 to 10, which the member lost; it wrote 5 and 6 again and took a snapshot at 6.

    `read` says how far its new log had come when the stream read it.
    """

    def __init__(self, folder: Path, read: int) -> None:
        lost = begun(folder / "lost")
        for number in range(5, 11):
            lost.put(S, number, "lost", 1, 1)
        lost.close()
        self.deployment = Deployment.of(folder, lost)
        self.deployment.run()
        self.node = begun(folder / "right").put(S, 5, "right", 1, 1).put(S, 6, "right", 1, 1)
        self.node.snapshot({S: [(1, "same", 1, 1), (5, "right", 1, 1), (6, "right", 1, 1)]})
        for number in range(7, read + 1):
            self.node.put(S, number, "right", 1, 1)
        self.node.close()
        self.again()

    def again(self) -> None:
        """Read the member's log, as a backfill does."""
        self.deployment.sources["a1"] = self.node.path
        with self.deployment.writer() as (_, writer):
            read_source_again(self.deployment.config(), writer, "a1", TimeSpan(), lambda *_: None)

    def heal(self) -> str:
        with self.deployment.writer() as (warehouse, writer):
            name = f"heal {writer.state.epoch}"
            return heal(self.deployment.config(), warehouse, writer, "a1", name)


def test_the_rest_of_the_lost_tail_goes_and_is_named(tmp_path: Path) -> None:
    case = Case(tmp_path, read=6)
    assert divergences(case.deployment) == {(5, 6): "open"}
    message = case.heal()
    assert case.deployment.fields() == [[1, "same", 1, 1], [5, "right", 1, 1], [6, "right", 1, 1]]
    assert divergences(case.deployment) == {(5, 6): "healed", (7, 10): "open"}
    assert "STILL OPEN" in message
    assert "lsns 7 to 10" in message


def test_it_is_named_once_where_the_stream_had_read_on(tmp_path: Path) -> None:
    case = Case(tmp_path, read=12)
    assert divergences(case.deployment) == {(5, 10): "open"}
    message = case.heal()
    held = [1, 5, 6, 11, 12]
    assert [row[:2] for row in case.deployment.fields()] == [[i, "right" if i > 1 else "same"] for i in held]
    assert divergences(case.deployment) == {(5, 10): "open"}
    assert "STILL OPEN" in message


@pytest.mark.parametrize("read", [6, 12])
def test_a_newer_snapshot_heals_it(tmp_path: Path, read: int) -> None:
    case = Case(tmp_path, read)
    case.heal()
    for number in range(read + 1, 15):
        case.node.put(S, number, "right", 1, 1)
    case.node.close()
    case.again()
    case.node.snapshot({S: [(1, "same", 1, 1), *((i, "right", 1, 1) for i in range(5, 15))]})
    assert "STILL OPEN" not in case.heal()
    assert case.deployment.fields() == [
        [1, "same", 1, 1],
        *([i, "right", 1, 1] for i in range(5, 15)),
    ]
    assert set(divergences(case.deployment).values()) == {"healed"}


def test_rows_that_the_member_has_as_well_are_applied_once_more(tmp_path: Path) -> None:
    """A single row that differs, as a conflict that a member skipped, says nothing of the rows behind it."""
    one = begun(tmp_path / "one").put(S, 5, "one", 1, 1).put(S, 6, "both", 1, 1).put(S, 7, "both", 1, 1)
    other = begun(tmp_path / "other").put(S, 5, "other", 1, 1)
    other.snapshot({S: [(1, "same", 1, 1), (5, "other", 1, 1)]})
    other.put(S, 6, "both", 1, 1).put(S, 7, "both", 1, 1)
    one.close()
    other.close()
    case = Case.__new__(Case)
    case.deployment = Deployment.of(tmp_path, one)
    case.deployment.run()
    case.node = other
    case.again()
    assert divergences(case.deployment) == {(5, 5): "open"}
    assert "STILL OPEN" not in case.heal()
    held = {1: "same", 5: "other", 6: "both", 7: "both"}
    assert case.deployment.fields() == [[i, text, 1, 1] for i, text in held.items()]

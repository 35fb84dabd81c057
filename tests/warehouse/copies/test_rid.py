"""`_rid` on disk: its rows, who wins of two who change it, and what the mark makes of the next epoch."""

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from ulid import ULID

from schemas.errors import RidStateError
from tests.udfs.rid.rids import drawn, node, ulid
from udfs.rid import operations
from udfs.rid.operations import Node
from warehouse.copies import rid
from warehouse.copies.rid import RidChange, RidTable, new_ulid
from warehouse.delta.location import location_of


def table(folder: Path) -> RidTable:
    return RidTable(location_of(str(folder)))


def promoted(_node: Node) -> Node:
    return operations.promote(Node(), ulid(1), unconnected=False)


def test_a_warehouse_without_rid_has_the_default(tmp_path: Path) -> None:
    assert table(tmp_path).last() == RidChange()
    assert table(tmp_path).history() == []
    assert not (tmp_path / "aggregator.db").exists()


def test_each_change_is_a_row_of_a_delta_table(tmp_path: Path) -> None:
    one = table(tmp_path)
    one.update("promote", -1, promoted)
    one.update("mark", 4, lambda n: operations.mark_unconnected_copy(n, ulid(7)), peer="s3://standby")
    rows = DeltaTable(str(tmp_path / "aggregator.db" / "_rid")).to_pyarrow_table().to_pylist()
    rows.sort(key=lambda row: int(row["number"]))
    assert [(r["number"], r["event"], r["epoch"], r["peer"]) for r in rows] == [
        (1, "promote", -1, None),
        (2, "mark", 4, "s3://standby"),
    ]
    assert rows[0]["rid"] == str(promoted(Node()).rid)
    assert [row["next"] for row in rows] == [None, str(ulid(7))]
    assert rows[0]["changed_at"].tzinfo is not None
    assert table(tmp_path).last() == one.last() == one.history()[-1]
    assert [change.number for change in table(tmp_path).history()] == [1, 2]


def test_what_changes_nothing_is_not_written(tmp_path: Path) -> None:
    one = table(tmp_path)
    one.update("promote", 3, promoted)
    assert one.update("again", 9, lambda n: n).epoch == 9
    assert [change.event for change in one.history()] == ["promote"]


def test_of_two_who_change_it_at_once_the_second_looks_again(tmp_path: Path) -> None:
    one, other = table(tmp_path), table(tmp_path)
    one.update("promote", 0, promoted)
    other.last()
    seen: list[Node] = []

    def change(now: Node) -> Node:
        seen.append(now)
        if len(seen) == 1:
            one.update("mark", 1, lambda n: operations.mark_unconnected_copy(n, ulid(5)))
        return operations.lock(now)

    made = other.update("lock", 0, change)
    assert [now.next_head for now in seen] == [None, ulid(5)]
    assert (made.number, made.epoch, made.node.next_head) == (3, 1, ulid(5))
    assert [c.event for c in one.history()] == ["promote", "mark", "lock"]


def test_two_who_begin_it_at_once_make_one_history(tmp_path: Path) -> None:
    one, other = table(tmp_path), table(tmp_path)
    one.last(), other.last()
    first = one.update("promote", -1, promoted)
    second = other.update("promote", -1, lambda n: promoted(n) if not n.rid.primary else n)
    assert first == second
    assert len(one.history()) == 1


def test_who_is_never_first_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = table(tmp_path), table(tmp_path)
    one.update("promote", 0, promoted)
    monkeypatch.setattr(rid, "COMMIT_ATTEMPTS", 3)

    def always_late(now: Node) -> Node:
        one.update("other", 0, lambda n: operations.unlock(n) if n.rid.file_lock != 1 else operations.lock(n))
        return replace(now, next_head=new_ulid())

    with pytest.raises(RidStateError, match="3 times in a row"):
        other.update("mark", 0, always_late)


@pytest.mark.parametrize(
    ("epoch", "drawing", "mark"),
    [
        (3, "0000:0001:0000:0000:0001", 5),
        (4, "0000:0001:0000:0000:0001", 5),
        (5, "0000:0005:0001:0000:0001", None),
    ],
)
def test_the_generation_of_the_mark_begins_with_the_next_epoch(
    epoch: int, drawing: str, mark: int | None
) -> None:
    change = RidChange(1, "mark", node("0000:0001:0000:0000:0001", 5, primary=True), epoch=4)
    assert drawn(change.at(epoch).node) == drawing
    assert change.at(epoch).node.next_head == (None if mark is None else ulid(mark))


def test_a_generation_that_has_begun_is_written_with_the_next_change(tmp_path: Path) -> None:
    one = table(tmp_path)
    one.update("promote", 2, promoted)
    one.update("mark", 2, lambda n: operations.mark_unconnected_copy(n, ulid(5)))
    one.update("generation", 2, lambda n: n)
    assert len(one.history()) == 2
    one.update("generation", 3, lambda n: n)
    assert drawn(one.last().node) == "0000:0005:0001:0000:0001"
    assert one.last().epoch == 3


def test_a_mark_that_was_set_late_holds_for_the_epoch_that_came_before_it(tmp_path: Path) -> None:
    """Who copies read epoch 2, the writer committed 3, then the mark was set: 3 belongs to the new generation."""
    one = table(tmp_path)
    one.update("promote", 0, promoted)
    one.update("copy", 2, lambda n: operations.mark_unconnected_copy(n, ulid(5)))
    found = one.update("renew", 3, lambda n: operations.renew_mark(n, ulid(6)))
    assert drawn(found.node) == "0000:0005:0001:0000:0001"


def test_fresh_ulids_ascend_within_a_millisecond() -> None:
    made = [new_ulid() for _ in range(1000)]
    assert made == sorted(set(made))
    assert all(isinstance(one, ULID) for one in made)

"""Who wins a key that both replicasets wrote: the recordings know who wrote last, and what `updated` says."""

from functools import cache

import pytest

from tests.oracle import Folded, FoldedSpace, Version, fold_directory, last_write_wins, mp
from tests.oracle.fold import CLUSTER, SCHEMA
from tests.oracle.keys import Part, key_of
from tests.oracle.operations import FormatField
from tests.recordings import conflicts
from tests.truth import own

UUIDS = {"A": own().info("a1").replicaset_uuid, "B": own().info("b1").replicaset_uuid}
PAIRS = [("a1", "b1"), ("a2", "b1"), ("a1", "b2"), ("a2", "b2")]


@cache
def folded(node: str) -> Folded:
    return fold_directory(own().directory(node))


def key(number: int) -> tuple[object, ...]:
    return key_of([mp.encode(number)], [Part(0, "unsigned", "")])


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("order", [1, -1])
def test_by_time_the_last_writer_wins_whichever_members_are_read(pair: tuple[str, str], order: int) -> None:
    winners = last_write_wins([folded(node) for node in pair][::order], "accounts")
    for number in range(conflicts.FIRST_ID, conflicts.LAST_ID + 1):
        kept = [one for one in final_writes(number) if not one.is_delete]
        if not kept:
            assert key(number) not in winners
            continue
        winner = winners[key(number)]
        assert winner.replicaset_uuid == UUIDS[kept[-1].side], number
        assert mp.decode(winner.tuple)[3] == kept[-1].updated


def final_writes(number: int) -> list[conflicts.Write]:
    """Return the last round's two writes of a key, in their order."""
    found = []
    for last in (False, True):
        found += [one for one in conflicts.writes(conflicts.ROUNDS - 1, last=last) if one.id == number]
    return found


@pytest.mark.parametrize("pair", PAIRS)
def test_by_a_column_the_highest_value_wins(pair: tuple[str, str]) -> None:
    winners = last_write_wins([folded(node) for node in pair], "accounts", ["updated"])
    for number in range(conflicts.FIRST_ID, conflicts.LAST_ID + 1):
        kept = [one for one in final_writes(number) if not one.is_delete]
        if kept:
            best = max(kept, key=lambda one: (one.updated, UUIDS[one.side]))
            assert winners[key(number)].replicaset_uuid == UUIDS[best.side], number


def test_time_and_column_disagree_somewhere() -> None:
    both = [folded("a1"), folded("b1")]
    by_time, by_column = last_write_wins(both, "accounts"), last_write_wins(both, "accounts", ["updated"])
    assert by_time.keys() == by_column.keys()
    assert any(by_time[one].tuple != by_column[one].tuple for one in by_time)


def test_a_member_that_lagged_says_another_last_writer() -> None:
    """a2 was cut off while A wrote, then B: its own stamps are later than B's."""
    from_a1 = last_write_wins([folded("a1"), folded("b1")], "lagged")
    from_a2 = last_write_wins([folded("a2"), folded("b1")], "lagged")
    assert {one.replicaset_uuid for one in from_a1.values()} == {UUIDS["B"]}
    assert {one.replicaset_uuid for one in from_a2.values()} == {UUIDS["A"]}


def test_where_deletes_take_part_the_last_one_removes_the_key() -> None:
    both = [folded("a1"), folded("b1")]
    own_only, everywhere = last_write_wins(both, "accounts"), last_write_wins(both, "accounts", deletes="all")
    gone = {number for number in range(200, 260) if key(number) in own_only.keys() - everywhere.keys()}
    assert gone == {number for number in range(200, 260) if number % 10 == 7}
    with pytest.raises(NotImplementedError):
        last_write_wins(both, "accounts", ["updated"], deletes="all")


def test_a_key_that_one_side_has_is_kept() -> None:
    winners = last_write_wins([folded("a1"), folded("b1")], "only_here_1")
    assert len(winners) == 1
    assert last_write_wins([folded("a1")], "nothing of that name") == {}


def test_versions_of_one_time_are_distinguished_by_replicaset_instance_and_lsn() -> None:
    left, right = folded_by_hand("left", "z", 5), folded_by_hand("right", "y", 1)
    (winner,) = last_write_wins([left, right], "s").values()
    assert winner.replicaset_uuid == "right"
    (winner,) = last_write_wins([right, left], "s").values()
    assert (winner.replicaset_uuid, winner.instance_uuid) == ("right", "y")


def folded_by_hand(uuid: str, instance: str, lsn: int) -> Folded:
    held = FoldedSpace(1000, "s", format=(FormatField("id", "integer"),), key=(Part(0, "integer", ""),))
    held.versions[("k",)] = Version(mp.encode([1]), 1, lsn, 7, 7)
    schema = FoldedSpace(SCHEMA, versions={("c",): Version(mp.encode(["cluster", uuid]), 0, 0, 0, 0)})
    members = FoldedSpace(CLUSTER, versions={("1",): Version(mp.encode([1, instance]), 0, 0, 0, 0)})
    return Folded((2, 6), {1000: held, SCHEMA: schema, CLUSTER: members})

"""Who wins a key that both replicasets wrote: the recordings know who wrote last, and what `updated` says."""

from functools import cache

import pytest

from tests.oracle import Folded, fold_directory, last_write_wins, mp
from tests.oracle.keys import Part, key_of
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

"""Each operation of the document, with the document's drawings, and the choices that it leaves open."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from schemas.errors import RidStateError
from tests.udfs.rid.rids import drawn, node, ulid
from udfs.rid import operations
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY_ULID, FileLock

PRIMARY = {"primary": True, "consistency": True}
WHOLE = {"consistency": True}


def test_initial_state_is_the_default() -> None:
    assert drawn(Node()) == "0000:0000:0000:0000:0000"
    assert Node().next_head is None


def test_promote_initializes_base_then_head_then_turns_primary_on() -> None:
    promoted = operations.promote(Node(), ulid(1), unconnected=False)
    assert drawn(promoted) == "0000:0001:0000:0000:0001"
    assert promoted.rid.primary
    assert promoted.rid.consistency


def test_promote_keeps_a_base_that_is_there() -> None:
    promoted = operations.promote(node("0000:0000:0000:0000:0001"), ulid(2), unconnected=False)
    assert drawn(promoted) == "0000:0002:0000:0000:0001"


def test_promote_with_data_changes_no_generation() -> None:
    before = node("0000:0003:0002:0001:0001", consistency=True, outdated=True)
    promoted = operations.promote(before, ulid(9), unconnected=True)
    assert drawn(promoted) == drawn(before)
    assert promoted.rid.primary
    assert not promoted.rid.outdated


def test_demote_turns_primary_off_and_nothing_else() -> None:
    before = node("0000:0003:0002:0001:0001", 7, **PRIMARY, crashed_primary=True)
    assert operations.demote(before) == node(
        "0000:0003:0002:0001:0001", 7, consistency=True, crashed_primary=True
    )


def test_only_demotion_releases_primary() -> None:
    kept: list[Callable[[Node], Node]] = [
        lambda n: operations.promote(n, ulid(9), unconnected=True),
        lambda n: operations.lose_connection(n, ulid(9), was_primary=True),
        lambda n: operations.mark_unconnected_copy(n, ulid(9)),
        operations.clear_mark,
        operations.begin_generation,
        operations.lock,
        operations.unlock,
        operations.settle_crash,
        lambda n: operations.drop_generations_after(n, ulid(2)),
    ]
    before = node("0000:0003:0002:0001:0001", 7, **PRIMARY)
    assert all(operation(before).rid.primary for operation in kept)


SYNCS = [
    (
        "into an empty node",
        "0000:0001:0000:0000:0001",
        "0000:0000:0000:0000:0001",
        "0001:0000:0000:0000:0001",
        "0000:0001:0000:0000:0001",
    ),
    (
        "between nodes with the same head: no redundant rotation",
        "0000:0003:0002:0001:0001",
        "0000:0003:0002:0001:0001",
        "0003:0003:0002:0001:0001",
        "0000:0003:0002:0001:0001",
    ),
    (
        "the base comes with it",
        "0000:0001:0000:0000:0001",
        "0000:0000:0000:0000:0000",
        "0001:0000:0000:0000:0001",
        "0000:0001:0000:0000:0001",
    ),
    (
        "head to old1 to old2",
        "0000:0004:0003:0002:0001",
        "0000:0003:0002:0001:0001",
        "0004:0003:0002:0001:0001",
        "0000:0004:0003:0002:0001",
    ),
    (
        "what the target has not had is not rotated in",
        "0000:0004:0003:0002:0001",
        "0000:0002:0001:0000:0001",
        "0004:0002:0001:0000:0001",
        "0000:0004:0002:0001:0001",
    ),
]


@pytest.mark.parametrize(
    ("a", "b", "started", "completed"), [r[1:] for r in SYNCS], ids=[r[0] for r in SYNCS]
)
def test_synchronization(a: str, b: str, started: str, completed: str) -> None:
    source = node(a, **PRIMARY)
    target = node(b, 5, outdated=True, crashed_primary=True)
    middle = operations.start_sync(target, source)
    assert drawn(middle) == started
    assert middle.next_head is None
    assert not middle.rid.consistency
    assert middle.rid.outdated
    assert middle.rid.crashed_primary
    end = operations.complete_sync(middle)
    assert drawn(end) == completed
    assert end == Node(replace(end.rid, consistency=True, outdated=False, crashed_primary=False))


def test_an_unfinished_sync_continues_with_a_newer_head() -> None:
    left = operations.start_sync(node("0000:0001:0000:0000:0001"), node("0000:0002:0001:0000:0001", **WHOLE))
    again = operations.start_sync(left, node("0000:0003:0002:0001:0001", **WHOLE))
    assert drawn(again) == "0003:0001:0000:0000:0001"
    assert drawn(operations.complete_sync(again)) == "0000:0003:0001:0000:0001"


def test_between_equal_heads_nothing_is_outdated() -> None:
    same = node("0000:0003:0002:0001:0001", **WHOLE)
    assert not operations.start_sync(same, same).rid.outdated


REFUSED: list[tuple[str, Callable[[], Node], str]] = [
    (
        "a source without data",
        lambda: operations.start_sync(Node(), Node()),
        "the source has no complete data",
    ),
    (
        "a source in the middle of a sync itself",
        lambda: operations.start_sync(Node(), node("0002:0001:0000:0000:0001", consistency=True)),
        "the source has no complete data",
    ),
    (
        "an inconsistent source",
        lambda: operations.start_sync(Node(), node("0000:0001:0000:0000:0001")),
        "the source has no complete data",
    ),
    (
        "a target that is a primary",
        lambda: operations.start_sync(
            node("0000:0001:0000:0000:0001", **PRIMARY), node("0000:0002:0001:0000:0001", **PRIMARY)
        ),
        "the target is a primary",
    ),
    (
        "the end of a sync that never began",
        lambda: operations.complete_sync(node("0000:0001:0000:0000:0001")),
        "no sync into this node was started",
    ),
    (
        "promotion in the middle of a sync",
        lambda: operations.promote(node("0002:0001:0000:0000:0001"), ulid(9), unconnected=True),
        "has not ended",
    ),
]


@pytest.mark.parametrize(("what", "reason"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(what: Callable[[], Node], reason: str) -> None:
    with pytest.raises(RidStateError, match=reason) as caught:
        what()
    assert {"rid", "advice"} <= set(caught.value.fields)


def test_the_mark_is_set_when_promoted_while_an_unconnected_node_exists() -> None:
    assert operations.promote(node("0000:0001:0000:0000:0001"), ulid(2), unconnected=True).next_head == ulid(
        2
    )
    assert operations.promote(node("0000:0001:0000:0000:0001"), ulid(2), unconnected=False).next_head is None


def test_the_mark_is_set_when_a_primary_loses_a_peer() -> None:
    lost = operations.lose_connection(node("0000:0001:0000:0000:0001", **PRIMARY), ulid(2), was_primary=False)
    assert lost == node("0000:0001:0000:0000:0001", 2, **PRIMARY)


def test_the_mark_is_cleared_when_all_are_connected() -> None:
    assert operations.clear_mark(node("0000:0001:0000:0000:0001", 2, **PRIMARY)).next_head is None


def test_under_the_mark_the_first_data_begin_a_generation_and_the_second_do_not() -> None:
    marked = node("0000:0003:0002:0001:0001", 4, **PRIMARY)
    first = operations.begin_generation(marked)
    assert first == node("0000:0004:0003:0002:0001", **PRIMARY)
    assert operations.begin_generation(first) == first


def test_without_the_mark_data_change_no_generation() -> None:
    unmarked = node("0000:0003:0002:0001:0001", **PRIMARY)
    assert operations.begin_generation(unmarked) == unmarked


def test_the_mark_gets_the_time_of_the_write_and_is_never_before_the_head() -> None:
    marked = node("0000:0003:0002:0001:0001", 4, **PRIMARY)
    assert operations.renew_mark(marked, ulid(8)).next_head == ulid(8)
    renewed = operations.renew_mark(marked, ulid(1)).next_head
    assert renewed is not None
    assert renewed > marked.rid.head
    assert operations.renew_mark(node("0000:0003:0002:0001:0001"), ulid(8)).next_head is None


def test_a_copy_marks_both_sides_whatever_their_role_and_keeps_a_mark() -> None:
    assert operations.mark_unconnected_copy(node("0000:0003:0002:0001:0001"), ulid(8)).next_head == ulid(8)
    assert operations.mark_unconnected_copy(node("0000:0003:0002:0001:0001", 4), ulid(8)).next_head == ulid(4)


def test_outdated_is_set_on_a_secondary_that_loses_the_primary() -> None:
    secondary = node("0000:0001:0000:0000:0001", consistency=True)
    assert operations.lose_connection(secondary, ulid(2), was_primary=True).rid.outdated
    assert operations.lose_connection(secondary, ulid(2), was_primary=False) == secondary
    primary = node("0000:0001:0000:0000:0001", **PRIMARY)
    assert not operations.lose_connection(primary, ulid(2), was_primary=True).rid.outdated


def test_crashed_primary_is_set_when_a_primarys_lock_was_left() -> None:
    open_ = operations.lock(node("0000:0001:0000:0000:0001", **PRIMARY))
    assert open_.rid.file_lock is FileLock.ALLOW_READ
    assert not open_.rid.crashed_primary
    again = operations.lock(open_)
    assert again.rid.crashed_primary
    assert again.rid.file_lock is FileLock.ALLOW_READ


def test_a_writer_lets_others_read_and_a_copy_into_a_location_does_not() -> None:
    secondary = node("0000:0001:0000:0000:0001")
    assert operations.lock(secondary).rid.file_lock is FileLock.ALLOW_READ
    assert operations.lock(secondary, is_readable=False).rid.file_lock is FileLock.LOCKED


@pytest.mark.parametrize("left", [FileLock.ALLOW_READ, FileLock.LOCKED])
def test_a_lock_that_any_release_left_on_a_primary_is_a_crash(left: FileLock) -> None:
    killed = node("0000:0001:0000:0000:0001", **PRIMARY, file_lock=left)
    assert operations.lock(killed).rid.crashed_primary


def test_a_primary_that_ended_properly_has_not_crashed() -> None:
    ended = operations.unlock(operations.lock(node("0000:0001:0000:0000:0001", **PRIMARY)))
    assert ended.rid.file_lock is FileLock.UNLOCKED
    assert not operations.lock(ended).rid.crashed_primary


def test_a_secondary_whose_lock_was_left_is_no_crashed_primary() -> None:
    left = operations.lock(node("0000:0001:0000:0000:0001"))
    assert not operations.lock(left).rid.crashed_primary


def test_crashed_primary_is_released_by_synchronization_on_both_sides() -> None:
    source = node("0000:0002:0001:0000:0001", **PRIMARY, crashed_primary=True)
    target = node("0000:0001:0000:0000:0001", crashed_primary=True)
    assert not operations.complete_sync(operations.start_sync(target, source)).rid.crashed_primary
    assert not operations.settle_crash(source).rid.crashed_primary


@pytest.mark.parametrize(
    ("common", "left"),
    [(3, "0000:0003:0002:0001:0001"), (2, "0000:0002:0001:0000:0001"), (1, "0000:0001:0000:0000:0001")],
)
def test_a_discarded_generation_leaves_the_rid(common: int, left: str) -> None:
    assert drawn(operations.drop_generations_after(node("0000:0003:0002:0001:0001", 7), ulid(common))) == left


def test_without_a_common_generation_all_but_the_base_is_discarded() -> None:
    cut = operations.drop_generations_after(node("0000:0003:0002:0001:0001", 7), EMPTY_ULID)
    assert (drawn(cut), cut.next_head) == ("0000:0000:0000:0000:0001", None)


def test_a_sync_that_is_abandoned_with_other_data_is_a_generation_of_its_own() -> None:
    middle = node("0005:0001:0000:0000:0001")
    kept = operations.abandon_sync(middle, ulid(9), changed=False)
    assert kept == node("0000:0001:0000:0000:0001", consistency=True)
    changed = operations.abandon_sync(middle, ulid(9), changed=True)
    assert changed == node("0000:0009:0001:0000:0001", consistency=True)

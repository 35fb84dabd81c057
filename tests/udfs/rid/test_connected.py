"""Two nodes, one copied to after each write: every sequence of events, against what each really holds.

The rules are those of `warehouse.copies.standbys`: a write is made under the old head only while the write before it
has arrived; who starts is not connected until both were compared; who was promoted writes under a new head.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ulid import ULID

from udfs.rid import operations
from udfs.rid.comparison import Comparison, Verdict, compare, with_epochs
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY_ULID

DEPTH = 9

Written = tuple[tuple[ULID, str], ...]
"""Of each write its generation, and who made it and what was there before: two writes are never equal by chance."""


@dataclass(frozen=True)
class Copy:
    """One of the two: its node, what it holds, and whether its writer runs."""

    node: Node
    data: Written = ()
    runs: bool = False

    def last_of(self, generation: ULID | None) -> int:
        """Return the position of a generation's last write, as the epochs have it."""
        return max((at for at, (head, _) in enumerate(self.data) if head == generation), default=-1)


@dataclass(frozen=True)
class World:
    """Both, whether they can reach each other, and whether a's writer takes b as connected."""

    a: Copy
    b: Copy
    is_reachable: bool = True
    is_connected: bool = False
    clock: int = 2

    def compared(self) -> Comparison:
        found = compare(self.a.node.rid, self.b.node.rid)
        ends = self.a.last_of(found.common), self.b.last_of(found.common)
        return with_epochs(found, self.a.node.rid, self.b.node.rid, ends)


def start() -> World:
    """Return a primary and its copy, before any write."""
    first = operations.promote(Node(), ULID.from_int(1 << 80), unconnected=False)
    return World(Copy(first), Copy(operations.demote(first)))


def fresh(world: World) -> tuple[World, ULID]:
    return replace(world, clock=world.clock + 1), ULID.from_int(world.clock << 80)


def written(copy: Copy, by: str) -> Copy:
    node = operations.begin_generation(copy.node)
    return replace(copy, node=node, data=(*copy.data, (node.rid.head, f"{by}{len(copy.data)}")))


def copied(world: World) -> World:
    """Copy a to b, where the two can reach each other and b is a's copy; else a's writer loses b."""
    found = world.compared()
    is_copy = found.verdict is Verdict.SAME or found.target == "b"
    if world.is_reachable and is_copy and not world.b.node.rid.primary:
        node = operations.complete_sync(operations.start_sync(world.b.node, world.a.node))
        return replace(world, b=Copy(node, world.a.data))
    world, mark = fresh(world)
    lost = operations.lose_connection(world.a.node, mark, was_primary=False)
    return replace(world, a=replace(world.a, node=lost), is_connected=False)


def a_writes(world: World) -> World:
    if world.is_connected:
        world = copied(world)
    return replace(world, a=written(world.a, "a"))


def a_copies(world: World) -> World:
    return copied(world)


def a_starts(world: World) -> World:
    """Start the writer: refused where a reachable b is newer or primary; connected where b is brought to the same."""
    found = world.compared()
    if world.is_reachable and (found.target == "a" or world.b.node.rid.primary):
        return world
    world, mark = fresh(world)
    marked = operations.lose_connection(world.a.node, mark, was_primary=False)
    world = replace(world, a=replace(world.a, node=marked, runs=True))
    return a_joins(world)


def a_joins(world: World) -> World:
    if not world.is_reachable or world.b.node.rid.primary:
        return world
    found = world.compared()
    if found.verdict is not Verdict.SAME and found.target != "b":
        return world
    world = copied(world)
    a, b = (operations.clear_mark(copy.node) for copy in (world.a, world.b))
    return replace(world, a=replace(world.a, node=a), b=replace(world.b, node=b), is_connected=True)


def a_is_killed(world: World) -> World:
    return replace(world, a=replace(world.a, runs=False), is_connected=False)


def b_is_promoted(world: World) -> World:
    world, mark = fresh(world)
    return replace(world, b=replace(world.b, node=operations.promote(world.b.node, mark, unconnected=True)))


def b_writes(world: World) -> World:
    return replace(world, b=written(world.b, "b"))


def b_is_demoted(world: World) -> World:
    return replace(world, b=replace(world.b, node=operations.demote(world.b.node)))


def is_cut_off(world: World) -> World:
    return replace(world, is_reachable=not world.is_reachable)


def next_worlds(world: World) -> Iterator[World]:
    if world.a.runs:
        yield from (a_writes(world), a_is_killed(world))
        yield a_copies(world) if world.is_connected else a_joins(world)
    else:
        yield a_starts(world)
    if world.b.node.rid.primary:
        yield from (b_writes(world), b_is_demoted(world))
    # The writer of a has b's lock while it is connected; cut off, it keeps it only by its own clock.
    elif not world.is_connected or not world.is_reachable:
        yield b_is_promoted(world)
    yield is_cut_off(world)


def check(world: World) -> None:
    one, other, found = world.a.data, world.b.data, world.compared()
    if found.verdict is Verdict.SAME:
        assert one == other
    elif found.verdict is Verdict.SYNC:
        newer, older = (one, other) if found.source == "a" else (other, one)
        assert newer[: len(older)] == older, "a sync would lose data in silence"
    else:
        assert found.verdict is Verdict.SPLIT_BRAIN
    in_flight = [sum(head == found.common for head, _ in data) for data in (one, other)]
    assert in_flight[0] - in_flight[1] in (0, 1), (
        "more than the write in flight is under a head that both have"
    )
    assert EMPTY_ULID not in (world.a.node.rid.head, world.b.node.rid.head)


def test_nothing_is_lost_in_silence_whatever_happens() -> None:
    seen, layer, verdicts = {start()}, [start()], set()
    for _ in range(DEPTH):
        found = {world for one in layer for world in next_worlds(one)} - seen
        for world in found:
            check(world)
            verdicts.add(world.compared().verdict)
        seen |= found
        layer = list(found)
    assert verdicts == {Verdict.SAME, Verdict.SYNC, Verdict.SPLIT_BRAIN}
    assert len(seen) > 2000


def test_the_rids_alone_would_not_show_an_epoch_in_flight() -> None:
    """Why warehouses are compared by the epochs of their common generation, too."""
    world = b_is_promoted(a_is_killed(a_writes(a_starts(start()))))
    world = b_writes(world)
    alone = compare(world.a.node.rid, world.b.node.rid)
    assert (alone.verdict, alone.target) == (Verdict.SYNC, "a")
    assert world.compared().verdict is Verdict.SPLIT_BRAIN

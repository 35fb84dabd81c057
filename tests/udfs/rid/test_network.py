"""Three nodes in any sequence of events, against a model that knows the data of each.

The model stores the writes of each node in order. Connected nodes form a group: all of its nodes get the writes of its
primary. A sync is a copy between groups; a crash may end it anywhere.
"""

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ulid import ULID

from tests.soaked import examples
from udfs.rid import operations
from udfs.rid.comparison import Verdict, compare
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY_ULID

NODES = st.integers(0, 2)
Data = tuple[int, ...]


def common_part(one: Data, other: Data) -> Data:
    """Return the common prefix of two nodes' writes."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]


class Network(RuleBasedStateMachine):
    """Three nodes, their groups, and the syncs in progress."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = [Node(), Node(), Node()]
        self.data: list[Data] = [(), (), ()]
        self.groups = [{0, 1, 2}]
        self.copies: dict[int, Data] = {}
        self.sealed: dict[ULID, set[Data]] = {}
        self.writes = 0
        self.clock = 1 << 90

    def fresh(self) -> ULID:
        self.clock += 1 << 80
        return ULID.from_int(self.clock)

    def group(self, n: int) -> set[int]:
        return next(group for group in self.groups if n in group)

    def primaries(self, group: set[int]) -> set[int]:
        return {n for n in group if self.nodes[n].rid.primary}

    def new_write(self, data: Data) -> Data:
        self.writes += 1
        return (*data, self.writes)

    @rule(n=NODES)
    def promote(self, n: int) -> None:
        node = self.nodes[n]
        if node.rid.incoming != EMPTY_ULID or self.primaries(self.group(n)):
            return
        self.nodes[n] = operations.promote(node, self.fresh(), unconnected=self.group(n) != {0, 1, 2})
        if node.rid.head == EMPTY_ULID:
            # To have a base is to hold data of it, if none: those connected get it as if they were written.
            self.replicate(n)

    @rule(n=NODES)
    def demote(self, n: int) -> None:
        self.nodes[n] = operations.demote(self.nodes[n])

    @precondition(lambda self: self.primaries({0, 1, 2}))
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from(sorted(self.primaries({0, 1, 2}))))
        before = self.nodes[n]
        self.nodes[n] = operations.begin_generation(operations.renew_mark(before, self.fresh()))
        assert (self.nodes[n].rid.head != before.rid.head) == (before.next_head is not None)
        self.data[n] = self.new_write(self.data[n])
        if self.group(n) == {0, 1, 2}:
            # Nobody is left who holds an earlier state of this generation.
            self.sealed.pop(self.nodes[n].rid.head, None)
        self.replicate(n)

    def replicate(self, n: int) -> None:
        for peer in self.group(n) - {n}:
            mark = self.nodes[peer].next_head if self.nodes[n].next_head is not None else None
            received = operations.complete_sync(operations.start_sync(self.nodes[peer], self.nodes[n]))
            self.nodes[peer] = replace(received, next_head=mark)
            self.data[peer] = self.data[n]

    @precondition(lambda self: len(self.groups) < 3)
    @rule(n=NODES)
    def disconnect(self, n: int) -> None:
        group = self.group(n)
        if len(group) == 1:
            return
        led = self.primaries(group) - {n}
        self.groups.remove(group)
        self.groups += [group - {n}, {n}]
        for peer in group - {n}:
            was_primary = self.nodes[n].rid.primary
            self.nodes[peer] = operations.lose_connection(
                self.nodes[peer], self.fresh(), was_primary=was_primary
            )
        self.nodes[n] = operations.lose_connection(self.nodes[n], self.fresh(), was_primary=bool(led))

    @rule(a=NODES, b=NODES)
    def connect(self, a: int, b: int) -> None:
        one, other = self.group(a), self.group(b)
        if one is other or len(self.primaries(one | other)) > 1:
            return
        if any(self.nodes[n].rid.incoming != EMPTY_ULID for n in one | other):
            return
        if compare(self.nodes[a].rid, self.nodes[b].rid).verdict is not Verdict.SAME:
            return
        self.groups = [group for group in self.groups if group is not one and group is not other]
        self.groups.append(one | other)
        if one | other == {0, 1, 2}:
            self.nodes = [operations.clear_mark(node) for node in self.nodes]

    def may_sync(self, a: int, b: int) -> bool:
        source, target = self.nodes[a], self.nodes[b]
        if a == b or len(self.group(b)) > 1 or target.rid.primary:
            return False
        if source.rid.head == EMPTY_ULID or source.rid.incoming != EMPTY_ULID:
            return False
        found = compare(source.rid, target.rid)
        return found.verdict in (Verdict.SAME, Verdict.SPLIT_BRAIN) or found.target == "b"

    def syncs(self) -> list[tuple[int, int]]:
        return [(a, b) for a in range(3) for b in range(3) if self.may_sync(a, b)]

    def held_by_both(self, generation: ULID, both: Data) -> Data:
        """Return the writes of a copied generation; both may have more, under a generation that only one knows."""
        (state,) = self.sealed[generation]
        assert both[: len(state)] == state
        return state

    @precondition(lambda self: self.syncs())
    @rule(data=st.data())
    def start_sync(self, data: st.DataObject) -> None:
        a, b = data.draw(st.sampled_from(self.syncs()))
        source, target = self.nodes[a], self.nodes[b]
        found = compare(source.rid, target.rid)
        for n in self.group(a):
            self.nodes[n] = operations.mark_unconnected_copy(self.nodes[n], self.fresh())
        if found.verdict is Verdict.SPLIT_BRAIN:
            target = operations.drop_generations_after(target, found.common or EMPTY_ULID)
            common = common_part(self.data[a], self.data[b])
            if found.common is None:
                common = ()
            elif found.common in self.sealed:
                common = self.held_by_both(found.common, common)
            self.data[b] = common
        self.nodes[b] = operations.start_sync(target, source)
        self.copies[b] = self.data[a]

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def complete_sync(self, data: st.DataObject) -> None:
        b = data.draw(st.sampled_from(sorted(self.copies)))
        self.data[b] = self.copies.pop(b)
        ended = operations.complete_sync(self.nodes[b])
        self.sealed.setdefault(ended.rid.head, set()).add(self.data[b])
        self.nodes[b] = operations.mark_unconnected_copy(ended, self.fresh())

    @rule(n=NODES)
    def crash(self, n: int) -> None:
        was_primary = self.nodes[n].rid.primary
        self.copies.pop(n, None)
        self.disconnect(n)
        self.nodes[n] = operations.lock(operations.lock(self.nodes[n]))
        assert self.nodes[n].rid.crashed_primary >= was_primary

    @rule(n=NODES, changed=st.booleans())
    def abandon(self, n: int, changed: bool) -> None:
        node = self.nodes[n]
        if (
            node.rid.incoming == EMPTY_ULID
            or n in self.copies
            or (node.rid.head == EMPTY_ULID and not changed)
        ):
            return
        self.nodes[n] = operations.abandon_sync(node, self.fresh(), changed=changed)
        if changed:
            self.data[n] = self.new_write(self.data[n])

    @invariant()
    def comparison_tells_the_truth(self) -> None:
        for a, b in ((0, 1), (0, 2), (1, 2)):
            one, other = self.data[a], self.data[b]
            both = common_part(one, other)
            found = compare(self.nodes[a].rid, self.nodes[b].rid)
            if found.verdict is Verdict.SAME:
                assert one == other
            elif found.verdict is Verdict.SYNC:
                newer, older = (one, other) if found.source == "a" else (other, one)
                assert newer[: len(older)] == older
            elif found.verdict is Verdict.SPLIT_BRAIN:
                assert one != other or one == ()
                if found.common in self.sealed:
                    self.held_by_both(found.common, both)
            else:
                assert both == ()

    @invariant()
    def one_generation_that_was_copied_is_one_state_of_data(self) -> None:
        assert all(len(states) == 1 for states in self.sealed.values())

    @invariant()
    def the_common_generation_is_the_newest_of_both(self) -> None:
        for node in self.nodes:
            ascending = [ulid for ulid in node.rid.generations if ulid != EMPTY_ULID]
            assert ascending == sorted(ascending, reverse=True)


TestNetwork = Network.TestCase
TestNetwork.settings = settings(deadline=None, max_examples=examples(250), stateful_step_count=50)

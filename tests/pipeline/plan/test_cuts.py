"""However a log is cut into batches, and whichever member's copy is read, the same becomes of each row."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline import logs
from tests.pipeline.logs import (
    A1,
    A2,
    A3,
    Row,
    Transaction,
    put,
    register,
    settling_row,
    synchronous_row,
    txn,
)
from tests.pipeline.plan.planner import Piece, Planner
from tests.soaked import examples

BEGIN = (txn(1, register(1, A1)), txn(1, register(2, A2)))
SYNCHRONOUS = 600


@dataclass
class Limbo:
    """A plain model of Tarantool's limbo (`src/box/txn_limbo.c`) that writes a log and knows each row's fate."""

    flags: bool
    log: list[Transaction] = field(default_factory=list)
    lsns: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    owner: int = 1
    queue: list[tuple[int, list[int], bool]] = field(default_factory=list)
    fates: dict[tuple[int, int], str] = field(default_factory=dict)

    def write(self, origin: int, *rows: Row) -> list[int]:
        self.log.append(txn(origin, *rows))
        first = self.lsns[origin] + 1
        self.lsns[origin] += len(rows)
        return list(range(first, first + len(rows)))

    def change(self, size: int, sync: bool) -> None:
        """Write a transaction of the owner: it queues where it is synchronous, or another one queues already."""
        rows = [put()] * size
        if sync and self.flags:
            rows[-1] = synchronous_row(put())
        elif sync:
            rows[size // 2] = put(SYNCHRONOUS)
        elif self.queue and self.flags:
            rows[-1] = {**put(), "wait_sync": True}
        lsns = self.write(self.owner, *rows)
        if sync or self.queue:
            self.queue.append((lsns[-1], lsns, sync))
        else:
            self.settle([(lsns[-1], lsns, sync)], "committed")

    def settle(self, entries: Sequence[tuple[int, list[int], bool]], fate: str) -> None:
        self.fates |= {(self.owner, lsn): fate for _, lsns, _ in entries for lsn in lsns}

    def confirm(self, index: int) -> int:
        """Confirm up to a synchronous one of the queue; asynchronous ones next to it go with it."""
        last = [lsn for lsn, _, sync in self.queue if sync][index]
        rest = next((i for i, one in enumerate(self.queue) if one[2] and one[0] > last), len(self.queue))
        self.settle(self.queue[:rest], "committed")
        self.queue = self.queue[rest:]
        return last

    def settled(self, kind: str, index: int) -> None:
        waiting = [lsn for lsn, _, sync in self.queue if sync]
        if not waiting:
            return
        index %= len(waiting)
        if kind == "CONFIRM":
            last = self.confirm(index)
            self.note(self.owner, settling_row("CONFIRM", self.owner, last))
        elif kind == "ROLLBACK":
            begin = next(i for i, one in enumerate(self.queue) if one[0] == waiting[index])
            self.settle(self.queue[begin:], "rolled back")
            self.queue = self.queue[:begin]
            self.note(self.owner, settling_row("ROLLBACK", self.owner, waiting[index]))
        else:
            last = self.confirm(index)
            self.settle(self.queue, "rolled back")
            self.queue = []
            other = 3 - self.owner
            self.note(other, settling_row("PROMOTE", self.owner, last, term=2))
            self.owner = other

    def note(self, origin: int, row: Row) -> None:
        self.fates |= {(origin, lsn): "committed" for lsn in self.write(origin, row)}


EVENTS = st.lists(
    st.tuples(st.just("change"), st.integers(1, 3), st.booleans())
    | st.tuples(st.just("change"), st.integers(1, 3), st.just(True))
    | st.tuples(st.sampled_from(["CONFIRM", "ROLLBACK", "PROMOTE"]), st.integers(0, 3), st.booleans()),
    max_size=10,
)


def played(events: Sequence[tuple[str, int, bool]], *, flags: bool) -> Limbo:
    limbo = Limbo(flags)
    for row in (register(1, A1), register(2, A2), logs.define(SYNCHRONOUS, "s", is_sync=not flags)):
        limbo.note(1, row)
    for kind, number, sync in events:
        if kind == "change":
            limbo.change(number, sync)
        else:
            limbo.settled(kind, number)
    return limbo


def expected(limbo: Limbo, rows: Sequence[Row]) -> dict[tuple[int, int], str]:
    """Return the fates of the rows in front of the first that waits: all behind it wait with it."""
    found = {}
    for row in rows:
        name = (row["replica_id"], row["lsn"])
        if name not in limbo.fates:
            break
        found[name] = limbo.fates[name]
    return found


def ends(rows: Sequence[Row]) -> list[int]:
    return [i + 1 for i, row in enumerate(rows) if row["is_commit"]]


def fed(planner: Planner, *parts: Sequence[Row], instance: str = A1) -> Planner:
    for part in parts:
        if part:
            planner.batch(Piece(logs.batch_of(part), instance=instance))
    return planner


@pytest.mark.parametrize("flags", [True, False], ids=["flags of 2.8", "spaces of 2.6"])
@settings(deadline=None, max_examples=examples(60))
@given(events=EVENTS, data=st.data())
def test_limbo(flags: bool, events: list[tuple[str, int, bool]], data: st.DataObject) -> None:
    limbo = played(events, flags=flags)
    rows = logs.rows_of(limbo.log)
    outcome = expected(limbo, rows)
    whole = fed(Planner(), rows)
    assert whole.states() == outcome
    indices = [0, *sorted(data.draw(st.lists(st.sampled_from(ends(rows)), max_size=4))), len(rows)]
    cut = fed(Planner(), *(rows[a:b] for a, b in pairwise(indices)))
    assert cut.states() == outcome
    assert cut.names_waiting() == whole.names_waiting()
    assert cut.state.replicasets == whole.state.replicasets
    assert cut.fates == whole.fates


def alter(space_id: int, *, is_sync: bool) -> Row:
    return logs.change("UPDATE", 280, key=[space_id], ops=[["=", 5, {"is_sync": is_sync}]])


@pytest.mark.parametrize(
    ("inner", "rolled_back"),
    [
        ((put(600), put(601)), True),
        ((put(601), put(600)), True),
        ((put(601), put(602)), False),
        ((put(601), logs.define(603, "d", is_sync=True), logs.index(603), put(603)), True),
        ((logs.define(603, "d", is_sync=True), logs.index(603), put(601)), False),
    ],
    ids=["first", "last", "neither", "made in it", "made in it without rows"],
)
def test_a_transaction_of_several_spaces_of_which_one_is_synchronous(
    inner: tuple[Row, ...], rolled_back: bool
) -> None:
    """Servers before 2.8 set no flag; the other spaces of the transaction are synchronous before or after it."""
    log = [*BEGIN]
    for space_id, is_sync in ((600, True), (601, False), (602, True)):
        log += [txn(1, logs.define(space_id, f"s{space_id}", is_sync=is_sync)), txn(1, logs.index(space_id))]
    log += [txn(1, alter(602, is_sync=False))]
    first = 1 + sum(len(one.rows) for one in log)
    last = first + len(inner) - 1
    log += [txn(1, *inner), txn(1, settling_row("ROLLBACK", 1, last)), txn(1, alter(601, is_sync=True))]
    log += [txn(1, put(601)), txn(1, settling_row("CONFIRM", 1, last + 3))]
    rows = logs.rows_of(log)
    outcome = {(1, row["lsn"]): "committed" for row in rows}
    if rolled_back:
        outcome |= {(1, lsn): "rolled back" for lsn in range(first, last + 1)}
    assert fed(Planner(), rows).states() == outcome
    assert fed(Planner(), *(rows[a:b] for a, b in pairwise([0, *ends(rows)]))).states() == outcome


@pytest.mark.parametrize("flags", [True, False], ids=["flags of 2.8", "spaces of 2.6"])
@settings(deadline=None, max_examples=examples(60))
@given(events=EVENTS, data=st.data())
def test_takeover(flags: bool, events: list[tuple[str, int, bool]], data: st.DataObject) -> None:
    """A second member's log overlaps what was read of the first: nothing twice, nothing lost, the same fates."""
    limbo = played(events, flags=flags)
    rows = logs.rows_of(limbo.log)
    stop = data.draw(st.sampled_from(ends(rows)))
    again = data.draw(st.sampled_from([0, *(end for end in ends(rows) if end <= stop)]))
    planner = fed(fed(Planner(), rows[:stop]), rows[again:], instance=A2)
    assert planner.states() == expected(limbo, rows)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["make", "index", "rekey", "drop index", "drop", "truncate", "widen", "put", "put", "put"]
        ),
        st.integers(600, 601),
    ),
    max_size=14,
)
OTHER_KEY = [{"field": 1, "type": "string"}]


def ddl(steps: Sequence[tuple[str, int]]) -> list[Row]:
    """Return rows that a server would log: a step that does not apply to what stands there is passed."""
    log = [*BEGIN]
    made: dict[int, tuple[int, bool]] = {}  # id: (its life, whether it has a primary index)
    for number, (step, id_) in enumerate(steps):
        life, indexed = made.get(id_, (0, False))
        row: tuple[Row, ...] = ()
        if step == "make" and not life:
            made[id_] = (number + 1, False)
            row = (logs.define(id_, f"space {number}"),)
        elif step == "index" and life and not indexed:
            made[id_] = (life, True)
            row = (logs.index(id_, OTHER_KEY if number % 2 else logs.ID_PARTS),)
        elif step == "rekey" and indexed:
            row = (logs.change("REPLACE", 288, tuple_=logs.index_tuple(id_, OTHER_KEY)),)
        elif step == "drop index" and indexed:
            made[id_] = (life, False)
            row = (logs.drop_index(id_),)
        elif step == "drop" and life:
            made[id_] = (0, False)
            row = (*([logs.drop_index(id_)] if indexed else []), logs.drop(id_))
        elif step == "truncate" and indexed:
            row = (logs.truncate(id_),)
        elif step == "widen" and life:
            fields = [*logs.FIELDS, {"name": f"f{number}", "type": "any", "is_nullable": True}]
            row = (logs.change("UPDATE", 280, key=[id_], ops=[["=", 6, fields]]),)
        elif step == "put" and indexed:
            row = (put(id_, number, "x"),)
        log += [txn(1, *row)] if row else []
    return logs.rows_of(log)


@settings(deadline=None, max_examples=examples(80))
@given(rows=STEPS.map(ddl), data=st.data())
def test_definitions(rows: list[Row], data: st.DataObject) -> None:
    whole = fed(Planner(), rows)
    indices = [0, *sorted(data.draw(st.lists(st.sampled_from(ends(rows)), max_size=4))), len(rows)]
    for cuts in (indices, [0, *ends(rows)]):
        planner = fed(Planner(), *(rows[a:b] for a, b in pairwise(cuts)))
        assert planner.fates == whole.fates
        assert planner.state.replicasets == whole.state.replicasets
        assert planner.truncations == whole.truncations


HOLES = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 1, 1, 1, 2, 5])), max_size=10)


@pytest.mark.parametrize("on_gap", ["hold", "skip"])
@settings(deadline=None, max_examples=examples(40))
@given(steps=HOLES, data=st.data())
def test_gaps(on_gap: str, steps: list[tuple[int, int]], data: st.DataObject) -> None:
    log = [*BEGIN, txn(1, register(3, A3))]
    lsns, whole_until = {1: 3, 2: 0, 3: 0}, 3
    for number, (origin, step) in enumerate(steps):
        lsns[origin] += step
        log.append(txn(origin, put(), lsn=lsns[origin]))
        if step == 1 and whole_until == number + 3:
            whole_until += 1
    rows = logs.rows_of(log)
    counted = rows[:whole_until] if on_gap == "hold" else rows
    indices = [0, *sorted(data.draw(st.lists(st.sampled_from(ends(rows)), max_size=4))), len(rows)]
    planner = fed(Planner(on_gap), *(rows[a:b] for a, b in pairwise(indices)))
    assert planner.states() == {(row["replica_id"], row["lsn"]): "committed" for row in counted}
    assert len(planner.names_waiting()) == len(rows) - len(counted)

"""Two replicasets that define a space in ways that contradict: wherever batches end, the same one is refused."""

from collections.abc import Iterator, Sequence
from itertools import combinations, groupby, pairwise
from pathlib import Path

import pytest

from pipeline.commit.load import load_state
from pipeline.plan.batch_plan import BatchPlan
from tests.jobs.written import FIELDS, Node
from tests.pipeline import logs
from tests.pipeline.deployment import Deployment
from tests.pipeline.logs import A1, B1, A, B, Row, Transaction, define, drop, index, put, register, txn
from tests.pipeline.plan.planner import Piece, Planner
from tests.soaked import IS_SOAK, partly_soaked

ID = {"name": "id", "type": "unsigned"}
TEXT, MAP = ([ID, {"name": "value", "type": kind, "is_nullable": True}] for kind in ("string", "map"))
OTHER_KEY = [{"field": 1, "type": "string"}]
INSTANCES = {A: A1, B: B1}

Transactions = Sequence[tuple[str, Transaction]]
"""Transactions of two replicasets, in the order in which they are read."""


def fields(space_id: int, format_: object) -> Row:
    return logs.change("UPDATE", 280, key=[space_id], ops=[["=", 6, format_]])


def name(space_id: int, new: str) -> Row:
    return logs.change("UPDATE", 280, key=[space_id], ops=[["=", 2, new]])


def space(space_id: int, called: str, format_: object = TEXT, parts: object = logs.ID_PARTS) -> Transaction:
    return txn(1, define(space_id, called, fields=format_), index(space_id, parts), put(space_id, 1))  # type: ignore[arg-type]


BEGIN = ((A, txn(1, register(1, A1))), (B, txn(1, register(1, B1))))
BOTH = (*BEGIN, (A, space(600, "s")), (B, space(700, "s")))
CASES: dict[str, tuple[Transactions, dict[str, set[int]]]] = {
    "the second one makes it": (
        (*BEGIN, (A, space(600, "s")), (B, space(700, "s", MAP)), (A, txn(1, put(600)))),
        {A: set(), B: {700}},
    ),
    "the first one changes it": (
        (*BOTH, (A, txn(1, fields(600, MAP), put(600))), (B, txn(1, put(700))), (A, txn(1, put(600)))),
        {A: {600}, B: set()},
    ),
    "both change it": (
        (*BOTH, (A, txn(1, fields(600, MAP))), (B, txn(1, fields(700, MAP))), (A, txn(1, put(600)))),
        {A: {600}, B: {700}},
    ),
    "another primary key": (
        (*BEGIN, (A, space(600, "s")), (B, space(700, "s", parts=OTHER_KEY)), (A, txn(1, put(600)))),
        {A: set(), B: {700}},
    ),
    "a space is renamed to it": (
        (
            *BOTH,
            (B, space(701, "t", MAP)),
            (B, txn(1, name(700, "u"), name(701, "s"))),
            (B, txn(1, put(701))),
        ),
        {A: set(), B: {701}},
    ),
    "two names are swapped": (
        (
            *(*BOTH, (A, space(601, "t"))),
            (A, txn(1, name(600, "u"), name(601, "s"), name(600, "t"))),
            (B, txn(1, fields(700, MAP))),
            *((A, txn(1, put(600))), (A, txn(1, put(601)))),
        ),
        {A: set(), B: {700}},
    ),
    "it is dropped, and made again as the other one has it": (
        (
            *(*BOTH, (B, txn(1, fields(700, MAP), put(700)))),
            (B, txn(1, logs.drop_index(700), drop(700))),
            *((A, txn(1, put(600))), (B, space(700, "s"))),
        ),
        {A: set(), B: set()},
    ),
    "the other one drops it later": (
        (*BOTH, (B, txn(1, fields(700, MAP))), (A, txn(1, drop(600))), (B, txn(1, put(700)))),
        {A: set(), B: {700}},
    ),
}


def batches(read: Transactions, cuts: Sequence[int]) -> Iterator[list[Piece]]:
    """Yield the pieces of each batch; `cuts` are the numbers of the transactions before which a batch begins."""
    rows = {uuid: logs.rows_of(one for other, one in read if other == uuid) for uuid in INSTANCES}
    for begin, end in pairwise([0, *cuts, len(read)]):
        pieces = []
        for uuid, part in groupby(read[begin:end], key=lambda one: one[0]):
            count = sum(len(one.rows) for _, one in part)
            pieces.append(Piece(logs.batch_of(rows[uuid][:count]), uuid, INSTANCES[uuid]))
            del rows[uuid][:count]
        yield pieces


def planned(read: Transactions, cuts: Sequence[int]) -> tuple[Planner, list[BatchPlan]]:
    planner = Planner()
    return planner, [planner.batch(*pieces) for pieces in batches(read, cuts)]


@pytest.mark.parametrize("case", CASES)
def test_wherever_batches_end(case: str) -> None:
    read, refused = CASES[case]
    whole, _ = planned(read, [])
    assert {uuid: set(one.refused) for uuid, one in whole.state.replicasets.items()} == refused
    every = range(1, len(read))
    # A cut anywhere, two anywhere, and one transaction a batch; a soak cuts in each way.
    for count in every if IS_SOAK else sorted({*every} & {1, 2, len(read) - 1}):
        for cuts in combinations(range(1, len(read)), count):
            planner, plans = planned(read, cuts)
            assert planner.fates == whole.fates
            for uuid, one in whole.state.replicasets.items():
                found = planner.state.replicasets[uuid]
                assert (found.tables, found.refused) == (one.tables, one.refused)
                assert (found.applied_definitions, found.primary_keys) == (
                    one.applied_definitions,
                    one.primary_keys,
                )
            assert not any(plan.refused_tables for plan in plans)


S = 600


@pytest.mark.parametrize("budget", partly_soaked([None, 1], [400]))
@pytest.mark.parametrize("is_restarted", [False, True], ids=["one writer", "starts in between"])
def test_the_rows_of_a_space_that_is_dropped(tmp_path: Path, budget: int | None, is_restarted: bool) -> None:
    """The drop takes them out of the table, also if the same batch refuses the space that comes after it."""
    a, b = (Node(tmp_path / "logs", one).define(S, "people") for one in ("a1", "b1"))
    a.is_apart = b.is_apart = True
    a.put(S, 1, "a", 10, 1, at=1).put(S, 3, "a", 10, 1, at=1).close()
    b.put(S, 1, "b", 20, 2, at=2).put(S, 2, "b", 21, 2, at=2)
    made = Deployment.aggregated(tmp_path, a, b)
    assert {row["id"]: row["name"] for row in made.rows("people")} == {1: "b", 2: "b", 3: "a"}
    b.put(S, 4, "b", 22, 2, at=3)
    b.drop(S).define(S, "people", [FIELDS[0], ("name", "map"), *FIELDS[2:]]).put(
        S, 5, {}, 23, 2, at=4
    ).close()
    a.put(S, 6, "a", 11, 1, at=5).close()
    while made.run(budget, 3 if is_restarted else None) and is_restarted:
        pass
    assert {row["id"]: row["name"] for row in made.rows("people")} == {1: "a", 3: "a", 6: "a"}
    with made.writer() as (warehouse, _):
        found = load_state(warehouse).replicasets
    assert [set(one.refused) for _, one in sorted(found.items())] == [set(), {S}]
    assert [(one.tables, one.applied_definitions) for _, one in sorted(found.items())] == [
        ({S: "people"}, {}),
        ({}, {}),
    ]

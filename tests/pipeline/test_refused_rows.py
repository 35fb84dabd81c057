"""The rows of a refused space stay as they were: what they are read by stays too, also after a restart."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from config.policies import Policy
from pipeline.batch import BatchWriter, MakeDistributed
from pipeline.commit.load import load_state
from pipeline.plan.spaces.tables import current_table_plan
from pipeline.requests.rebuild import plan_rebuild
from tests.jobs.written import FIELDS, Node, replicasets_of
from tests.pipeline.deployment import Deployment, contents
from tests.soaked import IS_SOAK, partly_soaked
from warehouse.warehouse import Warehouse

ID, NAME, VALUE, UPDATED = FIELDS
S = 600
COLLATED = [{"field": 1, "type": "string", "collation": 2}]
"""A primary key that is refused."""

Refuse = Callable[[Node], Node]
REFUSALS: Mapping[str, Refuse] = {
    "collation": lambda node: node.rekey_to(S, COLLATED),
    "key type": lambda node: node.rekey_to(S, [{"field": 0, "type": "map"}]),
    "field type": lambda node: node.redefine(S, "people", [ID, NAME, ("value", "hyperreal"), UPDATED]),
    "held": lambda node: node.row(19, S, {}).redefine(S, "people", [ID, UPDATED, VALUE, NAME]),
    "moved fields": lambda node: node.rekey_to(S, COLLATED).redefine(S, "people", [ID, UPDATED, VALUE, NAME]),
}


BECOMING = [*((refusal, True) for refusal in REFUSALS), ("moved fields", False)]
"""Refusals whose space is followed after a restart, and one by the same writer."""

LATER_BECOMING = [(refusal, False) for refusal in REFUSALS if refusal != "moved fields"]


def two(folder: Path, refuse: Refuse) -> tuple[Node, Node, Deployment]:
    """Return two replicasets that have key 1, of which A's version won, and B's space was refused then."""
    a, b = (Node(folder, name).define(S, "people") for name in ("a1", "b1"))
    b.put(S, 1, "b", 20, 2, at=1).put(S, 2, "b", 21, 2, at=1).close()
    a.put(S, 1, "a", 10, 1, at=2)
    made = Deployment.aggregated(folder, a, b)
    refuse(b).put(S, 3, "c", 22, 2, at=3).close()
    return a, b, made


def after(made: Deployment, a: Node, is_restarted: bool, change: Callable[[Node], Node]) -> None:
    """Read what refuses B's space, then A's change, by one writer or by two."""
    with made.writer() as (warehouse, writer):
        made.batch(writer)
        if not is_restarted:
            change(a).close()
            made.batch(writer)
        check_state(warehouse, writer)
    if is_restarted:
        change(a).close()
        run_checked(made)


def check_state(warehouse: Warehouse, writer: BatchWriter) -> None:
    """Check that a start finds the state in which the last batch left its writer, as far as spaces go."""
    loaded = load_state(warehouse)
    for uuid, one in writer.state.replicasets.items():
        other = loaded.replicasets[uuid]
        assert (one.tables, one.refused, one.applied_definitions) == (
            other.tables,
            other.refused,
            other.applied_definitions,
        )


def run_checked(made: Deployment, budget: int | None = None, batches: int | None = None) -> bool:
    """Do batches by one writer, check the state that it has then, and return whether there was any batch."""
    done = 0
    with made.writer() as (warehouse, writer):
        while done != batches and made.batch(writer, budget) is not None:
            done += 1
        check_state(warehouse, writer)
    return done > 0


def typed(made: Deployment, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.get(name) for name in columns) for row in made.rows("people"))


@pytest.mark.parametrize(("refusal", "is_restarted"), partly_soaked(BECOMING, LATER_BECOMING))
def test_a_refused_version_becomes_the_row(tmp_path: Path, refusal: str, is_restarted: bool) -> None:
    a, _, made = two(tmp_path, REFUSALS[refusal])
    assert typed(made, "id", "name") == [(1, "a"), (2, "b")]
    after(made, a, is_restarted, lambda node: node.delete(S, 1, at=4))
    assert typed(made, "id", "name", "value", "updated") == [(1, "b", 20, 2), (2, "b", 21, 2)]
    assert made.rows("_quarantine") == []


@pytest.mark.parametrize(
    "is_restarted", partly_soaked([True], [False]), ids=["after a restart", "one writer"]
)
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_table_that_is_written_again_keeps_refused_rows(
    tmp_path: Path, refusal: str, is_restarted: bool
) -> None:
    a, _, made = two(tmp_path, REFUSALS[refusal])
    renamed = [ID, ("title", "string"), VALUE, UPDATED]
    after(made, a, is_restarted, lambda node: node.redefine(S, "people", renamed))
    rows = [(1, None, "a", 10, 1), (2, "b", None, 21, 2)]
    assert typed(made, "id", "name", "title", "value", "updated") == rows


@pytest.mark.parametrize("is_restarted", [False, True], ids=["one writer", "after a restart"])
def test_a_refused_space_decides_nothing_about_the_key_of_the_others(
    tmp_path: Path, is_restarted: bool
) -> None:
    """A space that was made again has no key in common with the refused one's."""
    a, _, made = two(tmp_path, REFUSALS["collation"])

    def again(node: Node) -> Node:
        node.drop(S).define(S, "people", [NAME, ID, VALUE, UPDATED])
        return node.put(S, "x", 7, 5, 5, at=5)

    after(made, a, is_restarted, again)
    rows = [(1, "b", 20, 2), (2, "b", 21, 2), (7, "x", 5, 5)]
    assert typed(made, "id", "name", "value", "updated") == rows


def test_masks_and_a_rebuild_know_refused_rows(tmp_path: Path) -> None:
    a, _, made = two(tmp_path, REFUSALS["collation"])
    made.run()
    a.put(S, 4, "a", 11, 1, at=4).close()
    made.settings["spaces"] = {"masks": {"people": {"value": "drop"}}}
    made.run()
    assert typed(made, "id", "name", "value") == [(1, "a", None), (2, "b", None), (4, "a", None)]
    with made.writer() as (_, writer):
        table = current_table_plan(writer.state, made.config(), "people")
        assert table is not None
        policy = Policy(policy="max", column="updated")
        found = plan_rebuild(writer.tables, writer.state, made.config(), "people", policy)
        rows = [row for one in found.results for row in one.rows_by_table[0].to_pylist()]
    assert set(table.format_indices) == {1, 2}
    assert [(row["name"], row["updated"]) for row in rows] == [("b", 2)]


def test_a_refused_space_that_is_dropped_leaves_its_table(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(S, "people").put(S, 1, "a", 10, 1)
    made = Deployment.aggregated(tmp_path, node)
    REFUSALS["field type"](node).close()
    made.run()
    assert typed(made, "id") == [(1,)]
    node.drop(S).close()
    run_checked(made)
    assert typed(made, "id") == []


FORMATS = (
    [*FIELDS],
    [*FIELDS, ("more", "string")],
    [ID, ("title", "string"), VALUE, UPDATED, ("more", "string")],
)
"""Formats of a space one after the other: a field is added, one is renamed."""

ENDS = ("stays", "is truncated", "is dropped", "is renamed")
"""How a refused space goes on."""


def history(folder: Path, seed: int, times: int) -> dict[str, Node]:
    """Return two replicasets that write the same keys; B's space is refused, and may be followed again."""
    dice, nodes = random.Random(seed), {}
    for name in ("a1", "b1"):
        node = nodes[name] = Node(folder / "logs", name).define(S, "people")
        node.is_apart = True
        changes: list[Callable[[], object]] = [
            partial(node.redefine, S, "people", fields) for fields in FORMATS[1:]
        ]
        if name == "b1":
            refuse = dice.choice(sorted(REFUSALS.items()))[1]
            changes = [changes[0], partial(refuse, node), partial(end, node, ENDS[seed % len(ENDS)])]
        for time in range(times):
            key = dice.randrange(5)
            if dice.random() < 0.3:
                node.delete(S, key, at=time + dice.random())
            else:
                node.put(S, key, name, time, seed, at=time + dice.random())
            if (time + 1) % (times // 3) == 0 and changes:
                changes.pop(0)()
        node.close()
    return nodes


def end(node: Node, how: str) -> None:
    """Let a refused space go on in one of some ways; it is followed again where it is sound and empty."""
    if how == "is truncated":
        node.rekey(S, (0, "unsigned")).redefine(S, "people", FORMATS[1]).truncate(S)
    elif how == "is dropped":
        node.drop(S).define(S, "people", FORMATS[1])
    elif how == "is renamed":
        node.redefine(S, "folk", FORMATS[1])


def rows_and_definitions(made: Deployment) -> tuple[dict[str, Counter[str]], dict[str, tuple[Any, ...]]]:
    """Return the rows of the tables of spaces, and each space's name, state and definition of refused rows."""
    rows = {name: found for name, found in contents(made).items() if not name.startswith("_")}
    newest = {}
    for row in sorted(made.rows("_schema"), key=lambda row: int(row["epoch"])):
        state = row["state"].split(", ")[0]
        newest[f"{row['replicaset_id']} {row['space_id']}"] = (row["name"], state, row["followed"])
    assert made.rows("_quarantine") == []
    return rows, newest


@pytest.mark.parametrize("times", partly_soaked([6], [12, 20]))
@pytest.mark.parametrize("seed", range(len(ENDS)))
def test_however_the_log_is_cut_and_whoever_starts(
    tmp_path: Path, executor: MakeDistributed | None, seed: int, times: int
) -> None:
    nodes = history(tmp_path, seed, times)
    sources, found = {name: node.path for name, node in nodes.items()}, []
    # Writers of three batches each cut it too; a soak cuts it in a single one as well.
    ways: list[tuple[str, int | None]] = [("whole", None), ("started", 1), *([("cut", 1)] if IS_SOAK else [])]
    for name, budget in ways:
        made = Deployment(tmp_path / name, sources, replicasets_of("a1", "b1"), executor)
        while run_checked(made, budget, 3 if name == "started" else None):
            pass
        found.append(rows_and_definitions(made))
    assert all(one == found[0] for one in found)
    assert any(rows for rows in found[0][0].values())

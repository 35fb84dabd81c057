"""`aggregator plan` predicts what the next run does, and writes nothing; docs/checks.md lists its names."""

import ast
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from config.deployment import Config
from jobs import plan
from observe import planned_changes as planned_changes_module
from observe.planned_changes import (
    SIGN_AND_MEANING,
    ChangeSign,
    NextRunChange,
    json_differences,
    planned_changes,
)
from pipeline.commit.load import load_state
from pipeline.preview import preview_next_run
from pipeline.start import apply_masks
from pipeline.state import State
from schemas.tables import SYSTEM_TABLES
from sources.xlog.directory.offset import to_text
from tests.jobs.written import Node
from tests.observe.files import files
from tests.pipeline.deployment import Deployment
from tests.soaked import partly_soaked
from tests.truth import OWN_ROOT
from warehouse.delta.location import location_of
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.warehouse import Warehouse

A, B = OWN_ROOT / "2.6.0" / "a1", OWN_ROOT / "2.6.0" / "b1"
B_UUID = "b0000000-0000-4000-8000-000000000000"
BUDGET = 30_000
"""Bytes of logs that a batch reads, so that a recording takes several batches."""


def columns_by_table(config: Config) -> dict[str, tuple[str, ...]]:
    location = location_of(config.warehouse, config.database)
    opened = {name: location.open(name) for name in location.tables()}
    return {
        name: tuple(f.name for f in one.schema().fields) for name, one in opened.items() if one is not None
    }


def with_checkpoint(one: Deployment) -> None:
    """Write a checkpoint with the end of the last batch, in Spark's format."""
    checkpoint = one.folder / "checkpoint"
    for name, text in (
        ("offsets", f"v1\n{{}}\n{to_text(one.offset)}"),
        ("commits", 'v1\n{"nextBatchWatermarkMs":0}'),
    ):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
        (checkpoint / name / "0").write_text(text)


def state_of(config: Config) -> State:
    warehouse = Warehouse(None, config.warehouse, config.database)
    return load_state(warehouse) if warehouse.exists(EPOCHS) else State()


@dataclass
class Case:
    """A finished run, and the configuration of the next run with the expected names of changes."""

    before: dict[str, Path] = field(default_factory=dict)
    batches: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    has_checkpoint: bool = True
    expected: frozenset[str] = frozenset()


CASES = {
    "a first run": Case(expected=frozenset({"own_tables_made", "replicaset_new", "space_new", "table_made"})),
    "the rest of the logs": Case(
        {"a1": A, "b1": B}, 2, expected=frozenset({"continues", "space_new", "table_made"})
    ),
    "a lost checkpoint": Case({"a1": A, "b1": B}, 6, has_checkpoint=False, expected=frozenset({"continues"})),
    "nothing new": Case({"a1": A, "b1": B}),
    "a new source": Case({"a1": A}, expected=frozenset({"source_new", "replicaset_new", "instance_new"})),
    "a mask": Case(
        {"a1": A, "b1": B},
        settings={"spaces": {"masks": {"accounts": {"email": "drop"}}}},
        expected=frozenset({"mask_changed", "table_masked", "table_made"}),
    ),
    "a policy": Case(
        {"a1": A, "b1": B},
        settings={"policies": {"default": {"policy": "first_write_wins"}}},
        expected=frozenset({"policy_changed"}),
    ),
    "misspelt names": Case(
        settings={
            "policies": {"spaces": {"acounts": {"policy": "max", "column": "balance"}}},
            "spaces": {"masks": {"acc*": {"email": "drop"}, "people_*": {"email": "drop"}}},
        },
        expected=frozenset({"setting_unused"}),
    ),
    "a smaller selection": Case(
        {"a1": A, "b1": B},
        6,
        {"spaces": {"exclude": ["big", "types"]}},
        expected=frozenset({"setting_changed"}),
    ),
}


SOAKED = [("a first run", BUDGET), ("a new source", None), ("nothing new", None)]
"""Other cases find the same: a first run in one batch, a new source in several, a policy with nothing new."""

RUNS = [*((name, None) for name in CASES), ("a new source", BUDGET)]


@pytest.mark.parametrize(
    ("name", "budget"), partly_soaked([run for run in RUNS if run not in SOAKED], SOAKED)
)
def test_a_run_does_what_the_plan_says(tmp_path: Path, name: str, budget: int | None) -> None:
    case = CASES[name]
    if case.before:
        first = Deployment(tmp_path, case.before)
        # A run to the end is one batch: what it leaves is the same.
        first.run(BUDGET if case.batches else None, case.batches)
        if case.has_checkpoint:
            with_checkpoint(first)
    one = Deployment(tmp_path, {"a1": A, "b1": B}, **case.settings)
    if case.before and case.has_checkpoint:
        one.offset = first.offset
    config = one.config()
    old_tables, before = columns_by_table(config), files(tmp_path)

    preview = preview_next_run(config)
    changes = planned_changes(config, preview)

    assert files(tmp_path) == before
    assert case.expected <= {change.name for change in changes}
    start_and_run(one, budget)
    new_tables, after = columns_by_table(config), state_of(config)
    new = subjects(changes, "table_made") | set(preview.missing_system_tables)
    possible = set() if budget is None else subjects(changes, "table_possible")
    assert new <= new_tables.keys() - old_tables.keys() <= new | possible
    assert old_tables.keys() - new_tables.keys() == subjects(changes, "table_removed")
    both = old_tables.keys() & new_tables.keys()
    wider = {table for table in both if set(new_tables[table]) - set(old_tables[table])}
    rewritten = subjects(changes, "table_rewritten") | subjects(changes, "table_masked")
    assert wider <= subjects(changes, "columns_added") | rewritten
    if preview.plan is not None:
        planned = preview.plan.after
        assert ids_of_servers(planned) == ids_of_servers(after)
        assert {u: (dict(r.tables), dict(r.refused)) for u, r in planned.replicasets.items()} == {
            u: (dict(r.tables), dict(r.refused)) for u, r in after.replicasets.items()
        }


def start_and_run(one: Deployment, budget: int | None) -> None:
    config = one.config()
    with one.writer() as (warehouse, writer):
        apply_masks(warehouse, config, writer.state)
    one.run(budget)


def subjects(changes: list[NextRunChange], name: str) -> set[str]:
    return {change.subject for change in changes if change.name == name}


def ids_of_servers(state: State) -> dict[str, int]:
    """Return the global ids of servers, without the aggregator's, whose uuid is random."""
    return {uuid: number for uuid, number in state.global_ids.items() if number != state.aggregator_id}


def test_without_new_rows_the_plan_is_empty(tmp_path: Path) -> None:
    one = Deployment(tmp_path, {"a1": A, "b1": B})
    one.run()
    with_checkpoint(one)
    changes = planned_changes(one.config(), preview_next_run(one.config()))
    assert {change.sign for change in changes} == {ChangeSign.SAME}


def test_a_gap_and_a_lost_source_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs = tmp_path / "a1"
    shutil.copytree(A, logs)
    sorted(logs.glob("*.xlog"))[2].unlink()
    config = Deployment(tmp_path, {"a1": logs, "b1": tmp_path / "none"}).config()
    names = {
        change.name
        for change in planned_changes(config, preview_next_run(config))
        if change.sign is ChangeSign.REFUSED
    }
    assert names - {"values_left_out"} == {"gap_found", "rows_wait", "source_not_followed"}
    assert "is not followed" not in caplog.text  # a line of the plan says it


def test_the_plan_and_the_run_refuse_contradicting_spaces(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"spaces": {"rename": {"accounts": "types"}}}
    one = Deployment(tmp_path, {"a1": A, "b1": B}, **settings)
    changes = planned_changes(one.config(), preview_next_run(one.config()))
    one.run()
    refused = [r.refused for r in state_of(one.config()).replicasets.values()]
    assert subjects(changes, "space_refused") == {"types"}
    assert all(refused)


def test_what_is_left_out_is_named_before_the_run_and_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(tmp_path, "a1").define(600, "people").define(601, "strict")
    node.put(600, 1, "fine", 1, 1).put(600, 2, "\udcff", 1, 1).put(600, 3, "x", 2**63, 1)
    node.define(602, "wide", [("id", "unsigned"), *((f"f{number}", "string") for number in range(13))])
    node.put(601, 1, "\udcff", 1, 1).put(602, 1, *["\udcff"] * 13).close()
    settings: dict[str, Any] = {"spaces": {"misfits": {"strict": "quarantine"}}}
    one = Deployment.of(tmp_path, node, **settings)
    text = "; `spaces.strings: {strict: binary}` keeps its bytes"
    wide = ": field f0: the string is not UTF-8; `spaces.strings: {wide: binary}` keeps its bytes; 12 more columns"
    assert plan.show(one.config(), "shop.yaml", is_json=False) == 1
    said = capsys.readouterr().out
    assert "! people  2 new rows have a value that its column cannot hold, so it is NULL there: field" in said
    assert (
        "! strict  1 new row has a value that its column cannot hold, so the row is set aside: field" in said
    )
    assert text in said
    assert wide in said
    one.run()
    with_checkpoint(one)
    assert plan.show(one.config(), "shop.yaml", is_json=False) == 1
    said = capsys.readouterr().out
    assert "new row" not in said
    assert "! table people  2 rows have a NULL for a value that its column cannot hold: field" in said
    assert "! space strict  1 key or row is in no table, such as: field" in said
    assert text in said
    assert wide in said


def test_differences_are_named_by_their_path() -> None:
    old, new = {"a": {"b": 1, "c": [1]}}, {"a": {"b": 2, "c": [1], "d": None, "e": 3}}
    assert list(json_differences(old, new, "x")) == [("x.a.b", 1, 2), ("x.a.e", None, 3)]


def test_own_tables_are_those_of_the_schema(tmp_path: Path) -> None:
    config = Deployment(tmp_path, {"a1": A}).config()
    assert set(preview_next_run(config).missing_system_tables) == set(SYSTEM_TABLES)


def test_names_that_no_space_matches_are_shown_with_the_closest_one(tmp_path: Path) -> None:
    one = Deployment(tmp_path, {"a1": A, "b1": B}, **CASES["misspelt names"].settings)
    changes = planned_changes(one.config(), preview_next_run(one.config()))
    assert {change.subject: change.text for change in changes if change.name == "setting_unused"} == {
        "policies.spaces.acounts": "is of no space that is known; did you mean accounts?",
        "spaces.masks: people_*": "is of no space that is known",
    }


def names_in_code() -> set[str]:
    """Return the names that are passed to `NextRunChange`, but for those that it gets in a variable."""
    calls = [
        node
        for node in ast.walk(ast.parse(Path(planned_changes_module.__file__).read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "NextRunChange"
    ]
    return {str(node.args[0].value) for node in calls if isinstance(node.args[0], ast.Constant)}


def test_each_name_has_a_sign_and_a_meaning() -> None:
    tables = planned_changes_module._LINE_BY_TABLE_CHANGE, planned_changes_module._LINE_BY_VECTORS
    in_tables = {name for lines in tables for name, _ in lines.values()}
    in_variables = {"policy_changed", "mask_changed", "setting_changed", "table_changed", "table_lost"}
    in_variables |= set(planned_changes_module._PROBLEMS)
    assert names_in_code() | in_tables | in_variables == SIGN_AND_MEANING.keys()

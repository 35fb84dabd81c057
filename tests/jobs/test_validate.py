"""Validation: sound tables pass, each kind of damage is found by name, index conflicts are reported once."""

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.validate import validate
from observe.validation.checks import CheckedTables, check_facts, checks, tables_of_spaces
from observe.validation.secondary_keys import unique_indexes
from observe.validation.spaces import columns_check, space_tables, spaces_check
from observe.validation.validator import Validator
from pipeline.commit.load import load_state
from schemas.errors import ConfigurationError
from tests.jobs.deployment import Deployment
from tests.jobs.written import Node
from warehouse.warehouse import Warehouse

# Great Expectations calls what its own dependencies have deprecated.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

USERS = 600


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Yield two replicasets where users 1 and 2 have equal names, and user 7 exists on one side only."""
    folder = tmp_path_factory.mktemp("validated")
    a, b = Node(folder, "a1"), Node(folder, "b1")
    for node in (a, b):
        node.define(USERS, "users", unique=[[(1, "string")], [(2, "integer"), (3, "unsigned")]])
    a.put(USERS, 1, "ann", 1, 1, at=1).put(USERS, 3, "carl", 3, 1, at=1).put(USERS, 7, None, None, 9, at=1)
    b.put(USERS, 2, "ann", 2, 1, at=2).put(USERS, 4, "dora", 4, 1, at=1).put(USERS, 8, None, None, 9, at=1)
    for number, node in enumerate((a, b), start=1):
        node.define(USERS + 1, "made", unique=[[(1, "string")]], function=66)
        node.put(USERS + 1, number, "the function's keys differ", 1, 1).close()
    made = Deployment.of(folder, a, b)
    made.write()
    return made


@pytest.mark.usefixtures("spark")
def test_rows_that_break_a_unique_index_together_are_reported_once(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate(deployment.config(), "aggregator.yaml") == 1
    printed = capsys.readouterr().out
    assert "users.i1: two rows with one key" in printed
    assert "not checked: the unique index made.i1: a Lua function computes its keys" in printed
    (row,) = [row for row in deployment.rows("_conflicts") if row["kind"] == "secondary"]
    held = {one["_replicaset_id"]: one for one in deployment.table("users").values() if one["_lsn"] == 6}
    later, earlier = held[2], held[1]
    assert (row["space"], row["sequence"], row["key"]) == ("users", "i1", earlier["_key"])
    assert (row["winner_tuple"], row["loser_tuple"]) == (later["_tuple"], earlier["_tuple"])
    assert (row["winner_timestamp"], row["loser_timestamp"]) == (later["_timestamp"], earlier["_timestamp"])
    assert (row["winner_replicaset_id"], row["loser_replicaset_id"]) == (2, 1)
    first = {row["run"] for row in deployment.rows("_validations")}
    assert validate(deployment.config(), "aggregator.yaml") == 0
    assert "FAILED" not in capsys.readouterr().out
    results = [row for row in deployment.rows("_validations") if row["run"] not in first]
    assert {row["table"] for row in results} > {"_cluster", "_changelog", "_epochs", "users", "made"}
    assert all(row["holds"] and not row["unexpected"] for row in results)


def test_only_unique_secondary_indexes_count(spark: SparkSession, deployment: Deployment) -> None:
    state = load_state(deployment.opened(spark))
    found = unique_indexes(state)
    assert [(one.table, one.name, len(one.space_by_replicaset)) for one in found] == [
        ("made", "i1", 2),
        ("users", "i1", 2),
        ("users", "i2", 2),
    ]


def test_a_space_that_has_no_table_is_refused(spark: SparkSession, deployment: Deployment) -> None:
    state = load_state(deployment.opened(spark))
    assert tables_of_spaces(state, deployment.config(), ["users"]) == ["users"]
    with pytest.raises(ConfigurationError, match="no table of other"):
        tables_of_spaces(state, deployment.config(), ["users", "other"])


def twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows])


def having(column: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    def damage(rows: pa.Table) -> pa.Table:
        index = rows.schema.get_field_index(column)
        values = pa.array([value] * rows.num_rows, rows.schema.field(index).type)
        return rows.set_column(index, column, values)

    return damage


def with_row(column: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Return a function that adds a row, for tables that may have none to damage."""
    return lambda rows: pa.concat_tables([rows, pa.Table.from_pylist([{column: value}], rows.schema)])


DAMAGED: dict[str, Callable[[pa.Table], pa.Table]] = {
    "_cluster": twice,
    "_applier_map": having("global_id", 77),
    "_vclock": having("global_id", 77),
    "_epochs": twice,
    "_conflicts": with_row("loser_global_id", 77),
    "_schema": having("name", None),
    "_changelog": having("missing", 1),
    "_schema_columns": having("found_type", "string"),
    "users": twice,
}
"""By check what damages the rows that it looks at."""


def test_each_kind_of_damage_fails_its_own_check(deployment: Deployment) -> None:
    config = deployment.config()
    warehouse = Warehouse(None, config.warehouse, config.database)
    state = load_state(warehouse)
    open_table = CheckedTables(warehouse, state)
    facts = check_facts(open_table, state, config, datetime.now(UTC))
    sound = {one.name: one for one in checks(open_table, state, facts, ["users"], {})}
    location = warehouse.open_tables.location
    tables = space_tables(location, state, config, ["users"])
    sound["_schema_columns"] = columns_check(tables)
    sound["users"] = spaces_check(location, tables, facts, lambda: warehouse.session).check_of(["users"])
    validator = Validator()
    for name, damage in DAMAGED.items():
        check = sound[name]
        assert isinstance(check.rows, pa.Table)
        bad = replace(check, rows=damage(check.rows))
        assert not all(one.holds for one in validator.run_check(bad)), name


def test_an_empty_warehouse_is_not_validated(spark: SparkSession, tmp_path: Path) -> None:  # noqa: ARG001
    (tmp_path / "a1").mkdir()
    empty = Deployment(tmp_path, {"a1": tmp_path / "a1"})
    with pytest.raises(Exception, match="there are no tables yet"):
        validate(empty.config(), "aggregator.yaml")


def test_without_its_library_the_extra_is_named(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "great_expectations", None)
    with pytest.raises(ConfigurationError, match="Great Expectations is not installed") as refused:
        validate(deployment.config(), "none.yaml")
    assert "tarantool-aggregator[validation]" in refused.value.fields["advice"]

"""Validation: sound tables pass, each kind of damage is found by its name, broken unique indexes are reported once."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.batch.load import load_state
from jobs.expectations import Check, agreements, space_check, system_checks, verdicts
from jobs.secondary import indexes_of
from jobs.validate import cut_of, tables_of, validate
from schemas.errors import ConfigurationError
from tables.warehouse import Warehouse
from tests.jobs.deployment import Deployment
from tests.jobs.written import Node, replicasets_of

# Great Expectations calls what its own dependencies have deprecated.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

USERS = 600


def options(*spaces: str) -> argparse.Namespace:
    return argparse.Namespace(space=list(spaces) or None)


@pytest.fixture(scope="module")
def deployment(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Deployment:  # noqa: ARG001
    """Yield two replicasets whose users 1 and 2, and 7 of one alone, have one name."""
    folder = tmp_path_factory.mktemp("validated")
    a, b = Node(folder, "a1"), Node(folder, "b1")
    for node in (a, b):
        node.define(USERS, "users", unique=[[(1, "string")], [(2, "integer"), (3, "unsigned")]])
    a.put(USERS, 1, "ann", 1, 1, at=1).put(USERS, 3, "carl", 3, 1, at=1).put(USERS, 7, None, None, 9, at=1)
    b.put(USERS, 2, "ann", 2, 1, at=2).put(USERS, 4, "dora", 4, 1, at=1).put(USERS, 8, None, None, 9, at=1)
    for node in (a, b):
        node.close()
    made = Deployment(folder, {"a1": a.path, "b1": b.path}, replicasets_of("a1", "b1"))
    made.run()
    return made


def opened(spark: SparkSession, deployment: Deployment) -> Warehouse:
    config = deployment.config()
    return Warehouse(spark, config.warehouse, config.database)


def test_rows_that_break_a_unique_index_together_are_reported_once(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate(deployment.config(), options()) == 1
    assert "users.i1: two rows with one key" in capsys.readouterr().out
    (row,) = [row for row in deployment.rows("_conflicts") if row["kind"] == "secondary"]
    held = {one["_replicaset_id"]: one for one in deployment.table("users").values() if one["_lsn"] == 6}
    later, earlier = held[2], held[1]
    assert (row["space"], row["sequence"], row["key"]) == ("users", "i1", earlier["_key"])
    assert (row["winner_tuple"], row["loser_tuple"]) == (later["_tuple"], earlier["_tuple"])
    assert (row["winner_timestamp"], row["loser_timestamp"]) == (later["_timestamp"], earlier["_timestamp"])
    assert (row["winner_replicaset_id"], row["loser_replicaset_id"]) == (2, 1)
    assert validate(deployment.config(), options()) == 0
    assert "2 unique secondary indexes, 0 new conflicts" in capsys.readouterr().out


def test_only_unique_secondary_indexes_count(spark: SparkSession, deployment: Deployment) -> None:
    state = load_state(opened(spark, deployment))
    found = indexes_of(state, deployment.config())
    assert [(one.table, one.name, len(one.spaces)) for one in found] == [
        ("users", "i1", 2),
        ("users", "i2", 2),
    ]


def test_a_space_that_has_no_table_is_refused(spark: SparkSession, deployment: Deployment) -> None:
    state = load_state(opened(spark, deployment))
    assert tables_of(state, deployment.config(), ["users"]) == ["users"]
    with pytest.raises(ConfigurationError, match="no table of other"):
        tables_of(state, deployment.config(), ["users", "other"])


DAMAGED = {
    "_cluster": "SELECT * FROM {rows} UNION ALL SELECT * FROM {rows}",
    "_changelog": "SELECT * FROM {rows} UNION ALL SELECT * FROM {rows} WHERE lsn = 5",
    "_epochs": "SELECT * FROM {rows} UNION ALL SELECT * FROM {rows}",
    "_versions": "SELECT 'lost' AS state, 'x' AS key",
    "users": "SELECT * FROM {rows} UNION ALL SELECT * FROM {rows}",
}
"""By table a query that damages it."""


def test_each_kind_of_damage_fails_its_own_check(spark: SparkSession, deployment: Deployment) -> None:
    cut = cut_of(opened(spark, deployment), load_state(opened(spark, deployment)))
    sound = {check.name: check for check in [*system_checks(cut), space_check(cut, "users")]}
    for name, sql in DAMAGED.items():
        check = sound[name]
        bad = spark.sql(sql, rows=check.rows)
        assert all(one.holds for one in verdicts(check)), name
        assert not all(one.holds for one in verdicts(Check(name, bad, check.expectations))), name


@pytest.mark.parametrize(
    ("table", "sql", "fails"),
    [
        ("_vclock", "SELECT replicaset_id, global_id, local_id, lsn - 1 AS lsn, epoch FROM {rows}", 0),
        ("_changelog", "SELECT * FROM {rows} WHERE lsn <> 5", 1),
        ("_epochs", "SELECT * FROM {rows} UNION ALL SELECT 9 AS epoch, * EXCEPT (epoch) FROM {rows}", 2),
    ],
)
def test_tables_that_disagree_are_found(
    spark: SparkSession, deployment: Deployment, table: str, sql: str, fails: int
) -> None:
    cut = cut_of(opened(spark, deployment), load_state(opened(spark, deployment)))
    assert [one.holds for one in agreements(cut)] == [True] * 3

    def changed(name: str):  # type: ignore[no-untyped-def]
        if name != table:
            return cut(name)
        columns = cut(name).columns
        return spark.sql(sql, rows=cut(name)).select(*columns)

    assert [one.holds for one in agreements(changed)].index(False) == fails


def test_nothing_is_asked_of_an_empty_warehouse(spark: SparkSession, tmp_path: Path) -> None:  # noqa: ARG001
    (tmp_path / "a1").mkdir()
    empty = Deployment(tmp_path, {"a1": tmp_path / "a1"})
    with pytest.raises(Exception, match="there are no tables yet"):
        validate(empty.config(), options())

"""Validation of real Delta tables: each seeded fault fails its own expectation, and no other expectation fails."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.validate import validate
from pipeline.commit.epoch import commit_epoch
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

SPACES = {600: "doubled", 601: "retyped", 602: "strangers", 603: "unlike", 604: "ahead", 605: "nulls"}
OWN = """
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: value, max_value: 20}, description: value is small}
"""


def options(
    deployment: Deployment, *spaces: str, docs: Path | None = None
) -> tuple[str, tuple[str, ...], str | None]:
    file = deployment.folder / "aggregator.yaml"
    return str(file), spaces, None if docs is None else str(docs)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Return tables of two replicasets, each with a key that both have written."""
    folder = tmp_path_factory.mktemp("faults")
    a, b = Node(folder, "a1"), Node(folder, "b1")
    for space, name in SPACES.items():
        a.define(space, name).put(space, 1, "a", 10, 1, at=10).put(space, 2, "b", 11, 1, at=11)
        b.define(space, name).put(space, 2, "c", 12, 1, at=12).put(space, 3, "d", 13, 1, {"more": [1]}, at=13)
    # Values that their columns cannot hold, even in a key, are no fault.
    a.define(606, "odd", [("id", "string"), ("value", "integer")]).put(606, "\udcff", 2**63).put(606, "x", 1)
    a.close()
    b.close()
    deployment = Deployment.of(folder, a, b)
    deployment.write()
    return deployment


@pytest.mark.soak
@pytest.mark.usefixtures("spark")
def test_all_expectations_hold_in_undamaged_tables(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate(deployment.config(), *options(deployment)) == 0
    assert "FAILED" not in capsys.readouterr().out
    results = deployment.rows("_validations")
    assert {row["table"] for row in results} > {"_cluster", "_changelog", "_epochs", *SPACES.values()}
    assert all(row["holds"] and not row["unexpected"] for row in results)


def with_value(rows: pa.Table, column: str, value: Any) -> pa.Table:
    field = rows.schema.field(column)
    return rows.set_column(rows.schema.names.index(column), field, pa.array([value] * len(rows), field.type))


def seed(warehouse: Warehouse) -> None:
    """Damage each table in another way, with plain Delta, and commit an epoch with the new versions."""

    def rows(table: str, column: str, value: int) -> pa.Table:
        found = warehouse.opened(table).to_pyarrow_table()
        return found.take([place for place, one in enumerate(found[column].to_pylist()) if one == value])

    write_deltalake(warehouse.path("doubled"), rows("doubled", "id", 1), mode="append")
    retyped = warehouse.opened("retyped").to_pyarrow_table()
    place = retyped.schema.names.index("value")
    retyped = retyped.set_column(place, "value", retyped["value"].cast(pa.string()))
    write_deltalake(warehouse.path("retyped"), retyped, mode="overwrite", schema_mode="overwrite")
    future = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    for table, column, value, key in (
        ("strangers", "_global_id", "99", 1),
        ("unlike", "name", "'x'", 2),
        ("ahead", "_timestamp", f"TIMESTAMP '{future}'", 3),
        ("nulls", "_replicaset_id", "NULL", 1),
    ):
        DeltaTable(warehouse.path(table)).update(updates={column: value}, predicate=f"id = {key}")
    copy = rows("_cluster", "replicaset_id", 1)
    for column, number in {"global_id": 50, "local_id": None, "lsn": 0}.items():
        copy = with_value(copy, column, number)
    write_deltalake(warehouse.path("_cluster"), copy, mode="append")
    DeltaTable(warehouse.path("_changelog")).delete("replicaset_id = 1 AND lsn IN (4, 8)")
    state = load_state(warehouse)
    tables = warehouse.open_tables
    versions = {name: tables.open(name).version() for name in ("_changelog", *SPACES.values())}
    commit_epoch(tables, state, versions, ("seeded", 0))


FOUND = {
    ("doubled", "no two rows have one primary key"): "fails in 2 of 4 rows, such as key [1]; key [1]",
    (
        "_schema_columns",
        "each column has the type of its field in the newest definition",
    ): "table retyped, column value, expected_type bigint, found_type string",
    ("strangers", "_global_id is known in _cluster"): "fails in 1 of 3 rows, such as key [1], global_id 99",
    (
        "unlike",
        "typed columns say what _tuple says",
    ): "fails in 1 of 3 rows, such as key [2], differing_columns name",
    ("nulls", "_replicaset_id is never null"): "fails in 1 of 3 rows, such as key [1]",
}
"""For some of the found faults, by (table, expectation), a part of the printed message."""


@pytest.fixture(scope="module")
def seeded(deployment: Deployment) -> Deployment:
    config = deployment.config()
    seed(Warehouse(None, config.warehouse, config.database))
    return deployment


def test_only_the_seeded_faults_are_found(
    seeded: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = tmp_path / "docs"
    assert validate(seeded.config(), *options(seeded, docs=docs)) == 1
    printed = capsys.readouterr().out
    run = max(seeded.rows("_validations"), key=lambda row: row["validated_at"])["run"]
    results = [row for row in seeded.rows("_validations") if row["run"] == run]
    failed = {
        (row["table"], row["expectation"].partition(" (after")[0]): row for row in results if not row["holds"]
    }
    changed = ("_cluster", "it is as the newest epoch names it")
    missing = "no lsn is missing between the first row of an origin and its settled vclock but those in _gaps"
    assert {*failed} == {
        *FOUND,
        ("ahead", "_timestamp is not of the future"),
        ("_changelog", missing),
        ("_cluster", "no uuid has two global ids"),
        changed,
    }
    for key, message in FOUND.items():
        assert message in printed, key
    holes = json.loads(failed["_changelog", missing]["examples"])
    assert holes == ["replicaset 1, replica id 1: lsns 4 to 4", "replicaset 1, replica id 1: lsns 8 to 8"]
    assert [key for key, row in failed.items() if row["error"] is not None] == [changed]
    assert (
        "no two rows have one primary key"
        in (docs / "index.html").parent.joinpath("expectations", "doubled.html").read_text()
    )


@pytest.mark.usefixtures("spark")
def test_expectations_of_the_user_are_checked_too(
    seeded: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = seeded.folder / "expectations"
    folder.mkdir()
    (folder / "ahead.yaml").write_text(OWN.replace("20", "12"))
    try:
        assert validate(seeded.config(), *options(seeded, "ahead")) == 1
        printed = capsys.readouterr().out
        assert "FAILED ahead: value is small: fails in 1 of 3 rows, such as key [3], value 13" in printed
        assert f"({folder / 'ahead.yaml'})" in printed
    finally:
        (folder / "ahead.yaml").unlink()
        folder.rmdir()


def test_a_wrong_suite_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("Spark was started")

    started: Callable[..., Any] = never
    monkeypatch.setattr("jobs.validate.log_reading_session", started)
    (tmp_path / "absent.yaml").write_text(OWN)
    deployment = Deployment(tmp_path, {"a1": tmp_path})
    config = deployment.config(validation={"expectations": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="there is no table absent"):
        validate(config, *options(deployment))
    config = deployment.config(validation={"expectations": str(tmp_path / "nowhere")})
    with pytest.raises(ConfigurationError, match="there is no folder"):
        validate(config, *options(deployment))

"""The views in a real session, and the tables in readers without Spark."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.views import views
from observe.sql_views import view_statements
from schemas.errors import ConfigurationError, WarehouseError
from schemas.tables import SYSTEM_TABLES
from tests.jobs.deployment import Deployment
from tests.jobs.written import Node, replicasets_of
from warehouse.delta import write
from warehouse.delta.location import location_of
from warehouse.views import literal, quoted

USERS = 600


def test_names_and_texts_are_escaped() -> None:
    assert quoted("a`b") == "`a``b`"
    assert literal("it's a \\ path") == "'it\\'s a \\\\ path'"


def test_before_the_first_batch_there_is_nothing_to_see(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match="no batch is done yet"):
        list(view_statements(Deployment(tmp_path, {"a1": tmp_path}).config(), []))


def test_an_epoch_older_than_maintenance_keeps_is_refused(tmp_path: Path) -> None:
    config = Deployment(tmp_path, {"a1": tmp_path}).config()
    location, now = location_of(config.warehouse, config.database), datetime.now(UTC)
    epochs = [
        {"epoch": number, "committed_at": now - timedelta(days=days), "versions": [("users", number)]}
        for number, days in enumerate((40, 10, 1))
    ]
    asked = {"request": "1", "kind": "maintenance", "arguments": '{"keep_days": 7}', "changed_at": now}
    for table, rows in {"_epochs": epochs, "_requests": [{**asked, "state": "done"}]}.items():
        write.create(location, table, SYSTEM_TABLES[table])
        write.append(location, table, write.arrow_rows(table, rows))
    with pytest.raises(
        ConfigurationError, match=r"epoch 0 may have lost files.*ask for epoch 1 or a later one"
    ):
        list(view_statements(config, [0, 1]))
    assert any(f"`{config.database}_epoch_1`.`users`" in one for one in view_statements(config, [1]))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Return tables of two epochs; A wrote key 1, and key 3 was written by A and then by B."""
    folder = tmp_path_factory.mktemp("views")
    a, b = (Node(folder, name).define(USERS, "users") for name in ("a1", "b1"))
    a.put(USERS, 1, "a", 1, 1, at=10).put(USERS, 3, "a", 1, 1, at=11).close()
    made = Deployment.of(folder, a, b)
    b.close()
    made.write()
    b.put(USERS, 3, "b", 1, 1, at=20).close()
    made.write()
    return made


def test_a_statement_gets_what_it_names(deployment: Deployment) -> None:
    config, name = deployment.config(), deployment.database

    def made_for(statement: str) -> list[str]:
        statements = view_statements(config, [], words=set(statement.split()))
        return [one.split()[-1 if "DATABASE" in one else 4] for one in statements if "`." in one]

    assert made_for("SELECT 1") == []
    assert len(made_for("SELECT id FROM users")) == 1
    (table,) = (one for one in view_statements(config, [], words={"users"}) if one.startswith("CREATE TABLE"))
    assert f"`{name}`.`users`" in table
    cut = [
        one
        for one in view_statements(config, [], words={"users", f"{name}_epoch_1"})
        if "VERSION AS OF" in one
    ]
    assert len(cut) == 1
    everything = list(view_statements(config, []))
    written = [one for one in view_statements(config, [], words={"who_wrote"}) if one in everything]
    assert any("who_wrote" in one for one in written)
    assert not any("VERSION AS OF" in one for one in written)


def registered(
    spark: SparkSession, deployment: Deployment, *epochs: int, words: set[str] | None = None
) -> str:
    for statement in view_statements(deployment.config(), list(epochs), words=words):
        spark.sql(statement)
    return deployment.database


@pytest.mark.spark
def test_who_wrote_each_row(spark: SparkSession, deployment: Deployment) -> None:
    database = registered(spark, deployment, words={"who_wrote"})
    rows = spark.table(f"{database}_views.who_wrote").orderBy("key").collect()
    ids = replicasets_of("a1", "b1")
    assert [(row.space, row.replicaset, row.replicaset_uuid) for row in rows] == [
        ("users", "a1", ids["a1"]),
        ("users", "b1", ids["b1"]),
    ]
    instances = {row["global_id"]: row["uuid"] for row in deployment.rows("_cluster")}
    assert [row.origin for row in rows] == [instances[row.global_id] for row in rows]
    assert {row.origin[0] for row in rows} == {"a", "b"}
    held = deployment.table("users")
    assert {bytes(row.key): row.lsn for row in rows} == {key: row["_lsn"] for key, row in held.items()}


@pytest.mark.soak
@pytest.mark.spark
def test_each_epoch_is_its_own_snapshot(spark: SparkSession, deployment: Deployment) -> None:
    database = registered(spark, deployment, 0)
    newest = max(row["epoch"] for row in deployment.rows("_epochs"))
    assert newest == 1
    for epoch, names, conflicts in ((0, ["a", "a"], 0), (1, ["a", "b"], 1)):
        cut = f"{database}_epoch_{epoch}"
        users = spark.table(f"{cut}.users").orderBy("id").collect()
        assert [row.name for row in users] == names
        assert spark.table(f"{cut}._conflicts").count() == conflicts
        assert spark.sql(f"SELECT max(epoch) FROM {cut}._changelog").collect()[0][0] == epoch


@pytest.mark.spark
def test_the_command_prints_what_a_session_runs(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    views(deployment.config())
    printed = capsys.readouterr().out
    assert printed.count(";\n") == len(list(view_statements(deployment.config(), [])))
    with pytest.raises(ConfigurationError, match="there is no epoch 99; the newest is 1"):
        list(view_statements(deployment.config(), [99]))


@pytest.mark.spark
def test_readers_without_spark_see_the_same(deployment: Deployment) -> None:
    root = deployment.folder / "warehouse" / f"{deployment.database}.db"
    for name in ("users", "_changelog", "_cluster", "_epochs", "_schema"):
        table = DeltaTable(str(root / name))
        arrow = table.to_pyarrow_table()
        assert arrow.num_rows > 0
        assert len(duckdb.connect().from_arrow(arrow).fetchall()) == arrow.num_rows
        assert pl.DataFrame(pl.from_arrow(arrow)).height == arrow.num_rows
    users = pl.DataFrame(pl.from_arrow(DeltaTable(str(root / "users")).to_pyarrow_table()))
    kinds = {name: str(kind) for name, kind in users.schema.items()}
    assert (kinds["id"], kinds["_tuple"]) == ("Decimal(precision=20, scale=0)", "Binary")
    assert kinds["_extra"] == "String"
    assert pl.read_delta(str(root / "_cluster")).height == len(deployment.rows("_cluster"))


def test_polars_reads_the_tables_by_itself(deployment: Deployment) -> None:
    users = str(deployment.folder / "warehouse" / f"{deployment.database}.db" / "users")
    assert pl.scan_delta(users).select("id").collect().height == 2

"""Retention by the maintenance job: what it prints before, what it removes, and readers of the tables afterwards."""

import re
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from config.deployment import Config
from jobs.maintain import maintain
from jobs.validate import validate
from observe.space_history import space_history
from observe.sql_views import view_statements
from schemas.errors import ConfigurationError
from tests.jobs.deployment import Deployment
from tests.jobs.test_maintain import age
from tests.jobs.written import Node
from warehouse.system_tables.maintenance import retention_horizon

# Great Expectations calls what its own dependencies have deprecated.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

S = 600
DAY = 86_400.0
RETENTION = dict.fromkeys(("tombstones", "changelog", "conflicts", "epochs"), "30 days") | {"batches": 2}
WATCHED = ("_changelog", "_versions", "_epochs", "_conflicts", "_retention")


def counts(deployment: Deployment) -> dict[str, int]:
    return {name: len(deployment.rows(name)) for name in WATCHED}


def validated(config: Config) -> int:
    return validate(config, "none.yaml")


@pytest.fixture(scope="module")
def deployment(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Return tables with two batches of 40 days ago and one of today."""
    folder: Path = tmp_path_factory.mktemp("retained")
    node = Node(folder, "a1").define(S, "users")
    made = Deployment.of(folder, node, retention=RETENTION)
    for number in (1, 2, 3):
        node.put(S, number, "first", 1, 1).close()
        made.run()
    node.delete(S, 2, at=DAY).update(S, 3, ["=", 1, "second"], at=DAY).close()
    made.run()
    age(spark, made, 40)
    node.update(S, 1, ["=", 1, "third"], at=90 * DAY).put(S, 3, "third", 1, 1, at=90 * DAY)
    node.update(S, 3, ["=", 1, "fourth"], at=91 * DAY).put(S, 4, "third", 1, 1, at=91 * DAY).close()
    made.run()
    return made


def test_maintenance_removes_old_rows_and_all_commands_still_work(
    spark: SparkSession, deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    config, before = deployment.config(), counts(deployment)
    assert maintain(config, dry_run=True) == 0
    lines = capsys.readouterr().out.splitlines()
    wanted = ["5 rows of _changelog", "1 rows of _versions", "3 rows of _epochs"]
    assert lines[:-1] == [f"{one} would be removed" for one in wanted]
    assert re.fullmatch(
        "deleted keys from .* on stay: replicaset .* was read up to 2024-02-13 22:13 UTC", lines[-1]
    )
    assert counts(deployment) == before, "a dry run writes nothing"
    tuples = deployment.tuples("users")
    assert maintain(config) == 0
    message = capsys.readouterr().out
    assert all(f"{one} were removed" in message for one in wanted)
    after = counts(deployment)
    assert after == {
        **before,
        "_changelog": before["_changelog"] - 5,
        "_versions": 0,
        "_epochs": before["_epochs"] - 3 + 1,
        "_retention": 2,
    }
    assert deployment.tuples("users") == tuples
    assert maintain(config, dry_run=True) == 0
    assert capsys.readouterr().out.startswith("nothing would be removed\n")
    assert validated(config) == 0
    versions = space_history(deployment.opened(spark), config, "users").select(
        "key", "type", "state", "row.name"
    )
    assert sorted((bytes(row[0])[-1], *row[1:]) for row in versions.collect()) == [
        (3, "REPLACE", "present", "third"),
        (3, "UPDATE", "present", "fourth"),
        (4, "REPLACE", "present", "third"),
    ], "the tuple that key 1 had before its UPDATE is not kept"


def test_retained_epochs_are_readable(spark: SparkSession, deployment: Deployment) -> None:
    config = deployment.config()
    _, first = retention_horizon(deployment.opened(spark).location)
    epochs = {row["epoch"]: dict(row["versions"]) for row in deployment.rows("_epochs")}
    assert first == min(epochs)
    root = deployment.folder / "warehouse" / f"{deployment.database}.db"
    read = {
        epoch: [
            DeltaTable(str(root / table), version=versions[table]).to_pyarrow_table(columns=[column]).num_rows
            for table, column in (("users", "_key"), ("_changelog", "lsn"))
        ]
        for epoch, versions in epochs.items()
    }
    newest = max(epochs)
    assert [rows for rows, _ in (read[first], read[newest])] == [2, 3]
    assert read[newest - 1][1] == read[newest][1] + 5, "the epoch before the cleaning has what went"
    for statement in view_statements(config, []):
        spark.sql(statement)
    cut = f"{deployment.database}_epoch_{newest}"
    names = [row.name for row in spark.sql(f"SELECT name FROM {cut}.users ORDER BY id").collect()]
    assert names == ["third", "fourth", "third"]
    with pytest.raises(ConfigurationError, match="there is no epoch 0"):
        list(view_statements(config, [0]))


def test_spark_keeps_so_many_batches_in_the_checkpoint(deployment: Deployment) -> None:
    batches = [int(file.name) for file in (deployment.folder / "checkpoint" / "offsets").glob("[0-9]*")]
    assert len(batches) <= 3
    assert min(batches) > 0

"""Maintenance of real Delta tables that are days old: tables of retained epochs can be read."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.maintain import maintain
from observe.sql_views import view_statements
from tests.jobs.deployment import Deployment
from tests.jobs.written import Node

pytestmark = [pytest.mark.spark, pytest.mark.soak]

USERS = 600
DAY_MS = 86_400_000

_TIMES = re.compile(r'"(deletionTimestamp|modificationTime|timestamp|createdTime)":(\d+)')


def age(spark: SparkSession, deployment: Deployment, days: int) -> None:
    """Change a warehouse's times to that many days earlier."""
    root = deployment.folder / "warehouse" / f"{deployment.database}.db"
    DeltaTable(str(root / "_epochs")).update(
        updates={"committed_at": f"committed_at - interval '{days} days'"}
    )
    for log in root.glob("*/_delta_log/*.json"):
        log.write_text(_TIMES.sub(lambda m: f'"{m[1]}":{int(m[2]) - days * DAY_MS}', log.read_text()))
    for sum_ in [*root.glob("*/_delta_log/.*.json.crc"), *root.glob("*/_delta_log/*.crc")]:
        sum_.unlink(missing_ok=True)  # of what they were before
    for file in root.rglob("*"):
        then = file.stat().st_mtime - days * DAY_MS / 1000
        os.utime(file, (then, then))
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def names(spark: SparkSession, deployment: Deployment, epoch: int) -> list[str]:
    for statement in view_statements(deployment.config(), [epoch]):
        spark.sql(statement)
    cut = f"{deployment.database}_epoch_{epoch}"
    return [row.name for row in spark.sql(f"SELECT name FROM {cut}.users ORDER BY id").collect()]


@pytest.fixture(scope="module")
def deployment(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Return tables with epochs 40 days, 10 days and zero days old; each batch replaces all rows."""
    folder: Path = tmp_path_factory.mktemp("maintained")
    node = Node(folder, "a1").define(USERS, "users")
    made = Deployment.of(folder, node)
    for number, days in enumerate((30, 10, 0)):
        node.put(USERS, 1, f"batch {number}", number, 1, at=number).close()
        made.run()
        if days:
            age(spark, made, days)
    return made


def test_every_retained_epoch_is_readable(spark: SparkSession, deployment: Deployment) -> None:
    """The first epoch was the newest one 30 days ago; its file was removed 10 days ago and is older than 30 days."""
    assert maintain(deployment.config(), 30) == 0
    for epoch in (0, 1, 2):
        assert names(spark, deployment, epoch) == [f"batch {epoch}"]

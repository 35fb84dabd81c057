"""A Spark standalone cluster: executors that know the project from `--py-files` alone, and a worker that is lost.

The tables must be those of local mode over the same logs, whatever was killed when.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from benchmarks.logs import Member
from tables.place import place_of
from tests.jobs.deployment import Deployment
from tests.jobs.standalone import Standalone, environment, packages_only, packed
from tests.sources.subscribe.following import await_until
from tests.tables.contents import contents, differences

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ORDERS, STOCK, VISITS = "orders", "stock", "visits"
POLICIES = {"spaces": {STOCK: {"policy": "sum", "columns": ["amount"]}}}
"""`orders`: the last write of two replicasets wins; `stock`: they are added up, by Python; `visits` has one writer."""

Executor = dict[str, Any]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    """Write rows for several tasks: 70,000."""
    folder = tmp_path_factory.mktemp("logs")
    a, b = (Member(folder, name, [ORDERS, STOCK, VISITS]) for name in ("a1", "b1"))
    a.put(ORDERS, range(20_000)), b.put(ORDERS, range(15_000, 35_000))
    a.put(STOCK, range(3_000)), b.put(STOCK, range(2_000, 5_000))
    a.update(ORDERS, range(5_000, 15_000)), b.put(VISITS, range(14_000))
    return [a, b]


def deployed(folder: Path, members: list[Member]) -> Deployment:
    sources = {one.name: one.path for one in members}
    replicasets = {one.name: one.replicaset for one in members}
    return Deployment(folder, sources, replicasets, policies=POLICIES, local_bytes=1)


def held(deployment: Deployment) -> dict[str, pa.Table]:
    return contents(place_of(str(deployment.folder / "warehouse"), deployment.database))


@pytest.fixture(scope="module")
def local(
    spark: SparkSession,  # noqa: ARG001
    members: list[Member],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, pa.Table]:
    """Return what local mode makes of the logs."""
    deployment = deployed(tmp_path_factory.mktemp("local"), members)
    deployment.run()
    return held(deployment)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    found = packages_only(folder)
    command = [str(found), "-c", "import pyspark, jobs"]
    told = subprocess.run(
        command, env=environment(folder), cwd=folder, capture_output=True, text=True, check=False
    )
    assert told.stderr.endswith("No module named 'jobs'\n"), "the executors would have the repository"
    return found


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("dist"))


def writes_the_changelog(deployment: Deployment) -> Callable[[Executor], bool]:
    table = deployment.folder / "warehouse" / f"{deployment.database}.db" / "_changelog"
    return lambda one: bool(one["activeTasks"] and list(table.glob("*.parquet")))


def holds_what_is_decided(_: Deployment) -> Callable[[Executor], bool]:
    """Frames that later steps read are cached where they were computed."""
    return lambda one: bool(one["activeTasks"] and one["rddBlocks"] and one["totalShuffleWrite"])


@pytest.mark.parametrize("moment", [writes_the_changelog, holds_what_is_decided])
def test_a_worker_is_lost_in_the_middle_of_a_batch(
    moment: Callable[[Deployment], Callable[[Executor], bool]],
    members: list[Member],
    local: dict[str, pa.Table],
    python: Path,
    zipped: Path,
    tmp_path: Path,
) -> None:
    deployment = deployed(tmp_path, members)
    config = tmp_path / "config.yaml"
    config.write_text(deployment.config().model_dump_json(), encoding="utf-8")
    has_come = moment(deployment)
    found: list[Executor] = []

    def come() -> bool:
        assert job.poll() is None, cluster.said("driver")
        found[:] = [one for one in cluster.executors() if has_come(one)]
        return bool(found)

    with Standalone(tmp_path / "cluster") as cluster:
        job = cluster.submit(python, zipped, "aggregate", "--config", str(config), "--once")
        await_until(come, "the moment", seconds=300)
        cluster.kill_worker_of(found[0]["id"])
        code = job.wait(600)
        said = cluster.said("driver")
    assert code == 0, said[-3000:]
    assert f"Lost executor {found[0]['id']}" in said
    assert differences(local, held(deployment)) == {}

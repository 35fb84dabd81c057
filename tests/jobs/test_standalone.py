"""A Spark standalone cluster: executors that get the project by `--py-files` only, and a worker that is lost.

The tables must equal those of local mode over the same logs, whichever process was killed.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from benchmarks.logs import MemberLogs
from tests.jobs.deployment import Deployment
from tests.jobs.standalone import Standalone, environment, pack_project, python_without_project
from tests.sources.subscribe.following import await_until
from tests.warehouse.contents import contents, differences
from warehouse.delta.location import location_of

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ORDERS, STOCK, VISITS = "orders", "stock", "visits"
POLICIES = {"spaces": {STOCK: {"policy": "sum", "columns": ["amount"]}}}
"""`orders`: the last write of two replicasets wins; `stock`: they are added up, by Python; `visits` has one writer."""

Executor = dict[str, Any]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[MemberLogs]:
    """Write rows for several tasks: 70,000."""
    folder = tmp_path_factory.mktemp("logs")
    a, b = (MemberLogs(folder, name, [ORDERS, STOCK, VISITS]) for name in ("a1", "b1"))
    a.replace(ORDERS, range(20_000))
    b.replace(ORDERS, range(15_000, 35_000))
    a.replace(STOCK, range(3_000))
    b.replace(STOCK, range(2_000, 5_000))
    a.update(ORDERS, range(5_000, 15_000))
    b.replace(VISITS, range(14_000))
    return [a, b]


def deployed(folder: Path, members: list[MemberLogs]) -> Deployment:
    sources = {one.name: one.path for one in members}
    replicasets = {one.name: one.replicaset for one in members}
    return Deployment(folder, sources, replicasets, policies=POLICIES, local_bytes=1)


def held(deployment: Deployment) -> dict[str, pa.Table]:
    return contents(location_of(str(deployment.folder / "warehouse"), deployment.database))


@pytest.fixture(scope="module")
def local(
    spark: SparkSession,  # noqa: ARG001
    members: list[MemberLogs],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, pa.Table]:
    """Return the result of the driver alone for the logs, without a Spark job."""
    deployment = deployed(tmp_path_factory.mktemp("local"), members)
    deployment.run(local_bytes=1 << 28)
    return held(deployment)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    found = python_without_project(folder)
    command = [str(found), "-c", "import pyspark, jobs"]
    done = subprocess.run(
        command, env=environment(folder), cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stderr.endswith("No module named 'jobs'\n"), "the executors would have the repository"
    return found


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_project(tmp_path_factory.mktemp("dist"))


def configured(folder: Path, members: list[MemberLogs]) -> tuple[Deployment, Path]:
    """Return a deployment whose batches all run on executors, and the path of its configuration."""
    deployment = deployed(folder, members)
    config = folder / "config.yaml"
    config.write_text(deployment.config().model_dump_json(), encoding="utf-8")
    return deployment, config


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_executors_makes_the_same_tables(
    workers: int,
    members: list[MemberLogs],
    local: dict[str, pa.Table],
    python: Path,
    zipped: Path,
    tmp_path: Path,
) -> None:
    deployment, config = configured(tmp_path, members)
    with Standalone(tmp_path / "cluster", workers) as cluster:
        job = cluster.submit(python, zipped, "aggregate", "--config", str(config), "--once")
        code = job.wait(600)
        said = cluster.output_of("driver")
    assert code == 0, said[-3000:]
    assert differences(local, held(deployment)) == {}


def reads_the_logs(deployment: Deployment) -> Callable[[Executor], bool]:
    return lambda one: bool(one["activeTasks"] and not written(deployment, "_changelog"))


def writes_the_changelog(deployment: Deployment) -> Callable[[Executor], bool]:
    return lambda one: bool(one["activeTasks"] and written(deployment, "_changelog"))


def has_given_rows_on(_: Deployment) -> Callable[[Executor], bool]:
    """Return whether an executor runs a task while it has shuffle data of the first stage."""
    return lambda one: bool(one["activeTasks"] and one["totalShuffleWrite"])


def written(deployment: Deployment, table: str) -> list[Path]:
    folder = deployment.folder / "warehouse" / f"{deployment.database}.db" / table
    return list(folder.glob("*.parquet"))


@pytest.mark.parametrize("moment", [reads_the_logs, writes_the_changelog, has_given_rows_on])
def test_a_worker_is_lost_in_the_middle_of_a_batch(
    moment: Callable[[Deployment], Callable[[Executor], bool]],
    members: list[MemberLogs],
    local: dict[str, pa.Table],
    python: Path,
    zipped: Path,
    tmp_path: Path,
) -> None:
    deployment, config = configured(tmp_path, members)
    has_come = moment(deployment)
    found: list[Executor] = []

    def come() -> bool:
        assert job.poll() is None, cluster.output_of("driver")
        found[:] = [one for one in cluster.executors() if has_come(one)]
        return bool(found)

    with Standalone(tmp_path / "cluster") as cluster:
        job = cluster.submit(python, zipped, "aggregate", "--config", str(config), "--once")
        await_until(come, "the moment", seconds=300)
        cluster.kill_worker_of(found[0]["id"])
        code = job.wait(600)
        said = cluster.output_of("driver")
    assert code == 0, said[-3000:]
    assert f"Lost executor {found[0]['id']}" in said
    assert differences(local, held(deployment)) == {}

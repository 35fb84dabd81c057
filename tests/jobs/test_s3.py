"""Sources, warehouse and checkpoint on S3: the same tables as on a disk, by a real spark-submit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.jobs.deployment import Deployment
from tests.jobs.written import Node, replicasets_of
from tests.sources.s3 import Store, installed
from tests.warehouse.contents import contents, differences
from warehouse.delta.location import location_of

pytestmark = [pytest.mark.spark, pytest.mark.soak, installed]

ROOT = Path(__file__).resolve().parents[2]
USERS, COUNTERS = 600, 601
POLICIES = {"spaces": {"counters": {"policy": "sum", "columns": ["value"]}}}


def submit(store: Store, deployment: Deployment, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the job once, as a user does."""
    file = deployment.folder / "config.yaml"
    at = {"warehouse": "s3a://lake/warehouse", "checkpoint": "s3a://lake/checkpoint"}
    file.write_text(deployment.config(**at).model_dump_json(), encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    settings = [word for name, value in store.hadoop.items() for word in ("--conf", f"{name}={value}")]
    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]", *settings, *options]
    return subprocess.run(
        [*command, str(ROOT / "jobs" / "aggregate.py"), "--config", str(file), "--once"],
        env={**inherited, **store.environment},
        cwd=deployment.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def first(a: Node, b: Node) -> None:
    for key in range(1, 40):
        a.put(USERS, key, "a", key, 1, at=10).put(COUNTERS, key, "a", key, 1, at=10)
        b.put(USERS, key + 20, "b", key, 1, at=20).put(COUNTERS, key + 20, "b", key, 1, at=20)
    a.close(), b.close()


def second(a: Node, b: Node) -> None:
    a.delete(USERS, 1, at=30).update(USERS, 30, ["=", 1, "a again"], at=30).close()
    b.put(COUNTERS, 30, "b again", 5, 2, at=31).close()


def test_the_tables_on_s3_are_those_on_disc(
    spark: SparkSession,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = (
        Node(tmp_path / "logs", n).define(USERS, "users").define(COUNTERS, "counters") for n in ("a1", "b1")
    )
    for name in ("disc", "s3"):
        (tmp_path / name).mkdir()
    nodes, ids = {"a1": a, "b1": b}, replicasets_of("a1", "b1")
    disc = Deployment(tmp_path / "disc", {n: one.path for n, one in nodes.items()}, ids, policies=POLICIES)
    far = Deployment(tmp_path / "s3", {}, ids, policies=POLICIES)
    with Store(tmp_path) as store:
        for write in (first, second):
            write(a, b)
            uris = {name: store.put(one.path, f"logs/{name}") for name, one in nodes.items()}
            far.settings["sources"] = [{"name": n, "path": u, "replicaset": ids[n]} for n, u in uris.items()]
            done = submit(store, far)
            assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
            disc.run()
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        found = contents(location_of("s3a://lake/warehouse", far.database))
        assert differences(contents(disc.location), found) == {}
        assert found["users"].num_rows == 58
        assert far.folder.joinpath("warehouse").exists() is False

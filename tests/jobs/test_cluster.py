"""Ids from the logs of real servers to the tables and the command: restarts, other machines, ids of each source."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest

from jobs.main import main
from schemas.cluster_checksum import checksum
from schemas.iproto import GROUP_CLUSTER, SystemSpace
from tests.jobs.deployment import Deployment
from tests.sources.xlog.logs import Server, replicaset_of, uuid_of
from tests.truth import own
from udfs.remap.cluster_replace import OWN_REPLICASET_UUID

SETTINGS: Mapping[str, Any] = {"spaces": {"include": ["accounts"]}}
MAP = ("replicaset_id", "source", "local_id", "global_id", "since_lsn")
ROW = ("global_id", "uuid", "local_id", "replicaset_id", "lsn", "replicaset_uuid", "expelled_at")


def deployed(folder: Path, *nodes: str) -> Deployment:
    return Deployment(folder, {node: own().directory(node) for node in nodes}, **SETTINGS)


def config_file(deployment: Deployment) -> str:
    file = deployment.folder / "config.yaml"
    file.write_text(deployment.config().model_dump_json(), encoding="utf-8")
    return str(file)


def asked(capsys: pytest.CaptureFixture[str], deployment: Deployment, *words: str) -> str:
    sys.argv = ["cluster", *words, "--config", config_file(deployment)]
    assert main("cluster") == 0
    return capsys.readouterr().out


def members(deployment: Deployment) -> set[tuple[Any, ...]]:
    return {tuple(row[name] for name in ROW) for row in deployment.rows("_cluster") if row["replicaset_id"]}


def maps(deployment: Deployment) -> set[tuple[Any, ...]]:
    return {tuple(row[name] for name in MAP) for row in deployment.rows("_applier_map")}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    deployment = deployed(tmp_path_factory.mktemp("ids"), "a1", "b1")
    deployment.write()
    return deployment


@pytest.mark.parametrize("node", ["a1", "b1"])
def test_a_sources_position_in_its_own_ids(
    both: Deployment, node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server's own vclock; component 0 is local to it."""
    lsns = {id_: lsn for id_, lsn in own().info(node).vclock.items() if id_}
    printed = asked(capsys, both, "vclock", node).strip()
    assert printed == "{" + ", ".join(f"{id_}: {lsns[id_]}" for id_ in sorted(lsns)) + "}"


@pytest.mark.parametrize("node", ["a1", "b1"])
def test_the_checksum_is_that_of_the_servers_own_cluster(
    both: Deployment, node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = f"{checksum(own().info(node).cluster):08x}\n"
    assert asked(capsys, both, "checksum", own().info(node).replicaset_uuid) == expected
    assert asked(capsys, both, "checksum", node) == expected


def test_show_names_every_instance_and_map(both: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    printed = asked(capsys, both, "show")
    assert printed.startswith("allocation counter, own lsn 5\n")
    for node in ("a1", "a2", "b1", "b2"):
        info = own().info(node)
        assert any(
            info.instance_uuid in line and info.replicaset_uuid in line for line in printed.splitlines()
        )
    assert f"{own().info('b1').replicaset_uuid}: 2 is 5 from lsn 1" in printed


def test_the_command_needs_no_java(both: Deployment) -> None:
    command = [sys.executable, "-m", "jobs.cluster", "vclock", "a1", "--config", config_file(both)]
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout[:4]) == (0, "{1: "), done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["vclock", "nobody"], "no table has the replicaset of the source 'nobody'"),
        (["vclock"], "Missing argument"),
    ],
)
def test_an_unknown_source_or_replicaset_is_wrong_use(
    both: Deployment, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    sys.argv = ["cluster", *words, "--config", config_file(both)]
    assert main("cluster") == 2
    assert reason in capsys.readouterr().err


def test_before_the_first_batch_the_command_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.argv = ["cluster", "show", "--config", config_file(deployed(tmp_path, "a1"))]
    assert main("cluster") == 1
    assert "start `aggregator run` first" in capsys.readouterr().err


def test_a_sources_row_of_cluster_is_a_nop_and_the_change_is_our_own(both: Deployment) -> None:
    rows = [r for r in both.rows("_changelog") if r["space_id"] == SystemSpace.CLUSTER]
    theirs = [row for row in rows if row["replicaset_id"]]
    assert theirs
    assert {row["type"] for row in theirs} == {"NOP"}
    assert all(row[name] is None for row in theirs for name in ("key", "tuple", "operations", "body"))
    ours = sorted((row for row in rows if not row["replicaset_id"]), key=lambda row: int(row["lsn"]))
    table = {row["lsn"]: row for row in both.rows("_cluster")}
    assert [row["lsn"] for row in ours] == sorted(table) == [1, 2, 3, 4, 5]
    (self_,) = [row for row in table.values() if row["replicaset_uuid"] == OWN_REPLICASET_UUID]
    for row in ours:
        member = table[row["lsn"]]
        assert (row["global_id"], row["instance_uuid"]) == (self_["global_id"], self_["uuid"])
        assert (row["type"], row["group_id"], row["space"]) == ("REPLACE", GROUP_CLUSTER, "_cluster")
        fields = ("global_id", "uuid", "local_id", "replicaset_id", "lsn")
        assert msgpack.unpackb(row["tuple"]) == [member[name] for name in fields]
    vclock = [row for row in both.rows("_vclock") if row["replicaset_id"] == 0]
    assert [(row["global_id"], row["local_id"], row["lsn"]) for row in vclock] == [(1, None, 5)]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return copies of two members' first logs only, as before a power failure."""
    folder = tmp_path_factory.mktemp("first")
    for node in ("a1", "b1"):
        source = own().directory(node)
        (folder / node).mkdir()
        for file in [*sorted(source.glob("*.snap"))[:1], *sorted(source.glob("*.xlog"))[:2]]:
            shutil.copy(file, folder / node / file.name)
    return {node: folder / node for node in ("a1", "b1")}


def test_maps_are_unchanged_after_a_power_failure(
    both: Deployment, split: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Document 001, "Restoring applier maps after power-off", on another machine: the warehouse and the sources.

    "When it's turned on back again, its applier maps are empty, and it won't be able to substitute replica_id
    field in incoming rows": here they are not empty, and the position that is to be sent needs no map first.
    """
    old = tmp_path / "old"
    old.mkdir()
    before = Deployment(old, split, **SETTINGS)
    before.write()
    known, mapped = members(before), maps(before)
    shutil.copytree(old / "warehouse", tmp_path / "new" / "warehouse")
    shutil.rmtree(old)
    after = deployed(tmp_path / "new", "a1", "b1")
    after.database = before.database
    asked(capsys, after, "vclock", "a1")
    after.write()
    assert known <= members(after) == members(both)
    assert mapped <= maps(after) == maps(both)
    columns = ("replicaset_id", "global_id", "replica_id", "lsn", "type")
    found, expected = (
        sorted(
            tuple(-1 if row[name] is None else row[name] for name in columns)
            for row in one.rows("_changelog", [*columns, "file"])
            if row["file"].endswith(".xlog")
        )
        for one in (after, both)
    )
    assert found == expected, "rows are mixed up"


def test_another_allocation_than_the_warehouses_is_refused(both: Deployment, tmp_path: Path) -> None:
    other = deployed(tmp_path, "a1", "b1")
    shutil.copytree(both.folder / "warehouse", tmp_path / "warehouse")
    other.database = both.database
    file = tmp_path / "config.yaml"
    config = other.config(cluster={"allocation": "preserve"})
    file.write_text(config.model_dump_json(), encoding="utf-8")

    sys.argv = ["aggregate", "--once", "--config", str(file)]
    epochs = len(other.rows("_epochs", ["epoch"]))
    assert main("run") == 1
    assert len(other.rows("_epochs", ["epoch"])) == epochs


def test_rows_of_an_id_in_no_map_wait_until_it_is_known(tmp_path: Path) -> None:
    """A log without its snapshot: no row so far has the replicaset's uuid; the job is restarted in between."""
    server = Server(tmp_path / "a1").write(1, rows=3)
    deployment = Deployment(tmp_path, {})
    source = {"name": "a1", "path": str(server.path), "replicaset": replicaset_of("a1")}
    deployment.write(sources=[source])
    waiting = deployment.rows("_pending", ["replica_id", "lsn", "reason"])
    assert sorted(row["lsn"] for row in waiting) == [1, 2, 3]
    assert {row["reason"] for row in waiting} == {
        "replica id 1 is in no map: no row of _cluster has announced it"
    }
    logged = deployment.rows("_changelog", ["lsn", "replicaset_id"])
    assert sorted((row["lsn"], row["replicaset_id"]) for row in logged) == [(1, 0), (2, 0)]
    server.system(int(SystemSpace.CLUSTER), [1, uuid_of("a1")]).write(1)
    deployment.write(sources=[source])
    # Whose they are is known now; of which space they are, no row has said yet.
    waiting = deployment.rows("_pending", ["lsn", "reason"])
    assert sorted(row["lsn"] for row in waiting) == [1, 2, 3, 5]
    assert all("is not known: no row of _space has defined it" in row["reason"] for row in waiting)
    (member,) = [row for row in deployment.rows("_cluster") if row["replicaset_id"]]
    rows = [row for row in deployment.rows("_changelog") if row["replicaset_id"]]
    assert sorted((row["lsn"], row["global_id"]) for row in rows) == [
        (lsn, member["global_id"]) for lsn in (1, 2, 3, 4, 5)
    ]

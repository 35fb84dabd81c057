"""A whitelist leaves out the rows of other instances, but not what these register in `_cluster`."""

from pathlib import Path

import pytest

from pipeline.batch import MakeDistributed
from schemas.iproto import SystemSpace
from tests.jobs.written import replicasets_of
from tests.pipeline.deployment import Deployment
from tests.pipeline.test_missing_files import FIELDS, MEMBERS, Log, lead, read_while_checked

T = 601
LATER = "aaaaaaaa-0000-4000-8000-0000000000a3"


def defined_by_second(log: Log) -> Log:
    """Let the second instance define a space, since definitions by others are left out."""
    log.insert(SystemSpace.SPACE, T, 1, "t", "memtx", 0, {}, FIELDS, origin=2)
    log.insert(SystemSpace.INDEX, T, 0, "pk", "tree", {"unique": True}, [[0, "unsigned"]], origin=2)
    return log


def log_with_registration(tmp_path: Path, replica_id: int) -> Log:
    """Write a log of a1, who is unwanted: it registers an instance, between a row of a2 and one of the new instance."""
    log = defined_by_second(Log())
    log.insert(T, 1, 10, origin=2)
    log.insert(SystemSpace.CLUSTER, replica_id, LATER)
    log.insert(T, 2, 20, origin=replica_id)
    log.write(tmp_path / "a1", "a1", 0, len(log.rows))
    return log


def owners_by_lsn(deployment: Deployment) -> dict[int, str]:
    """Return the uuid of the instance that wrote each row of the table, by the row's lsn."""
    uuids = {row["global_id"]: row["uuid"] for row in deployment.rows("_cluster")}
    return {row["_lsn"]: uuids[row["_global_id"]] for row in deployment.table("t").values()}


def deployment_of(tmp_path: Path, executor: MakeDistributed | None, *wanted: str) -> Deployment:
    sources, origins = {"a1": tmp_path / "a1"}, dict.fromkeys(MEMBERS, wanted)
    return Deployment(tmp_path, sources, replicasets_of(*MEMBERS), executor, origins, on_gap="hold")


@pytest.mark.parametrize("budget", [None, 1])
def test_an_instance_that_an_unwanted_one_registers_is_known(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None
) -> None:
    log_with_registration(tmp_path, replica_id=3)
    deployment = deployment_of(tmp_path, executor, MEMBERS["a2"], LATER)
    read_while_checked(deployment, budget)
    assert not deployment.rows("_pending")
    assert owners_by_lsn(deployment) == {1: LATER, 3: MEMBERS["a2"]}
    assert {row["replica_id"] for row in deployment.rows("_changelog") if row["source"] == "a1"} == {2, 3}


@pytest.mark.parametrize("budget", [None, 1])
def test_an_id_that_an_unwanted_instance_gives_to_another_one_changes_its_owner(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None
) -> None:
    log = log_with_registration(tmp_path, replica_id=2)
    deployment = deployment_of(tmp_path, executor, MEMBERS["a2"], LATER)
    read_while_checked(deployment, budget)
    written = owners_by_lsn(deployment)
    assert written == {3: MEMBERS["a2"], 4: LATER}

    # Another member's log has the same rows, which are left out again, and were followed before.
    maps = deployment.rows("_applier_map")
    log.insert(T, 3, 30, origin=2)
    log.write(tmp_path / "a2", "a2", 0, len(log.rows))
    lead(deployment, "a2", budget)
    assert deployment.rows("_applier_map") == maps
    assert owners_by_lsn(deployment) == {**written, 5: LATER}

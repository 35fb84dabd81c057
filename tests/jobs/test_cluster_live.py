"""Document 001's cases (a) and (b), provoked with real Tarantools: one id for two replicas, and for the aggregator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from tests.jobs.deployment import Deployment
from tests.live import Tarantool

pytestmark = [pytest.mark.spark, pytest.mark.live]

REPLICASET = str(UUID(int=0xA << 124 | 4 << 76 | 8 << 60))
SECONDS = 30.0


def uuid(number: int) -> str:
    return str(UUID(int=0xB << 124 | 4 << 76 | 8 << 60 | number))


def await_(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the servers did not get there"
        time.sleep(0.01)


class Servers:
    """Instances of one replicaset by name; the masters are m1 and m2."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.stack = stack
        self.by_name: dict[str, Tarantool] = {}

    def __getitem__(self, name: str) -> Tarantool:
        return self.by_name[name]

    def start(self, name: str, number: int, *masters: str, **cfg: Any) -> None:
        whole = {
            "instance_uuid": uuid(number),
            "replicaset_uuid": REPLICASET,
            "replication": [f"unix/:{self[master].socket}" for master in masters],
            "replication_connect_quorum": len(masters),
            "replication_timeout": 0.2,
            "checkpoint_interval": 0,
            **cfg,
        }
        self.by_name[name] = self.stack.enter_context(Tarantool(self.root / name, cfg=whole))

    def follow(self, name: str, *others: str) -> None:
        uris = [f"unix/:{self[other].socket}" for other in others]
        self[name].eval("box.cfg({replication = ..., replication_connect_quorum = 0})", uris)

    def vclock(self, name: str) -> dict[int, int]:
        found = self[name].eval("return box.info.vclock")
        vclock = dict(enumerate(found, 1)) if isinstance(found, list) else dict(found)
        return {id_: lsn for id_, lsn in vclock.items() if id_ and lsn}

    def cluster(self, name: str) -> dict[int, str]:
        return {row[0]: row[1] for row in self[name].eval("return box.space._cluster:select()")}

    def write(self, name: str, key: str) -> None:
        self[name].eval("box.space.s:replace({...})", key, name)


def aggregated(deployment: Deployment, *names: str) -> None:
    deployment.sources = {name: deployment.folder / "servers" / name for name in names}
    deployment.run()


def ids(deployment: Deployment) -> dict[str, int]:
    return {row["uuid"]: row["global_id"] for row in deployment.rows("_cluster") if row["replicaset_id"]}


def own_id(deployment: Deployment) -> int:
    (found,) = [row["global_id"] for row in deployment.rows("_cluster") if not row["replicaset_id"]]
    return int(found)


def writers(deployment: Deployment) -> dict[str, int]:
    """Return who wrote the rows of the space, by their keys' names."""
    return {row["id"]: row["_global_id"] for row in deployment.rows("s", ["id", "_global_id"])}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Yield two masters that replicate each other, with a space, and logs that begin at one vclock."""
    with ExitStack() as stack:
        found = Servers(tmp_path / "servers", stack)
        found.start("m1", 1)
        found["m1"].eval("box.schema.space.create('s'):create_index('p', {parts = {1, 'string'}})")
        found["m1"].eval("box.space.s:format({{'id', 'string'}, {'by', 'string'}})")
        found.start("m2", 2, "m1")
        found.follow("m1", "m2")
        found.write("m1", "of m1")
        found.write("m2", "of m2")
        await_(lambda: found.vclock("m1") == found.vclock("m2"))
        for master in ("m1", "m2"):
            found[master].eval("box.snapshot()")
        yield found


def test_cases_a_and_b(spark: SparkSession, servers: Servers, tmp_path: Path) -> None:  # noqa: ARG001
    deployment = Deployment(tmp_path, {}, cluster={"allocation": "preserve"})
    aggregated(deployment, "m1")
    # (b): the aggregator takes the id that nobody has; the masters do not know.
    assert ids(deployment) == {uuid(1): 1, uuid(2): 2}
    assert own_id(deployment) == 3

    # (a): the masters do not hear of each other while a replica comes to each.
    servers.follow("m1")
    servers.follow("m2")
    for replica, number, master in (("r1", 3, "m1"), ("r2", 4, "m2")):
        servers.start(replica, number, master)
        servers.follow(master, replica)
        servers.write(replica, f"of {replica}")
        await_(lambda replica=replica, master=master: servers.vclock(master) == servers.vclock(replica))  # type: ignore[misc]
        servers.write(master, f"more of {master}")
    assert servers.cluster("m1") == {1: uuid(1), 2: uuid(2), 3: uuid(3)}
    assert servers.cluster("m2") == {1: uuid(1), 2: uuid(2), 3: uuid(4)}
    for server in servers.by_name.values():
        server.stop()

    aggregated(deployment, "m1")
    assert ids(deployment) == {uuid(1): 1, uuid(2): 2, uuid(3): 4}, "(b): 3 is ours, so it is {4, uuid3} here"
    aggregated(deployment, "m2")
    assert ids(deployment) == {uuid(1): 1, uuid(2): 2, uuid(3): 4, uuid(4): 5}, "(a): {3: 5} in m2's map"
    assert own_id(deployment) == 3
    assert writers(deployment) == {
        "of m1": 1,
        "of m2": 2,
        "of r1": 4,
        "more of m1": 1,
        "of r2": 5,
        "more of m2": 2,
    }
    entries = deployment.rows("_applier_map")
    assert {(e["local_id"], e["global_id"]) for e in entries if e["source"] == "m2"} >= {(3, 5)}
    assert {(e["local_id"], e["global_id"]) for e in entries if e["source"] is None} == {
        (1, 1),
        (2, 2),
        (3, 4),
        (32, 5),
    }
    assert not deployment.rows("_pending")
    assert not deployment.rows("_gaps")
    position = {row["local_id"]: row["lsn"] for row in sorted(deployment.rows("_vclock"), key=_epoch)}
    assert (position[3], position[32]) == (1, 1)


def _epoch(row: Mapping[str, Any]) -> int:
    return int(row["epoch"])


def test_an_anonymous_replica_that_signs_local_changes(
    spark: SparkSession,  # noqa: ARG001
    servers: Servers,
    tmp_path: Path,
) -> None:
    """Its rows of local spaces are signed 0 in its log, and are its own here; when it is registered, they stay so."""
    deployment = Deployment(tmp_path, {})
    servers.start("anon", 9, "m1", replication_anon=True, read_only=True)
    anon = servers["anon"]
    servers["m1"].eval("box.schema.space.create('l', {is_local = true}):create_index('p')")
    await_(lambda: bool(anon.eval("return box.space.l ~= nil and box.space.l.index.p ~= nil")))
    anon.eval("box.space.l:replace({1}) box.space.l:replace({2})")
    servers.write("m1", "seen by anon")
    await_(lambda: servers.vclock("anon") == servers.vclock("m1"))
    aggregated(deployment, "anon")
    global_id = ids(deployment)[uuid(9)]

    def local() -> list[tuple[Any, ...]]:
        rows = deployment.rows("_changelog")
        return sorted((r["global_id"], r["lsn"]) for r in rows if r["state"] == "local" and r["lsn"])

    assert local() == [(global_id, 1), (global_id, 2)]
    assert global_id != own_id(deployment)
    anon.eval("box.cfg({replication_anon = false, read_only = false})")
    assert servers.cluster("m1")[3] == uuid(9)
    servers.write("anon", "of anon")
    anon.eval("box.space.l:replace({3})")
    for server in servers.by_name.values():
        server.stop()
    aggregated(deployment, "anon")
    (row,) = [row for row in deployment.rows("_cluster") if row["uuid"] == uuid(9)]
    assert (row["global_id"], row["local_id"]) == (global_id, 3)
    assert local() == [(global_id, 1), (global_id, 2), (global_id, 3)]
    assert writers(deployment)["of anon"] == global_id

"""Ids of real Tarantools: cases (a) and (b) of document 001, an anonymous replica, an id that gets a new owner."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jobs.backfill import BackfillOptions, backfill
from tests.jobs.deployment import Deployment
from tests.live.replicaset import Servers, await_true, case_a, uuid

pytestmark = pytest.mark.live


def aggregated(deployment: Deployment, *names: str) -> None:
    deployment.sources = {name: deployment.folder / "servers" / name for name in names}
    deployment.write()


def ids(deployment: Deployment) -> dict[str, int]:
    return {row["uuid"]: row["global_id"] for row in deployment.rows("_cluster") if row["replicaset_id"]}


def own_id(deployment: Deployment) -> int:
    (found,) = [row["global_id"] for row in deployment.rows("_cluster") if not row["replicaset_id"]]
    return int(found)


def writers(deployment: Deployment) -> dict[str, int]:
    """Return the writers of the space's rows, by the names in their keys."""
    return {row["id"]: row["_global_id"] for row in deployment.rows("s", ["id", "_global_id"])}


def test_cases_a_and_b(servers: Servers, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, {}, cluster={"allocation": "preserve"})
    aggregated(deployment, "m1")
    # (b): the aggregator takes the id that nobody has; the masters do not know.
    assert ids(deployment) == {uuid(1): 1, uuid(2): 2}
    assert own_id(deployment) == 3

    case_a(servers)

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
    servers: Servers,
    tmp_path: Path,
) -> None:
    """Rows of local spaces have id 0 in the log and are assigned to the replica here, also after its registration."""
    deployment = Deployment(tmp_path, {})
    servers.start("anon", 9, "m1", replication_anon=True, read_only=True)
    anon = servers["anon"]
    servers["m1"].eval("box.schema.space.create('l', {is_local = true}):create_index('p')")
    await_true(lambda: bool(anon.eval("return box.space.l ~= nil and box.space.l.index.p ~= nil")))
    anon.eval("box.space.l:replace({1}) box.space.l:replace({2})")
    servers.write("m1", "seen by anon")
    await_true(lambda: servers.vclock("anon") == servers.vclock("m1"))
    aggregated(deployment, "anon")
    global_id = ids(deployment)[uuid(9)]

    def local() -> list[tuple[Any, ...]]:
        # From 2.10 on a snapshot also has a local row of the election's state, which is of no space.
        rows = [row for row in deployment.rows("_changelog") if row["space_id"] is not None]
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


def handed_on(servers: Servers, keep: Path) -> list[Path]:
    """Give id 2 to m2, then to the new n1, then to the new n2; return copies of m1's files of each period.

    A snapshot ends the files of a period.
    """
    m1, times = servers["m1"], list[Path]()
    m1.eval("box.cfg({checkpoint_count = 10})")
    for number, name in enumerate(("m2", "n1", "n2")):
        if name != "m2":
            servers.start(name, 5 + number, "m1")
            servers.follow("m1", name)
        for row in range(3):
            servers.write(name, f"{name} {row}")
        servers.await_same_vclock("m1", name)
        assert servers.cluster("m1")[2] == servers[name].eval("return box.info.uuid")
        servers[name].stop()
        m1.eval("box.cfg({replication = {}})")
        m1.eval("box.space._cluster:delete(2)")
        servers.write("m1", f"m1 after {name}")
        times.append(keep / name)
        if name != "n2":
            m1.eval("box.snapshot()")
    m1.stop()
    for time in times:
        time.mkdir(parents=True)
    snapshots = sorted((servers.root / "m1").glob("*.snap"))[-len(times) :]
    for time, snapshot in zip(times, snapshots, strict=True):
        shutil.copy(snapshot, time)
        shutil.copy(snapshot.with_suffix(".xlog"), time)
    return times


def test_an_id_gets_another_owner(servers: Servers, tmp_path: Path) -> None:
    """Rows are assigned correctly as they come, from a snapshot on, and when old files come much later."""
    times = handed_on(servers, tmp_path / "times")
    expected = {f"{name} {row}": name for name in ("m2", "n1", "n2") for row in range(3)}
    by_uuid = {uuid(2): "m2", uuid(6): "n1", uuid(7): "n2"}

    def found(deployment: Deployment) -> dict[str, str]:
        names = {id_: by_uuid[one] for one, id_ in ids(deployment).items() if one in by_uuid}
        return {key: names[id_] for key, id_ in writers(deployment).items() if id_ in names}

    def deployed(name: str, *held: Path, **settings: Any) -> Deployment:
        source = tmp_path / name / "m1"
        source.mkdir(parents=True)
        for time in held:
            shutil.copytree(time, source, dirs_exist_ok=True)
        made = Deployment(tmp_path / name, {"m1": source}, **settings)
        made.write()
        return made

    whole = deployed("whole", *times)
    assert found(whole) == expected
    history = {
        (row["local_id"], row["since_lsn"]) for row in whole.rows("_applier_map") if row["local_id"] == 2
    }
    assert len(history) == 3, "an entry an instance"

    late = deployed("late", times[0])
    shutil.copytree(times[2], late.sources["m1"], dirs_exist_ok=True)
    for snapshot in sorted(late.sources["m1"].glob("*.snap"))[1:]:
        snapshot.unlink()  # or the stream would continue from it
    late.write()
    assert {row["state"] for row in late.rows("_gaps")} == {"open"}
    assert set(found(late)) == {f"m2 {row}" for row in range(3)}
    shutil.copytree(times[1], late.sources["m1"], dirs_exist_ok=True)
    assert backfill(late.config(), BackfillOptions(source="m1")) == 0
    assert found(late) == expected
    assert not late.rows("_pending")

    begun = deployed("begun", times[2], start="snapshot")
    assert {key: name for key, name in found(begun).items() if name == "n2"} == {
        key: name for key, name in expected.items() if name == "n2"
    }
    assert set(writers(begun)) == set(writers(whole))

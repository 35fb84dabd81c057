"""vshard moves buckets: what it moved is marked and is no conflict, doubled buckets are named, no key is lost."""

import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgpack
import pytest
from deltalake import DeltaTable

from pipeline.batch import MakeDistributed
from pipeline.plan.spaces import vshard
from pipeline.requests.pending_moves import PendingMoves
from tests.jobs.written import BEGAN, Node
from tests.pipeline.deployment import Deployment
from tests.pipeline.restarted import KilledError, Restarted
from tests.pipeline.storages import BUCKET, ORDERS, SETTINGS, USERS, Cluster, marked_rows, unpacked_tuples
from tests.soaked import partly_soaked


def ids_of(deployment: Deployment, cluster: Cluster) -> dict[str, int]:
    uuids = {
        row["replicaset_uuid"]: row["replicaset_id"]
        for row in deployment.rows("_cluster")
        if row["replicaset_id"]
    }
    return {name: uuids[uuid] for name, uuid in cluster.uuids.items()}


def check(deployment: Deployment, cluster: Cluster) -> None:
    """Compare marks, conflicts and tables with what was done."""
    ids = ids_of(deployment, cluster)
    assert marked_rows(deployment, "received") == {(ids[name], lsn) for name, lsn in cluster.received}
    assert marked_rows(deployment, "collected") == {(ids[name], lsn) for name, lsn in cluster.collected}
    assert deployment.rows("_conflicts") == []
    for space_id, name in ((USERS, "users"), (ORDERS, "orders")):
        assert unpacked_tuples(deployment.rows(name, ["_tuple"])) == sorted(
            r for (s, _), r in cluster.rows.items() if s == space_id
        )


def busy(folder: Path, seed: int, count: int = 2, moves: int = 12) -> Cluster:
    cluster = Cluster(folder, seed, count)
    cluster.write(5 * moves)
    for _ in range(moves):
        bucket = cluster.dice.choice(sorted(set(cluster.owner) - {b for _, b in cluster.garbage}))
        target = cluster.dice.choice([name for name in cluster.names if name != cluster.owner[bucket]])
        fails = cluster.dice.choice((None, None, None, 0, 1, 4))
        cluster.send(bucket, target, fails_after=fails)
        cluster.write(3)
        if cluster.dice.random() < 0.6:
            cluster.collect()
        cluster.write(2)
    cluster.collect()
    cluster.close()
    return cluster


@pytest.mark.parametrize("budget", partly_soaked([None, 1], [700]))
@pytest.mark.parametrize(("seed", "count"), [pytest.param(1, 2, marks=pytest.mark.soak), (2, 3)])
def test_moves_are_marked_and_no_conflicts(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None, seed: int, count: int
) -> None:
    # With the budget 1 each transaction is a batch of some commits: fewer moves have all kinds of them too.
    cluster = busy(tmp_path, seed, count, moves=3 if budget == 1 else 12)
    assert cluster.received
    assert cluster.collected
    deployment = cluster.deployment(tmp_path, executor)
    deployment.run(budget)
    check(deployment, cluster)
    assert all(row["doubled_with"] is None for row in deployment.rows("_vshard"))


def doubled(deployment: Deployment) -> dict[int, set[int]]:
    """Return the buckets that are named as doubled now, with the replicasets that hold them."""
    newest: dict[tuple[int, int], Any] = {}
    for row in sorted(deployment.rows("_vshard"), key=lambda row: int(row["epoch"])):
        newest[row["replicaset_id"], row["bucket_id"]] = row["doubled_with"]
    found: dict[int, set[int]] = {}
    for (replicaset, bucket), others in newest.items():
        if others:
            found.setdefault(bucket, {replicaset}).update(others)
    return found


def doubling(folder: Path) -> Cluster:
    """Return a cluster in which a bucket became active on both sides, and both were written to."""
    cluster = Cluster(folder, buckets=4)
    for key in range(4):
        cluster.put(USERS, key, 1).put(USERS, 10 + key, 2)
    source, target = cluster.owner[1], next(name for name in cluster.names if name != cluster.owner[1])
    cluster.send(1, target)
    # The source was recovered to active although the destination had activated the bucket.
    cluster.garbage = []
    cluster.storages[source].update(512, 1, ["=", 1, "active"], at=cluster._now())
    cluster.put(USERS, 0, 1)
    cluster.storages[source].put(USERS, 1, 1, 4711, at=cluster._now())
    cluster.storages[source].delete(USERS, 3, at=cluster._now())
    return cluster


@pytest.mark.parametrize("budget", partly_soaked([None, 1], [400]))
def test_a_doubled_bucket_is_named_with_its_rows_that_differ(
    tmp_path: Path, budget: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = doubling(tmp_path)
    source, target = "b1", "a1"
    cluster.put(USERS, 10, 2).put(USERS, 4, 2 if cluster.owner[2] == source else 3)
    cluster.storages[target].put(700, 1, 1, at=cluster._now())
    cluster.storages[source].put(700, 1, 1, at=cluster._now())
    cluster.close()
    deployment = cluster.deployment(tmp_path)
    deployment.run(budget)
    ids = ids_of(deployment, cluster)
    assert doubled(deployment) == {1: set(ids.values())}
    assert "bucket 1 of vshard is active in replicasets" in caplog.text
    rows = [row for row in deployment.rows("_conflicts") if row["space"] == "users"]
    newest = {row["key"]: row for row in sorted(rows, key=lambda row: row["epoch"])}
    keys = {msgpack.unpackb(row["winner_tuple"] or row["loser_tuple"])[0] for row in newest.values()}
    assert keys >= {0, 1, 3} if budget is None else keys
    named = [row for row in rows if row["kind"] == "doubled"]
    assert named
    for row in rows:
        one, other = (row[f"{side}_tuple"] for side in ("winner", "loser"))
        assert one != other
        assert {msgpack.unpackb(t)[1] for t in (one, other) if t is not None} == {1}
    # The operator drops the bucket on one side.
    cluster.storages[source].delete(512, 1, at=cluster._now())
    cluster.close()
    deployment.run()
    assert doubled(deployment) == {}


@pytest.mark.parametrize("first", ["a1", "b1"])
def test_a_log_that_lags_doubles_nothing(tmp_path: Path, first: str) -> None:
    cluster = busy(tmp_path, 5, moves=5)
    deployment = cluster.deployment(tmp_path)
    other = next(name for name in cluster.names if name != first)
    path = deployment.sources.pop(other)
    deployment.run()
    deployment.sources[other] = path
    deployment.run(300)
    check(deployment, cluster)
    assert all(row["doubled_with"] is None for row in deployment.rows("_vshard"))


def test_kills_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = busy(tmp_path, 3, moves=5)
    restarted, dice = Restarted(cluster.deployment(tmp_path), monkeypatch), random.Random(3)
    done = 0
    while not done:
        with suppress(KilledError):
            restarted.run(900, dice.randrange(1, 40))
            done = 1
    check(restarted.deployment, cluster)
    assert restarted.kills


def test_a_key_is_there_once_while_its_bucket_is_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both logs are read in step: what the source has deleted, the destination has inserted long before."""
    cluster = Cluster(tmp_path, 7)
    for key in range(24):
        cluster.put(USERS, key)
    keys = {key for space, key in cluster.rows if space == USERS}
    deployment = cluster.deployment(tmp_path)
    monkeypatch.setattr(cluster, "write_elsewhere", lambda _: cluster.close())
    for bucket in sorted(cluster.owner):
        target = next(name for name in cluster.names if name != cluster.owner[bucket])
        cluster.send(bucket, target, fails_after=2 if bucket % 3 == 0 else None)
        cluster.close()
        deployment.run()
        cluster.collect()
        cluster.close()
    deployment.run(1)
    path = str(tmp_path / "warehouse" / "aggregator.db" / "users")
    named = [dict(row["versions"]) for row in deployment.rows("_epochs")]
    versions: set[int] = {one["users"] for one in named if "users" in one}
    seen = 0
    for version in sorted(versions):
        found = [
            msgpack.unpackb(t)[0]
            for t in DeltaTable(path, version=version).to_pyarrow_table()["_tuple"].to_pylist()
        ]
        assert len(found) == len(set(found))
        seen += set(found) == keys
        if version > min(versions):
            assert set(found) == keys
    assert seen >= len(versions) - 1 > 5


def keys_of(deployment: Deployment) -> list[int]:
    return sorted(msgpack.unpackb(row["_tuple"])[0] for row in deployment.rows("users", ["_tuple"]))


@pytest.mark.parametrize("rounds", partly_soaked([6], [10, 20]))
@pytest.mark.parametrize("seed", partly_soaked([0], [1]))
def test_a_key_is_there_once_whichever_log_is_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int
) -> None:
    cluster = Cluster(tmp_path, seed, count=3)
    for key in range(24):
        cluster.put(USERS, key)
    keys = sorted(key for space, key in cluster.rows if space == USERS)
    deployment = cluster.aggregated(tmp_path)
    monkeypatch.setattr(cluster, "write_elsewhere", lambda _: None)
    monkeypatch.setattr(vshard, "MOVE_WAIT", timedelta(hours=1))
    waited = 0
    for _ in range(rounds):
        bucket = cluster.dice.choice(sorted(set(cluster.owner) - {b for _, b in cluster.garbage}))
        target = cluster.dice.choice([name for name in cluster.names if name != cluster.owner[bucket]])
        cluster.send(bucket, target, fails_after=cluster.dice.choice((None, None, 2)))
        if cluster.dice.random() < 0.7:
            cluster.collect()
        cluster.close(cluster.dice.choice(cluster.names))
        deployment.run()
        assert keys_of(deployment) == keys
        waited += bool(deployment.rows("_pending"))
    assert waited
    cluster.collect()
    cluster.close()
    deployment.run()
    assert deployment.rows("_pending") == []
    check(deployment, cluster)


def send_one(cluster: Cluster) -> tuple[str, str]:
    """Send a bucket and collect it; return source and target."""
    source, target = cluster.owner[1], next(name for name in cluster.names if name != cluster.owner[1])
    cluster.send(1, target)
    cluster.collect()
    return source, target


def test_a_source_waits_a_minute_for_the_destination(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(tmp_path, count=2)
    for key in range(12):
        cluster.put(USERS, key)
    deployment = cluster.aggregated(tmp_path)
    source, target = send_one(cluster)
    cluster.storages[source].put(SETTINGS, 1, 1, at=cluster.at + 40)
    cluster.close(source)
    deployment.run()
    (reason,) = {row["reason"] for row in deployment.rows("_pending")}
    assert reason == f"bucket 1 of vshard went to {cluster.uuids[target]}, whose log is not read as far"
    assert keys_of(deployment) == list(range(12))
    assert "missing" not in caplog.text
    cluster.storages[source].put(SETTINGS, 2, 1, at=cluster.at + 70)
    cluster.close(source)
    deployment.run()
    assert deployment.rows("_pending") == []
    assert len(keys_of(deployment)) == 10
    assert "keys of the bucket are missing until it catches up" in caplog.text
    cluster.close()
    deployment.run()
    assert keys_of(deployment) == list(range(12))


def test_a_source_does_not_wait_for_a_replicaset_that_is_not_read(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, count=2)
    for key in range(12):
        cluster.put(USERS, key)
    _, target = send_one(cluster)
    cluster.close()
    deployment = cluster.deployment(tmp_path)
    deployment.sources.pop(target)
    deployment.run()
    assert deployment.rows("_pending") == []
    assert not any(key % 6 == 0 for key in keys_of(deployment))


def test_conflicts_of_spaces_that_are_not_sharded_stay(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for name in cluster.names:
        cluster.storages[name].put(SETTINGS, 1, 1 if name == "a1" else 2, at=cluster._now())
    deployment = cluster.aggregated(tmp_path)
    assert [row["space"] for row in deployment.rows("_conflicts")] == ["settings"]


def test_a_space_named_bucket_that_is_not_vshards_is_a_space(tmp_path: Path) -> None:
    format_ = (("id", "unsigned"), ("color", "string"))
    nodes = [Node(tmp_path, name).define(512, "_bucket", format_) for name in ("a1", "b1")]
    for number, node in enumerate(nodes):
        node.put(512, 1, f"color {number}", at=2.0 + number).close()
    deployment = Deployment.aggregated(tmp_path, *nodes)
    assert len(deployment.rows("_conflicts")) == 1
    assert deployment.rows("_vshard") == []


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "cut"])
def test_a_doubled_bucket_has_no_tuple_that_left_it(tmp_path: Path, is_cut: bool) -> None:
    """A tuple goes to another bucket, and wins: the version that had lost before is still in `_versions`."""
    cluster = Cluster(tmp_path, buckets=4)
    source, target = "b1", "a1"
    own, other = cluster.storages[source], cluster.storages[target]
    assert cluster.owner[1] == source
    own.put(USERS, 1, 1, 7, at=cluster._now())
    other.put(USERS, 1, 2, 8, at=cluster._now())
    deployment = cluster.aggregated(tmp_path)
    own.put(USERS, 1, 3, 9, at=cluster._now()).put(USERS, 4, 1, 9, at=cluster._now())
    if is_cut:
        cluster.close()
        deployment.run()
    other.put(BUCKET, 1, "active", at=cluster._now())
    for storage in (own, other):
        storage.put(SETTINGS, 1, 1, at=cluster._now() + 100)
    cluster.close()
    deployment.run()
    assert doubled(deployment) == {1: set(ids_of(deployment, cluster).values())}
    rows = [row for row in deployment.rows("_conflicts") if row["kind"] == "doubled"]
    keys = [msgpack.unpackb(row["winner_tuple"] or row["loser_tuple"]) for row in rows]
    assert keys == [[4, 1, 9]]


def mutual_moves(folder: Path, *, is_sent_first: bool) -> tuple[Deployment, Cluster]:
    """Each of two replicasets sends the other one a bucket at once; `is_sent_first` as vshard does since 0.1.24."""
    cluster = Cluster(folder, count=2)
    for key in range(12):
        cluster.put(USERS, key)
    deployment = cluster.deployment(folder)
    cluster.close()
    deployment.run()
    pairs = [(bucket, cluster.owner[bucket], other) for bucket, other in ((1, "a1"), (2, "b1"))]
    assert all(source != target for _, source, target in pairs)
    for bucket, source, target in pairs:
        cluster.storages[source].set_status(bucket, "readonly", None, {"generation": 2}, at=cluster._now())
        cluster.storages[source].set_status(bucket, "sending", cluster.uuids[target], at=cluster._now())
    for bucket, source, target in pairs:
        cluster.storages[target].insert(BUCKET, bucket, "receiving", cluster.uuids[source], at=cluster._now())
        for space_id, tuples in cluster.tuples_of_bucket(bucket).items():
            for fields in tuples:
                cluster.storages[target].insert(space_id, *fields, at=cluster._now())
    for is_source in (True, False) if is_sent_first else (False, True):
        for bucket, source, target in pairs:
            if is_source:
                cluster.storages[source].set_status(bucket, "sent", cluster.uuids[target], at=cluster._now())
                cluster.garbage.append((source, bucket))
            else:
                cluster.storages[target].update(
                    BUCKET, bucket, ["=", 1, "active"], ["=", 3, {"generation": 3}], at=cluster._now()
                )
                cluster.owner[bucket] = target
    cluster.collect()
    return deployment, cluster


@pytest.mark.parametrize("is_sent_first", [False, True])
@pytest.mark.parametrize("order", partly_soaked(["a1", "cut"], ["together", "b1"]))
def test_two_replicasets_send_buckets_to_each_other(tmp_path: Path, order: str, is_sent_first: bool) -> None:
    deployment, cluster = mutual_moves(tmp_path, is_sent_first=is_sent_first)
    keys = list(range(12))
    if order in cluster.names:
        cluster.close(order)
        deployment.run()
        assert keys_of(deployment) == keys
    cluster.close()
    while order == "cut" and deployment.run(1, 1):
        assert keys_of(deployment) == keys
    deployment.run()
    assert deployment.rows("_pending") == []
    assert keys_of(deployment) == keys
    assert all(row["doubled_with"] is None for row in deployment.rows("_vshard"))
    newest = {
        (row["replicaset_id"], row["bucket_id"]): row["status"]
        for row in sorted(deployment.rows("_vshard"), key=lambda row: int(row["epoch"]))
    }
    assert set(newest.values()) == {"active", None}


def test_clocks_of_two_servers_may_differ(tmp_path: Path) -> None:
    """By the destination's clock, which is behind, it received the bucket before the source had it."""
    cluster = Cluster(tmp_path, count=2)
    source, target = cluster.storages["a1"], cluster.storages["b1"]
    deployment = cluster.aggregated(tmp_path)
    at = cluster._now()
    source.insert(BUCKET, 7, "active", at=at).insert(USERS, 100, 7, 1, at=at)
    source.set_status(7, "sending", cluster.uuids["b1"], at=at)
    target.insert(BUCKET, 7, "receiving", cluster.uuids["a1"], at=at - 0.9)
    target.insert(USERS, 100, 7, 1, at=at - 0.9)
    target.set_status(7, "active", at=at - 0.9)
    source.set_status(7, "sent", cluster.uuids["b1"], at=at)
    source.delete(USERS, 100, at=at).delete(BUCKET, 7, at=at)
    cluster.close()
    deployment.run()
    assert deployment.rows("_pending") == []
    assert keys_of(deployment) == [100]
    assert all(row["doubled_with"] is None for row in deployment.rows("_vshard"))


def test_waiting_rows_are_looked_at_again_although_no_log_gets_rows(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, count=2)
    for key in range(12):
        cluster.put(USERS, key)
    deployment = cluster.aggregated(tmp_path)
    source, target = send_one(cluster)
    sent = datetime.fromtimestamp(BEGAN + cluster.at, UTC)
    cluster.close(source)
    deployment.run()
    waiting = len(deployment.rows("_pending"))
    assert waiting
    with deployment.writer() as (_, writer):
        moves = PendingMoves(writer)
        assert moves.look_again_if_due() == 0
        moves.look_again(sent - timedelta(seconds=5))
    assert len(deployment.rows("_pending")) == waiting
    with deployment.writer() as (_, writer):
        assert PendingMoves(writer).look_again(sent + vshard.MOVE_WAIT) == waiting
        assert PendingMoves(writer).look_again(sent + vshard.MOVE_WAIT) == 0
    assert deployment.rows("_pending") == []
    cluster.close(target)
    deployment.run()
    assert keys_of(deployment) == list(range(12))

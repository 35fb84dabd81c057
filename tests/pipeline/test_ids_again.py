"""Ids that are given to another instance, and starts in between: each row stays that of the instance that wrote it."""

from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from pipeline.commit.load import load_state
from schemas.iproto import RequestType, SystemSpace
from sources.xlog.format.block import encode_block
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.pipeline.deployment import Deployment
from tests.sources.xlog.logs import SPACE, Server, replicaset_of, uuid_of


class Master(Server):
    """A member that registers others."""

    def register(self, replica_id: int, name: str) -> None:
        self.system(SystemSpace.CLUSTER, [replica_id, uuid_of(name)])

    def expel(self, replica_id: int) -> None:
        lsn = self.vclock[1] = self.vclock[1] + 1
        body = encode_body(space_id=SystemSpace.CLUSTER, key=msgpack.packb([replica_id]))
        self.append(encode_block(encode_row(RequestType.DELETE, body, timestamp=1.0, replica_id=1, lsn=lsn)))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_an_id_of_an_instance_that_never_wrote(tmp_path: Path, count: int) -> None:
    names = [f"a{number}" for number in range(2, 2 + count)]
    master = Master(tmp_path / "a1")
    master.register(1, "a1")
    deployment = Deployment(tmp_path, {"a1": master.path}, {"a1": replicaset_of("a1")})
    for name in names:
        master.register(2, name)
        deployment.run()
        master.expel(2)
    master.register(2, names[-1])
    deployment.run()
    with deployment.writer() as (warehouse, _):
        (one,) = load_state(warehouse).replicasets.values()
        assert one.cluster == {1: uuid_of("a1"), 2: uuid_of(names[-1])}
    master.write(2, rows=3)
    deployment.run()
    ids = {row["uuid"]: row["global_id"] for row in deployment.rows("_cluster")}
    rows = [row for row in deployment.rows("_changelog") if row["space_id"] == SPACE]
    assert [row["global_id"] for row in rows] == [ids[uuid_of(names[-1])]] * 3


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("reads_on", ["a1", "a2"])
def test_an_id_that_was_given_to_another_one_in_logs_that_are_gone(
    tmp_path: Path, rows: int, reads_on: str
) -> None:
    """A snapshot continues the tables: no member gives the id to another instance than the others do."""
    members = {name: Master(tmp_path / name, name) for name in ("a1", "a2")}
    for one in members.values():
        for replica_id in (1, 2, 3):
            one.register(replica_id, f"a{replica_id}")
        one.write(3, rows=rows)
    paths = {name: one.path for name, one in members.items()}
    deployment = Deployment(tmp_path, paths, dict.fromkeys(paths, replicaset_of("a1")))

    deployment.run()
    for one in members.values():
        one.expel(3)
        one.register(3, "a4")
        one.write(3).rotate()
        for log in one.path.glob("*.xlog"):
            log.unlink()
        one.snapshot(cluster={1: "a1", 2: "a2", 3: "a4"})
        one.write(3, rows=2)
    if reads_on == "a2":
        del deployment.sources["a1"]
        deployment.offset = {}  # with the checkpoint gone, too, another member's snapshot continues the tables
    deployment.run()
    uuids = {row["global_id"]: row["uuid"] for row in deployment.rows("_cluster")}
    found = {
        row["lsn"]: uuids[row["global_id"]] for row in deployment.rows("_changelog") if row["replica_id"] == 3
    }
    expected = {lsn: uuid_of("a3") for lsn in range(1, rows + 1)}
    assert found == expected | {lsn: uuid_of("a4") for lsn in (rows + 2, rows + 3)}
    with deployment.writer() as (warehouse, _):
        (known,) = load_state(warehouse).replicasets.values()
        assert known.cluster == {1: uuid_of("a1"), 2: uuid_of("a2"), 3: uuid_of("a4")}
        assert not known.has_waiting_rows


@pytest.mark.parametrize("restarts", [False, True], ids=["one run", "a start for each batch"])
def test_an_instance_of_two_replicasets_that_the_second_one_expels(tmp_path: Path, restarts: bool) -> None:
    """`_cluster` has its row under the first replicaset; after a start the second one has lost it all the same."""
    first, second = Master(tmp_path / "a1"), Master(tmp_path / "b1", "b1")
    deployment = Deployment(
        tmp_path,
        {"a1": first.path, "b1": second.path},
        {name: replicaset_of(name) for name in ("a1", "b1")},
    )
    for one in (first, second):
        one.register(1, one.name)
        one.register(2, "a2")
    deployment.run()
    kept = {1: uuid_of("b1")}
    steps: list[tuple[Callable[[], None], dict[int, str]]] = [
        (lambda: second.expel(2), kept),
        (lambda: second.register(2, "a2"), kept | {2: uuid_of("a2")}),
        (lambda: second.expel(2), kept),
        (lambda: second.register(3, "a2"), kept | {3: uuid_of("a2")}),
        (lambda: second.register(2, "b4"), kept | {2: uuid_of("b4"), 3: uuid_of("a2")}),
    ]
    for number, (change, expected) in enumerate(steps, start=1):
        change()
        if not restarts and number < len(steps):
            continue
        deployment.run()
        with deployment.writer() as (warehouse, _):
            found = load_state(warehouse).replicasets
        assert found[replicaset_of("b1")].cluster == expected
        assert found[replicaset_of("a1")].cluster == {1: uuid_of("a1"), 2: uuid_of("a2")}


def test_the_id_of_an_expelled_instance_of_two_replicasets_is_given_to_another_one(tmp_path: Path) -> None:
    """The members of the second replicaset agree, so no id above Tarantool's is needed, also after a start."""
    first, names = Master(tmp_path / "a1"), ("b1", "b2")
    members = {name: Master(tmp_path / name, name) for name in names}
    paths = {"a1": first.path, **{name: one.path for name, one in members.items()}}
    deployment = Deployment(tmp_path, paths, {name: replicaset_of(name) for name in paths})
    first.register(1, "a1")
    first.register(2, "a2")
    for one in members.values():
        one.register(1, "b1")
        one.register(2, "a2")
        one.register(3, "b2")
    deployment.run()
    for one in members.values():
        one.expel(2)
        one.write(1)
    deployment.run()
    for one in members.values():
        one.register(2, "b3")
        one.write(2)
    deployment.run()
    with deployment.writer() as (warehouse, _):
        loaded = load_state(warehouse).replicasets[replicaset_of("b1")]
    assert loaded.cluster == {1: uuid_of("b1"), 2: uuid_of("b3"), 3: uuid_of("b2")}
    assert loaded.id_translations == {}


@pytest.mark.parametrize("is_apart", [True, False])
def test_the_vclock_of_an_instance_that_is_expelled_in_the_batch_of_its_last_rows(
    tmp_path: Path, is_apart: bool
) -> None:
    master = Master(tmp_path / "a1")
    for replica_id in (1, 2):
        master.register(replica_id, f"a{replica_id}")
    deployment = Deployment(tmp_path, {"a1": master.path}, {"a1": replicaset_of("a1")})
    master.write(2)
    deployment.run()
    master.write(2, rows=5)
    if is_apart:
        deployment.run()
    master.expel(2)
    master.register(2, "a3")
    master.write(2, rows=3)
    deployment.run()
    ids = {row["global_id"]: row["uuid"] for row in deployment.rows("_cluster")}
    newest = {}
    for row in sorted(deployment.rows("_vclock"), key=lambda row: int(row["epoch"])):
        newest[ids[row["global_id"]], row["local_id"]] = row["lsn"]
    assert newest[uuid_of("a2"), 2] == 6
    assert newest[uuid_of("a3"), 2] == 9

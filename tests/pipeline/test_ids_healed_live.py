"""Real servers: an instance that was expelled and came back under another id, and a snapshot that heals the tables."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgpack
import pytest

from pipeline.requests.snapshots import heal
from tests.live.replicaset import Servers, uuid
from tests.pipeline.deployment import Deployment

pytestmark = pytest.mark.live


@pytest.fixture
def returned(tmp_path: Path) -> Iterator[Servers]:
    """Yield a master; m2 was expelled after 9 rows with id 2, n1 got this id, and m2 came back with id 3."""
    with ExitStack() as stack:
        servers = Servers(tmp_path / "servers", stack)
        servers.start("m1", 1)
        servers["m1"].eval("box.schema.space.create('s'):create_index('p', {parts = {1, 'string'}})")
        for name, number in (("m2", 2), ("n1", 3), ("m2 again", 2)):
            servers.start(name, number, "m1")
            servers.follow("m1", name)
            for row in range(9 if name == "m2" else 2):
                servers.write(name, f"k{row}")
            servers.await_same_vclock("m1", name)
            servers.follow("m1")
            servers[name].stop()
            if name == "m2":
                servers["m1"].eval("box.space._cluster:delete(2)")
        assert servers.cluster("m1") == {1: uuid(1), 2: uuid(3), 3: uuid(2)}
        yield servers


def held(servers: Servers) -> list[list[object]]:
    return [list(row) for row in servers["m1"].eval("return box.space.s:select()")]


def test_rows_of_the_old_id_are_not_applied_over_the_snapshot(returned: Servers, tmp_path: Path) -> None:
    servers = returned
    for row in range(9):
        servers.write("m1", f"k{row}")
    servers["m1"].eval("box.space.s:delete('k8') box.snapshot()")
    servers.write("m1", "k1")
    servers.write("m1", "k9")
    deployment = Deployment(tmp_path, {"m1": servers.root / "m1"})
    deployment.run()
    with deployment.writer() as (warehouse, writer):
        message = heal(deployment.config(), warehouse, writer, "m1", "heal")
    assert "and 2 later rows applied again" in message
    tuples = [msgpack.unpackb(row["_tuple"]) for row in deployment.rows("s", ["_tuple"])]
    assert sorted(tuples) == held(servers)

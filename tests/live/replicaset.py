"""Real servers of one replicaset that tests start, stop and disconnect, as in case (a) of document 001."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.live.server import Tarantool

REPLICASET = str(UUID(int=0xA << 124 | 4 << 76 | 8 << 60))
SECONDS = 30.0


def uuid(number: int) -> str:
    """Return the uuid of an instance by its number."""
    return str(UUID(int=0xB << 124 | 4 << 76 | 8 << 60 | number))


def await_true(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true; fail after 30 seconds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"the servers did not reach the expected state in {SECONDS} s"
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

    def await_same_vclock(self, name: str, other: str) -> None:
        """Wait until two servers have the same rows."""
        await_true(lambda: self.vclock(name) == self.vclock(other))

    def write(self, name: str, key: str) -> None:
        # A server that has just joined is read-only until it has the rows of its masters.
        self[name].eval("box.ctl.wait_rw(30) box.space.s:replace({...})", key, name)


def case_a(servers: Servers) -> None:
    """Let each of two disconnected masters register a replica, so that both replicas get the same id.

    The replicas are r1 (uuid 3) and r2 (uuid 4); each of them writes a row, and then its master another one.
    """
    servers.follow("m1")
    servers.follow("m2")
    for replica, number, master in (("r1", 3, "m1"), ("r2", 4, "m2")):
        servers.start(replica, number, master)
        servers.follow(master, replica)
        servers.write(replica, f"of {replica}")
        servers.await_same_vclock(master, replica)
        servers.write(master, f"more of {master}")
    assert servers.cluster("m1") == {1: uuid(1), 2: uuid(2), 3: uuid(3)}
    assert servers.cluster("m2") == {1: uuid(1), 2: uuid(2), 3: uuid(4)}
    for server in servers.by_name.values():
        server.stop()


@contextmanager
def two_masters(root: Path) -> Iterator[Servers]:
    """Yield two masters that replicate each other, with a space `s`, and snapshots at the same vclock."""
    with ExitStack() as stack:
        servers = Servers(root, stack)
        servers.start("m1", 1)
        servers["m1"].eval("box.schema.space.create('s'):create_index('p', {parts = {1, 'string'}})")
        servers["m1"].eval("box.space.s:format({{'id', 'string'}, {'by', 'string'}})")
        servers.start("m2", 2, "m1")
        servers.follow("m1", "m2")
        servers.write("m1", "of m1")
        servers.write("m2", "of m2")
        servers.await_same_vclock("m1", "m2")
        for master in ("m1", "m2"):
            servers[master].eval("box.snapshot()")
        yield servers

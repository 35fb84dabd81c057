"""Two replicasets of real servers, their warehouse, the node's stream of it, and real servers that follow.

Batches are done in this process, without Spark. Not here: what is tested.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgpack

from pipeline.replication_out.stream import Stream
from pipeline.replication_out.users import SubscriberUser
from pipeline.replication_out.writer import ReplicationWriter
from sources.relay.server import Relay
from tests.live.server import Tarantool
from tests.pipeline.deployment import Deployment
from tests.sources.relay.test_relay import serving
from tests.sources.subscribe.following import await_until
from warehouse.system_tables.cluster import load
from warehouse.warehouse import Warehouse

READERS = (SubscriberUser("guest", executes=True),)
"""The tests' client evaluates Lua as guest, over a private socket."""

ACCOUNTS = """
    local s = box.schema.space.create('accounts')
    s:format({{'id', 'unsigned'}, {'name', 'string'}, {'balance', 'number', is_nullable = true}})
    s:create_index('pk', {parts = {'id'}})
    s:create_index('name', {parts = {'name'}, unique = true})
"""


def replicaset_uuid(name: str) -> str:
    return str(UUID(int=int(name, 16) << 124 | 4 << 76 | 8 << 60))


def instance_uuid(name: str) -> str:
    return str(UUID(int=int(name, 16) << 124 | 4 << 76 | 8 << 60 | 1))


class World:
    """Replicasets `a` and `b` of one master each, and what comes of them.

    Args:
        stack: Ends the servers.
        **settings: Of the deployment.
    """

    def __init__(self, root: Path, stack: ExitStack, **settings: Any) -> None:
        self.root, self._stack = root, stack
        self.masters = {name: self._master(name) for name in "ab"}
        sources = {name: root / name for name in self.masters}
        self.deployment = Deployment(root, sources, **({"start": "logs"} | settings))
        self.warehouse = Warehouse(None, str(root / "warehouse"))
        self.directory, self.socket = root / "stream", root / "relay.sock"

    def _master(self, name: str) -> Tarantool:
        cfg = {
            "instance_uuid": instance_uuid(name),
            "replicaset_uuid": replicaset_uuid(name),
            "checkpoint_interval": 0,
            "memtx_memory": 512 << 20,
        }
        return self._stack.enter_context(Tarantool(self.root / name, cfg=cfg))

    def eval(self, name: str, lua: str, *arguments: Any) -> Any:
        return self.masters[name].eval(lua, *arguments)

    def settle(self) -> int:
        """Do a batch of what the masters have written; return how many had rows."""
        return self.deployment.run()

    @contextmanager
    def writing(self, **options: Any) -> Iterator[ReplicationWriter]:
        with Stream(self.directory) as stream:
            yield ReplicationWriter(self.warehouse, stream, READERS, **options)

    def advance(self, **options: Any) -> None:
        """Bring the stream to the newest epoch, by a writer of its own."""
        with self.writing(**options) as writer:
            while writer.advance():
                pass

    @contextmanager
    def serving(self, **other: Any) -> Iterator[Relay]:
        with serving(self.directory, self.socket, **other) as relay:
            yield relay

    @contextmanager
    def subscriber(self, binary: str | None, name: str = "subscriber") -> Iterator[Tarantool]:
        """Run a server that follows."""
        with Tarantool(self.root / name, cfg=self.subscriber_cfg(), binary=binary) as server:
            yield server

    def subscriber_cfg(self) -> dict[str, Any]:
        """Return the settings of an anonymous replica of the stream."""
        return {
            "replication": [f"unix/:{self.socket}"],
            "replication_anon": True,
            "read_only": True,
            "replication_timeout": 0.5,
            "memtx_memory": 512 << 20,
        }

    def await_epoch(self, subscriber: Tarantool, writer: ReplicationWriter) -> None:
        """Wait until a subscriber has what is written."""
        wanted = {i: lsn for i, lsn in writer.stream.vclock.items() if lsn}
        await_until(lambda: vclock_of(subscriber) == wanted, f"the subscriber at {wanted}")

    def await_stopped(self, subscriber: Tarantool) -> None:
        """Wait until a subscriber says that it cannot continue from what it has."""

        def is_stopped() -> bool:
            found = subscriber.eval(
                "return box.info.replication[...].upstream.message", self.global_ids()["own"]
            )
            return found is not None and "Missing .xlog" in found

        await_until(is_stopped, "the end of the stream")

    def check(self, subscriber: Tarantool, *spaces: str) -> None:
        """Compare a subscriber's tuples with those of the tables."""
        for space in spaces:
            expected = sorted(self.deployment.tuples(space))
            assert tuples_of(subscriber, space) == expected, space

    def global_ids(self) -> dict[str, int]:
        """Return the global ids of the masters by name, and the aggregator's own as `own`."""
        cluster = load(self.warehouse)
        found = {name: cluster.global_ids[instance_uuid(name)] for name in self.masters}
        assert cluster.own_member is not None
        assert cluster.own_member.global_id is not None
        return found | {"own": cluster.own_member.global_id}


def vclock_of(server: Tarantool) -> dict[int, int]:
    """Return a server's vclock without component 0."""
    found: Any = server.eval("return setmetatable(box.info.vclock, {__serialize = 'map'})")
    pairs: Mapping[int, int] = dict(enumerate(found, start=1)) if isinstance(found, list) else found
    return {int(i): int(lsn) for i, lsn in pairs.items() if i and lsn}


def tuples_of(server: Tarantool, space: str) -> list[bytes]:
    """Return the tuples of a space as bytes, sorted."""
    body = {
        0x10: server.eval("return box.space[...].id", space),
        0x11: 0,
        0x12: 2**32 - 1,
        0x13: 0,
        0x14: 2,
        0x20: [],
    }
    connection = server.connect()
    try:
        answer = connection.request(0x01, msgpack.packb(body))
    finally:
        connection.close()
    return sorted(msgpack.packb(one, unicode_errors="surrogateescape") for one in answer[0x30])


@contextmanager
def world(root: Path, **settings: Any) -> Iterator[World]:
    """Yield two replicasets with a space `accounts` each."""
    with ExitStack() as stack:
        found = World(root, stack, **settings)
        for name in found.masters:
            found.eval(name, ACCOUNTS)
        yield found

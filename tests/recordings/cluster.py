"""Two replicasets of two masters each, full mesh inside, no link between: real servers for a recording.

Replica ids 1 and 2 exist in both replicasets, under different instance uuids. Not here: what is written to
them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live import Tarantool

LUA = Path(__file__).with_name("lua")
SETTLE_SECONDS = 120.0
POLL_SECONDS = 0.003


@dataclass(frozen=True)
class RecordedMaster:
    """One master: its name (`a1`), its side (`A`), its replica id, and the running server."""

    name: str
    side: str
    replica_id: int
    server: Tarantool

    def eval(self, expression: str, *arguments: Any) -> Any:
        """Run Lua on the server."""
        return self.server.eval(expression, *arguments)

    def run(self, function: str, *arguments: Any) -> Any:
        """Call `module.function` of the recording's Lua."""
        return self.eval(call_of(function), *arguments)


def call_of(function: str) -> str:
    """Return the Lua that calls `module.function` with the arguments of the EVAL."""
    module, name = function.split(".")
    return f"return require('{module}').{name}(...)"


@dataclass(frozen=True)
class Cluster:
    """The running masters by name."""

    members: Mapping[str, RecordedMaster]

    def __getitem__(self, name: str) -> RecordedMaster:
        return self.members[name]

    def side(self, side: str) -> list[RecordedMaster]:
        return [member for member in self.members.values() if member.side == side]

    def together(self, calls: Sequence[tuple[str, str, Any]]) -> list[Any]:
        """Run calls (name, `module.function`, argument) on several servers at one time."""
        for name, function, argument in calls:
            self[name].server.connection.send(call_of(function), argument)
        return [self[name].server.connection.receive() for name, _, _ in calls]

    def settle(self) -> None:
        """Wait until the members of each replicaset have each other's rows.

        Raises:
            RuntimeError: Where replication stopped, or took too long.
        """
        for side in ("A", "B"):
            deadline = time.monotonic() + SETTLE_SECONDS
            while not self._is_settled(side):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"replicaset {side} did not settle")
                time.sleep(POLL_SECONDS)

    def _is_settled(self, side: str) -> bool:
        vclocks = []
        for member in self.side(side):
            vclock, upstreams = member.eval("return box.info.vclock, box.info.replication")
            stopped = [
                r for r in as_map(upstreams).values() if (r.get("upstream") or {}).get("status") == "stopped"
            ]
            if stopped:
                raise RuntimeError(f"replication of {member.name} stopped: {stopped}")
            vclocks.append({component: lsn for component, lsn in as_map(vclock).items() if component != 0})
        return all(vclock == vclocks[0] for vclock in vclocks)


def as_map(table: Any) -> dict[int, Any]:
    """Return a Lua table as a dict: {1: x, 2: y} comes as an array."""
    if isinstance(table, list):
        return {index + 1: value for index, value in enumerate(table) if value is not None}
    return dict(table)


def instance_uuid(side: str, replica_id: int) -> str:
    """Return the fixed uuid of an instance; replica id 0 gives the replicaset's own."""
    return f"{side.lower()}0000000-0000-4000-8000-{replica_id:012x}"


@contextmanager
def running(directory: Path, sockets: Path, wal_max_size: int) -> Iterator[Cluster]:
    """Start the four masters below `directory`; stop each cleanly at the end, also after an error.

    Args:
        directory: Gets one directory a member: `a1`, `a2`, `b1`, `b2`.
        sockets: A private directory for sockets and servers' logs; its path must be short (108 bytes with the name).
        wal_max_size: Bytes after which a server begins another log.
    """
    with ExitStack() as stack:
        members: dict[str, RecordedMaster] = {}
        for side in ("A", "B"):
            names = [f"{side.lower()}{number}" for number in (1, 2)]
            uris = [f"unix/:{sockets}/{name}" for name in names]
            for replica_id, name in enumerate(names, start=1):
                server = Tarantool(
                    directory / name,
                    socket=f"{sockets}/{name}",
                    lua_path=LUA,
                    cfg={
                        "instance_uuid": instance_uuid(side, replica_id),
                        "replicaset_uuid": instance_uuid(side, 0),
                        "replication": uris[:replica_id],
                        "replication_connect_quorum": replica_id,
                        "wal_max_size": wal_max_size,
                        "checkpoint_count": 1000,
                        "checkpoint_interval": 0,
                        "memtx_memory": 1 << 30,
                    },
                )
                stack.enter_context(server)
                members[name] = RecordedMaster(name, side, replica_id, server)
            members[names[0]].eval("box.cfg({replication = ...})", uris)
        cluster = Cluster(members)
        cluster.settle()
        yield cluster

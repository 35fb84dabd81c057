"""Masters in a full mesh for tests, each on a unix socket of its own."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.replicaset import await_true
from tests.live.server import Tarantool

REPLICASET = "aaaaaaaa-0000-4000-8000-000000000000"
SPACE = """
    box.schema.space.create('load', {if_not_exists = true}):create_index('pk', {if_not_exists = true})
"""


KEEP_NO_LOGS = "if box.cfg.wal_cleanup_delay ~= nil then box.cfg{wal_cleanup_delay = 0} end\n"
"""By default, servers from 2.6.3 on keep all logs for hours after their start."""


def instance_uuid(number: int) -> str:
    return f"aaaaaaaa-0000-4000-8000-{number:012}"


@dataclass
class Mesh:
    """Masters 1..n by number."""

    members: dict[int, Tarantool]

    def __getitem__(self, number: int) -> Tarantool:
        return self.members[number]

    def vclock(self, number: int) -> dict[int, int]:
        """Return the vclock of a master, without component 0."""
        found: Any = self.members[number].eval("return setmetatable(box.info.vclock, {__serialize = 'map'})")
        pairs: Mapping[int, int] = dict(enumerate(found, start=1)) if isinstance(found, list) else found
        return {int(i): int(lsn) for i, lsn in pairs.items() if i and lsn}

    def cluster(self, number: int) -> dict[int, str]:
        """Return {replica id: instance uuid} from a master's `_cluster`."""
        return {row[0]: row[1] for row in self.members[number].eval("return box.space._cluster:select()")}

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT to a master."""
        os.kill(self.members[number].pid, what)


@contextmanager
def mesh(directory: Path, count: int = 3, cfg: Mapping[str, Any] | None = None) -> Iterator[Mesh]:
    """Run masters 1 to `count` that replicate each other, with a space `load` with an unsigned primary key."""
    sockets = {n: str(directory / f"{n}.sock") for n in range(1, count + 1)}
    members: dict[int, Tarantool] = {}
    with ExitStack() as stack:
        for n, path in sockets.items():
            options: dict[str, Any] = {
                "instance_uuid": instance_uuid(n),
                "replicaset_uuid": REPLICASET,
                "replication_timeout": 0.5,
                "replication_connect_quorum": 0,
                "replication": [f"unix/:{sockets[m]}" for m in range(1, n)],
                "memtx_memory": 128 << 20,
            }
            lua = KEEP_NO_LOGS + (SPACE if n == 1 else "")
            members[n] = Tarantool(directory / str(n), cfg=options | dict(cfg or {}), lua=lua, socket=path)
            stack.enter_context(members[n])
        uris = [f"unix/:{path}" for path in sockets.values()]
        for member in members.values():
            member.eval("box.cfg{replication = ...}", uris)
        masters = Mesh(members)
        registered = {number: instance_uuid(number) for number in members}
        await_true(lambda: all(masters.cluster(number) == registered for number in members))
        yield masters

"""A master and its read-only replica, as most users have them, on TCP ports behind proxies."""

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.mesh import KEEP_NO_LOGS, REPLICASET, instance_uuid
from tests.live.proxy import Proxy
from tests.live.replicaset import await_true
from tests.live.server import Tarantool

SETUP = (
    KEEP_NO_LOGS
    + """
    box.schema.space.create('t', {if_not_exists = true}):create_index('pk', {if_not_exists = true})
    box.schema.user.create('replicator', {password = 'right', if_not_exists = true})
    box.schema.user.grant('replicator', 'replication', nil, nil, {if_not_exists = true})
"""
)


@dataclass
class Pair:
    """The two servers, and the proxies through which the daemon reaches them."""

    master: Tarantool
    replica: Tarantool
    proxies: tuple[Proxy, Proxy]

    @property
    def addresses(self) -> list[str]:
        """The addresses of the proxies: of the master, of the replica."""
        return [f"127.0.0.1:{proxy.port}" for proxy in self.proxies]

    def write(self, count: int = 5) -> None:
        self.master.eval("for i = 1, ... do box.space.t:replace{i, box.info.lsn} end", count)

    def is_replicated(self) -> bool:
        """Return whether the replica has all rows of the master."""
        return bool(
            self.replica.eval("return box.info.vclock[1]") == self.master.eval("return box.info.vclock[1]")
        )

    def cut(self) -> None:
        """Cut all connections of the daemon, so that it connects again."""
        for proxy in self.proxies:
            proxy.cut()


@contextmanager
def master_and_replica(
    folder: Path,
    binary: str,
    *,
    master: Path | None = None,
    lua: str = "",
    tls: ssl.SSLContext | None = None,
    **cfg: Any,
) -> Iterator[Pair]:
    """Run a master and a read-only replica of a version.

    Args:
        master: The master's folder.
        lua: Further code of the master's start.
        tls: With it, the daemon reaches both by TLS.
        **cfg: Further options of `box.cfg` of both.
    """
    with ExitStack() as stack:
        sockets = [str(folder / f"{name}.sock") for name in ("master", "replica")]
        whole = {"replicaset_uuid": REPLICASET, "replication_timeout": 0.5, **cfg}
        options: list[dict[str, Any]] = [
            {**whole, "instance_uuid": instance_uuid(1)},
            {
                **whole,
                "instance_uuid": instance_uuid(2),
                "read_only": True,
                "replication": [f"unix/:{sockets[0]}"],
            },
        ]
        servers = []
        folders = (master or folder / "master", folder / "replica")
        for path, socket, one, code in zip(
            folders, sockets, options, (SETUP + lua, KEEP_NO_LOGS), strict=True
        ):
            server = Tarantool(path, cfg=one, lua=code, socket=socket, binary=binary)
            servers.append(stack.enter_context(server))
        proxies = tuple(stack.enter_context(Proxy(socket, tls=tls)) for socket in sockets)
        pair = Pair(servers[0], servers[1], (proxies[0], proxies[1]))
        await_true(pair.is_replicated)
        yield pair

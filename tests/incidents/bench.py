"""Where incidents are caused: a pair of servers that the daemon follows, and a server whose logs are copied.

Both are written to all the time, so that silence is an incident. Warehouse, spool and the master have disks of their
own, which can be full.
"""

import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.conditions import Job
from tests.incidents.deployment import Jobs, await_true, committed_problems, jobs
from tests.incidents.machine import ServerClock, small_disk
from tests.incidents.pair import Pair, master_and_replica
from tests.live.certificates import CertificateAuthority, CertificateFiles
from tests.live.client import Connection, TarantoolError
from tests.live.mesh import KEEP_NO_LOGS
from tests.live.server import Tarantool, version_of

HOST = "localhost"
WRITE_SECONDS = 1.0

SPACES = """
    local options = {format = {{'id', 'unsigned'}, {'name', 'string'}}, if_not_exists = true}
    for _, name in ipairs({'names', 'strict'}) do
        box.schema.space.create(name, options):create_index('pk', {if_not_exists = true})
        for i = 1, 5 do box.space[name]:replace{i, 'sound'} end
    end
"""
SECOND = (
    KEEP_NO_LOGS
    + """
    if box.ctl.promote ~= nil then box.ctl.promote() end
    box.schema.space.create('u', {if_not_exists = true}):create_index('pk', {if_not_exists = true})
    box.schema.space.create('ledger', {is_sync = true, if_not_exists = true}):create_index('pk', {if_not_exists = true})
    box.space.u:replace{1, 'begun'}
"""
)


@dataclass
class CopiedServer:
    """A server alone in its replicaset, and the folder that its logs are copied to, which the stream reads."""

    server: Tarantool
    folder: Path
    held_back: set[str] = field(default_factory=set)
    """Files that are not copied."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def copy(self) -> None:
        """Append the server's new rows to each log of the copy."""
        with self.lock:
            for file in sorted(self.server.directory.glob("*.*")):
                target = self.folder / file.name
                is_first_snapshot = file.suffix == ".snap" and not any(self.folder.glob("*.snap"))
                if file.suffix != ".xlog" and not is_first_snapshot and not target.exists():
                    continue
                if file.name not in self.held_back:
                    size = target.stat().st_size if target.exists() else 0
                    with file.open("rb") as source, target.open("ab") as copied:
                        source.seek(size)
                        copied.write(source.read())

    def newest_log(self) -> str:
        """Return the name of the server's newest log."""
        return max(path.name for path in self.server.directory.glob("*.xlog"))


@dataclass
class Bench:
    """The deployment in which incidents are caused."""

    version: str
    folder: Path
    jobs: Jobs
    pair: Pair
    second: CopiedServer
    clock: ServerClock
    """Of the second server."""
    warehouse_disk: Path
    spool_disk: Path
    master_disk: Path
    tls: ssl.SSLContext
    """Of the proxies of the pair."""
    certificates: dict[str, CertificateFiles]
    """`sound` and `expired`."""
    is_master_written: bool = True
    is_second_written: bool = True

    def await_well(self, seconds: float = 60.0) -> float:
        """Wait until nothing needs attention and both jobs answer; return the seconds that it took."""
        last: list[Any] = [None]

        def is_well() -> bool:
            last[0] = committed_problems(self.jobs)
            return last[0] == {} and all(self.jobs.by_page(job) == set() for job in self.jobs.ports)

        return await_true(is_well, lambda: f"the end of {last[0]}\n{self.jobs.end_of_logs()}", seconds)

    def use_certificate(self, name: str) -> None:
        """Have the proxies of the pair show another certificate, and the daemon connect again."""
        one = self.certificates[name]
        self.tls.load_cert_chain(one.cert, one.key)
        self.pair.cut()

    def table(self, name: str) -> Path:
        return self.warehouse_disk / "warehouse" / "aggregator.db" / name


@contextmanager
def bench(folder: Path, binary: str) -> Iterator[Bench]:
    """Run servers of one version, the daemon and the stream, until all is well."""
    with ExitStack() as stack:
        disks = {
            name: stack.enter_context(small_disk(folder / name, size))
            for name, size in (("lake", 400), ("spools", 64), ("masters", 64))
        }
        authority = CertificateAuthority(folder)
        certificates = {
            "sound": authority.issue(HOST, name="sound"),
            "expired": authority.issue(HOST, name="expired", is_expired=True),
        }
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates["sound"].cert, certificates["sound"].key)
        pair = stack.enter_context(
            master_and_replica(folder, binary, master=disks["masters"] / "data", lua=SPACES, tls=tls)
        )
        clock = ServerClock(folder, binary)
        server = stack.enter_context(Tarantool(folder / "second", lua=SECOND, binary=clock.program))
        (folder / "copy").mkdir()
        second = CopiedServer(server, folder / "copy")
        second.copy()
        password = folder / "password"
        password.write_text("right")
        password.chmod(0o600)
        made = stack.enter_context(
            jobs(
                folder,
                [
                    {"name": "a", "path": str(disks["spools"] / "a")},
                    {"name": "b", "path": str(second.folder)},
                ],
                {
                    "name": "a",
                    "spool": str(disks["spools"] / "a"),
                    "peers": pair.addresses,
                    "user": "replicator",
                    "password_file": str(password),
                    "tls": {"ca_file": authority.file, "server_name": HOST},
                },
                warehouse=str(disks["lake"] / "warehouse"),
                checkpoint=str(disks["lake"] / "checkpoint"),
                max_bytes_per_trigger="4 MiB",
                spaces={"misfits": {"strict": "quarantine"}},
            )
        )
        whole = Bench(
            version=version_of(binary).partition("-")[0],
            folder=folder,
            jobs=made,
            pair=pair,
            second=second,
            clock=clock,
            warehouse_disk=disks["lake"],
            spool_disk=disks["spools"],
            master_disk=disks["masters"],
            tls=tls,
            certificates=certificates,
        )
        stack.enter_context(writing(whole))
        made.start(Job.DAEMON)
        await_true(lambda: made.by_page(Job.DAEMON) == set(), "the daemon")
        made.start(Job.STREAM)
        whole.await_well(300.0)
        yield whole


@contextmanager
def writing(whole: Bench) -> Iterator[None]:
    """Write rows on the master and on the second server as long as the block runs, whatever happens to them."""
    ended = threading.Event()
    threads = [
        threading.Thread(
            target=_write, args=(ended, lambda: whole.is_master_written, whole.pair.master, "t")
        ),
        threading.Thread(
            target=_write,
            args=(ended, lambda: whole.is_second_written, whole.second.server, "u", whole.second.copy),
        ),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _write(
    ended: threading.Event,
    is_wanted: Callable[[], bool],
    server: Tarantool,
    space: str,
    then: Callable[[], None] = lambda: None,
) -> None:
    number = 100
    connection: Connection | None = None
    while not ended.wait(WRITE_SECONDS):
        if not is_wanted():
            continue
        number += 1
        try:
            connection = connection or Connection(server.socket, timeout=5.0)
            connection.eval(f"box.space.{space}:replace{{...}}", number % 50 + 100, "row")
        except TarantoolError:  # read-only, no room
            pass
        except (OSError, RuntimeError, ValueError):  # killed, or stopped
            if connection is not None:
                connection.close()
            connection = None
        with suppress(OSError):
            then()
    if connection is not None:
        connection.close()


def replace_folder(old: Path, new: Path) -> None:
    """Put a copy of a folder in the place of another."""
    shutil.rmtree(old)
    shutil.copytree(new, old)

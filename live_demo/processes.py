"""Runs the processes of the demonstration: the commands, and the servers of two replicasets of two masters each.

Each child process has its own process group, so Ctrl-C on the terminal reaches only the demonstration, which then stops
the children in order. If the demonstration is killed, the kernel ends them, because `setpriv --pdeathsig` of util-linux
starts them. The servers run `server.lua`, which writes rows.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from schemas.errors import AggregatorError

SERVER_SCRIPT = Path(__file__).with_name("server.lua")
START_TIMEOUT_SECONDS = 30.0
"""Seconds within which a server must be ready."""

MEMTX_MEMORY_BYTES = 32 << 20
"""Memory for tuples: the least that a server accepts without a warning."""

STOP_TIMEOUT_SECONDS = 60.0
"""Seconds to wait for the end of a child after SIGTERM; then it is killed."""

SHOWN_OUTPUT_BYTES = 2000
"""Length of the end of a child's output that an error shows."""


class DemonstrationError(AggregatorError):
    """A part of the demonstration cannot start, or has ended by itself."""


def command_ending_with_parent(command_line: Sequence[str]) -> list[str]:
    """Return a command line whose process gets SIGTERM when this process ends; unchanged without `setpriv`."""
    setpriv = shutil.which("setpriv")
    return list(command_line) if setpriv is None else [setpriv, "--pdeathsig", "TERM", *command_line]


class Child:
    """One child process.

    Args:
        name: Name in messages.
        command_line: The command line.
        log_file: The file to which the output is appended.
        environment: Variables to add to those of this process.
    """

    def __init__(
        self,
        name: str,
        command_line: Sequence[str],
        log_file: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.log_file = name, log_file
        with log_file.open("ab") as file:
            self._process = subprocess.Popen(
                command_ending_with_parent(command_line),
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def raise_if_ended(self) -> None:
        """Raise `DemonstrationError` with the end of the output if the process has ended."""
        if not self.is_running:
            last = self.log_file.read_bytes()[-SHOWN_OUTPUT_BYTES:].decode(errors="replace")
            raise DemonstrationError(
                f"{self.name} has ended with code {self._process.returncode}: {last}", file=str(self.log_file)
            )

    def terminate(self) -> None:
        """Send SIGTERM if the process runs; do not wait for its end."""
        if self.is_running:
            self._process.terminate()

    def stop(self) -> None:
        """Send SIGTERM, wait for the end of the process, and kill the rest of its group."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its group at once, as a crash of the machine would."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@dataclass(frozen=True)
class DemoMember:
    """One member of a replicaset."""

    name: str
    """`a1`, `a2`, `b1`, `b2`: the replicaset's letter and the member's number."""

    @property
    def number(self) -> int:
        """The number within the replicaset, 1 or 2."""
        return int(self.name[1:])

    @property
    def other_name(self) -> str:
        """The name of the other member."""
        return f"{self.name[0]}{3 - self.number}"

    @property
    def replicaset_uuid(self) -> str:
        """The uuid of the replicaset, the same for both members."""
        return str(UUID(f"{self.name[0] * 8}-0000-4000-8000-000000000000"))

    @property
    def instance_uuid(self) -> str:
        """The uuid of the instance."""
        return str(UUID(f"{self.name[0] * 8}-0000-4000-8000-{self.number:012}"))


MEMBERS = tuple(map(DemoMember, ("a1", "a2", "b1", "b2")))


def tarantool_program() -> str:
    """Return the first path in the variable `TARANTOOL`, else the `tarantool` on PATH; raise if there is neither."""
    named = [path for path in os.environ.get("TARANTOOL", "").split(":") if path]
    program = named[0] if named else shutil.which("tarantool")
    if program is None:
        raise DemonstrationError("there is no tarantool on PATH", advice="install one, or set TARANTOOL")
    return program


class Servers:
    """The processes of the four members.

    Args:
        folder: Contains one folder per member, with its `.snap` and `.xlog` files.
        sockets: A private folder for unix sockets, whose paths must be short.
    """

    def __init__(self, folder: Path, sockets: Path) -> None:
        self._folder, self._sockets = folder, sockets
        self._children: dict[str, Child] = {}

    def socket(self, name: str) -> Path:
        """Return the unix socket of a member."""
        return self._sockets / name

    def start_all(self) -> None:
        """Start all members; the second one of each replicaset joins the first one."""
        for number in (1, 2):
            started = [member for member in MEMBERS if member.number == number]
            for member in started:
                self._start(member, is_joining=number == 2)
            for member in started:
                self._wait_until_ready(member.name)

    def start(self, name: str) -> None:
        """Start a member that was killed."""
        self._start(DemoMember(name), is_joining=False)
        self._wait_until_ready(name)

    def kill(self, name: str) -> None:
        """Kill a member with SIGKILL."""
        self._children.pop(name).kill()

    def is_running(self, name: str) -> bool:
        """Whether a member runs."""
        return name in self._children and self._children[name].is_running

    def raise_if_ended(self) -> None:
        """Raise `DemonstrationError` if a member has ended that `kill` did not end."""
        for child in self._children.values():
            child.raise_if_ended()

    def stop(self) -> None:
        """Stop all members in parallel."""
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            child.stop()
        self._children.clear()

    def _start(self, member: DemoMember, *, is_joining: bool) -> None:
        folder = self._folder / member.name
        folder.mkdir(parents=True, exist_ok=True)
        socket = self.socket(member.name)
        for file in (socket, socket.with_suffix(".ready")):
            file.unlink(missing_ok=True)
        cfg = {
            "listen": f"unix/:{socket}",
            "work_dir": str(folder.resolve()),
            "instance_uuid": member.instance_uuid,
            "replicaset_uuid": member.replicaset_uuid,
            "replication_timeout": 1,
            "replication_connect_timeout": 10,
            "memtx_memory": MEMTX_MEMORY_BYTES,
            **({"replication": [f"unix/:{self.socket(member.other_name)}"]} if is_joining else {}),
        }
        environment = {
            "DEMO_CFG": json.dumps(cfg),
            "DEMO_SOCKET": str(socket),
            "DEMO_OTHER": str(self.socket(member.other_name)),
            "DEMO_OWN": str(member.number - 1),
            "DEMO_NAME": member.name,
            "DEMO_PARENT": str(os.getpid()),
        }
        log_file = self._folder / f"{member.name}.log"
        log_file.unlink(missing_ok=True)
        command_line = [tarantool_program(), str(SERVER_SCRIPT)]
        self._children[member.name] = Child(f"the server {member.name}", command_line, log_file, environment)

    def _wait_until_ready(self, name: str) -> None:
        child = self._children[name]
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while b"ready\n" not in child.log_file.read_bytes():
            child.raise_if_ended()
            if time.monotonic() > deadline:
                raise DemonstrationError(f"the server {name} does not start", file=str(child.log_file))
            time.sleep(0.05)

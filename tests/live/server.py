"""A real Tarantool as a child process, with a private directory and a private unix socket.

The kernel ends the child when its parent ends, for any reason (`PR_SET_PDEATHSIG`). `stop` sends SIGTERM, so that the
server writes the EOF marker of its last log.
"""

import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.live.client import Connection

START_SCRIPT = Path(__file__).with_name("start.lua")
READY = b"ready\n"
START_SECONDS = 60.0
STOP_SECONDS = 60.0


def find_tarantool() -> str | None:
    """Return the server's program for tests that need one server: the first of `find_servers`, or None."""
    return next(iter(find_servers()), None)


def find_servers() -> list[str]:
    """Return the programs in the environment variable TARANTOOL (separated by `:`), else the one on PATH."""
    named = [path for path in os.environ.get("TARANTOOL", "").split(":") if path]
    on_path = shutil.which("tarantool")
    return named or ([] if on_path is None else [on_path])


@lru_cache
def version_of(binary: str) -> str:
    """Return the version of a server's program: `2.6.0-0-g47aa4e01e`."""
    output = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return output.split()[1]


def release_here() -> tuple[int, int]:
    """Return (major, minor) of the version of `find_tarantool`; (0, 0) if there is none."""
    binary = find_tarantool()
    if binary is None:
        return 0, 0
    major, minor = version_of(binary).split(".")[:2]
    return int(major), int(minor)


class Tarantool:
    """One server; a context manager that starts it and stops it cleanly.

    Args:
        directory: The directory for `.snap`, `.xlog`, `.vylog` and vinyl's files; created if it is missing.
        cfg: Further options of `box.cfg`.
        lua: Lua code that runs after `box.cfg`, before the server counts as started.
        lua_path: A directory whose modules the Lua code may `require`.
        socket: Path of the unix socket to listen on; by default in a private temporary directory.
        binary: Path of the server's program; by default `find_tarantool`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        cfg: Mapping[str, Any] | None = None,
        lua: str = "",
        lua_path: Path | None = None,
        socket: str | None = None,
        binary: str | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._binary = binary
        self._given_socket = socket
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._cfg = dict(cfg or {})
        self._lua = lua
        self._lua_path = lua_path
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def socket(self) -> str:
        """The path of the unix socket that the server listens on."""
        if self._given_socket:
            return self._given_socket
        if self._temporary is None:
            raise RuntimeError("the server is not running")
        return f"{self._temporary.name}/socket"

    @property
    def log(self) -> Path:
        """The server's own log, next to its socket; a private one is removed with the socket."""
        return Path(f"{self.socket}.log")

    @property
    def connection(self) -> Connection:
        """A connection that is opened on first use and closed by `stop`."""
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def connect(self) -> Connection:
        """Return a new connection; the caller closes it."""
        return Connection(self.socket)

    def eval(self, expression: str, *arguments: Any) -> Any:
        """Run Lua on the server over its own connection; see `Connection.eval`."""
        return self.connection.eval(expression, *arguments)

    def start(self) -> Self:
        """Start the server and wait until `box.cfg` and the Lua code are done.

        Raises:
            RuntimeError: There is no tarantool, or it ended or hung; the message has the end of its log.
        """
        binary = self._binary or find_tarantool()
        if binary is None:
            raise RuntimeError("no tarantool on PATH: apt-get install tarantool")
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._given_socket is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tarantool-")
        Path(self.socket).unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [binary, str(START_SCRIPT)],
            env=os.environ | self._environment(),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def configure(self, **cfg: Any) -> None:
        """Set options of `box.cfg` for the next start."""
        self._cfg |= cfg

    def stop(self) -> None:
        """Stop the server cleanly; if it does not stop in time, kill it and raise RuntimeError."""
        self._close_connection()
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"tarantool {process.pid} did not stop: killed") from error
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the server at once, like a crash (no EOF marker), and free its resources."""
        self._close_connection()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()
            self._process = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _environment(self) -> dict[str, str]:
        cfg = {
            "listen": f"unix/:{self.socket}",
            "log": str(self.log),
            "work_dir": str(self.directory.resolve()),
        }
        return {
            "TARANTOOL_CFG": json.dumps(cfg | self._cfg),
            "TARANTOOL_LUA": self._lua,
            "TARANTOOL_LUA_PATH": str(self._lua_path.resolve()) if self._lua_path else "",
            "TARANTOOL_PARENT": str(os.getpid()),
        }

    def _await_ready(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            raise RuntimeError("the server was not started")
        output = b""
        deadline = time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while READY not in output:
                chunk = b""
                if selector.select(max(0.0, deadline - time.monotonic())):
                    chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    raise RuntimeError(f"tarantool did not start: {self._end_of_output(output)}")
                output += chunk

    def _end_of_output(self, output: bytes) -> str:
        log = self.log.read_bytes()[-2000:] if self.log.exists() else b""
        return (output + log).decode(errors="replace")

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

"""The demonstration from start to end: servers, the two commands, the page, SQL, a killed master, and a clean stop.

The daemon and the stream are `aggregator subscribe` and `aggregator run`, as a user starts them.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from config.deployment import load
from live_demo.children import Child
from live_demo.deployment import DAEMON, STREAM, deployment
from live_demo.look import Look
from live_demo.page import page_server
from live_demo.servers import Servers

VICTIM = "a1"
KEYS = f"k kills the master {VICTIM}, or starts it again; Ctrl-C ends everything"


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Parameters
    ----------
    folder : Path
        Gets all files; what is in it goes.
    port : int
        Of the page; 0: any that is free.
    every : int
        Seconds between two looks at the tables.
    kill_after : int or None
        Seconds after the first rows at which the master is killed; it starts again after as many.

    """

    folder: Path
    port: int
    every: int
    kill_after: int | None


def demonstrate(options: Options) -> None:
    """Run until Ctrl-C or SIGTERM, or until a part fails; no process is left."""
    began = time.monotonic()
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="live-demo-")))
        servers = Servers(folder / "servers", sockets)
        ports = {name: free_port() for name in (STREAM, DAEMON)}
        file = folder / "deployment.yaml"
        file.write_text(deployment(servers.socket, ports[STREAM], ports[DAEMON]))
        metrics = {name: f"http://127.0.0.1:{port}/metrics" for name, port in ports.items()}
        page = folder / "report.html"
        port = stack.enter_context(page_server(options.port, page, metrics, options.every))
        look = Look(load(file), page)
        stack.enter_context(_last(servers.stop))
        servers.start_all()
        print(f"servers: a1 and a2, b1 and b2, after {time.monotonic() - began:.1f} s", flush=True)
        commands = []
        for name, command in ((DAEMON, "subscribe"), (STREAM, "run")):
            commands.append(
                Child(f"`aggregator {command}`", _aggregator(command, file), folder / f"{name}.log")
            )
            stack.enter_context(_last(commands[-1].stop))
        stack.enter_context(_last(look.stop))
        look.start()
        print(f"page: http://127.0.0.1:{port}/ - metrics: /metrics/stream, /metrics/daemon", flush=True)
        print(f"files: {folder} - {KEYS}", flush=True)
        _watch(options, servers, commands, look, began)


def _aggregator(command: str, file: Path) -> list[str]:
    return [sys.executable, "-m", "aggregator", command, "--config", str(file)]


def _watch(options: Options, servers: Servers, commands: list[Child], look: Look, began: float) -> None:
    first: float | None = None
    kill_at: float | None = None
    with _signals() as signals:
        while not signals.stopped:
            if look.has_news():
                look.show()
                if first is None and look.first_rows_at is not None:
                    first = look.first_rows_at
                    print(f"first SQL rows {first - began:.1f} s after the start", flush=True)
                    kill_at = None if options.kill_after is None else time.monotonic() + options.kill_after
            pressed = signals.wait(options.every if first is not None else 0.2, kill_at)
            if "k" in pressed or (kill_at is not None and time.monotonic() >= kill_at):
                _turn(servers)
                kill_at = (
                    None
                    if servers.is_running(VICTIM) or options.kill_after is None
                    else (time.monotonic() + options.kill_after)
                )
            servers.check()
            for command in commands:
                command.check()


def _turn(servers: Servers) -> None:
    """Kill the master, or start it where it was killed."""
    if servers.is_running(VICTIM):
        servers.kill(VICTIM)
        print(f"\n== master {VICTIM} is killed: the daemon continues with the other member", flush=True)
    else:
        servers.start(VICTIM)
        print(f"\n== master {VICTIM} runs again", flush=True)


class Signals:
    """Key presses of the terminal, where stdin is one, and the request to stop: Ctrl-C or SIGTERM.

    A signal is only noted, since one that interrupts a call of Spark leaves a trace of errors.
    """

    def __init__(self, terminal: int | None, pipe: int) -> None:
        self._pipe = pipe
        self._read = [pipe] if terminal is None else [pipe, terminal]
        self.stopped = False

    def wait(self, seconds: float, until: float | None) -> str:
        """Wait so long, at most until a time of the monotonic clock, and return what was pressed meanwhile."""
        if until is not None:
            seconds = min(seconds, max(0.0, until - time.monotonic()))
        found, _, _ = select.select(self._read, [], [], seconds)
        self.stopped = self.stopped or self._pipe in found
        return "".join(os.read(one, 64).decode(errors="replace") for one in found if one != self._pipe)


@contextmanager
def _signals() -> Iterator[Signals]:
    """Note signals and take single key presses while the block runs."""
    with ExitStack() as stack:
        ours, theirs = os.pipe()
        stack.callback(os.close, ours)
        stack.callback(os.close, theirs)
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, lambda *_: os.write(theirs, b"."))
            stack.callback(signal.signal, number, before)
        if not sys.stdin.isatty():
            yield Signals(None, ours)
            return
        terminal = sys.stdin.fileno()
        stack.callback(termios.tcsetattr, terminal, termios.TCSADRAIN, termios.tcgetattr(terminal))
        tty.setcbreak(terminal)
        yield Signals(terminal, ours)


@contextmanager
def _last(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at the end of the block, whatever ends it; a second Ctrl-C does not interrupt it."""
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        stop()


def free_port() -> int:
    """Return a port of this machine that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

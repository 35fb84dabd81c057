"""Runs the demonstration from start to end: servers, daemon, stream, page, SQL, a killed master, and a clean stop.

The daemon is `aggregator subscribe` and the stream is `aggregator run`, as a user starts them, with one configuration.
"""

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

import yaml

from config.deployment import load
from live_demo.display import EpochDisplay, serve_page
from live_demo.processes import Child, Servers

STREAM, DAEMON = "stream", "daemon"
"""The two commands: `<name>.log` has the output of each, and the page has its metrics under `/metrics/<name>`."""

KILLED_MASTER = "a1"
"""Name of the master that is killed and started again."""

KEYS_HELP = f"k kills the master {KILLED_MASTER}, or starts it again; Ctrl-C ends everything"


def deployment_yaml(socket: Callable[[str], Path], stream_port: int, daemon_port: int) -> str:
    """Return the text of the configuration for the daemon and the stream; its paths are relative to its folder.

    Args:
        socket: Returns the unix socket of a member by its name.
        stream_port, daemon_port: Ports on which stream and daemon serve `/metrics` and `/status`.
    """
    config = {
        "warehouse": "warehouse",
        "checkpoint": "checkpoint",
        "trigger": "3 seconds",
        "sources": [{"name": name, "path": f"spool/{name}"} for name in ("a", "b")],
        "policies": {"spaces": {"accounts": {"sequence": ["updated"]}}},
        "metrics": {"status": f"127.0.0.1:{stream_port}", "log": "stream.jsonl"},
        "subscribe": {
            "status": f"127.0.0.1:{daemon_port}",
            "replicasets": [
                {
                    "name": name,
                    "spool": f"spool/{name}",
                    "peers": [f"unix/:{socket(name + number)}" for number in ("1", "2")],
                }
                for name in ("a", "b")
            ],
        },
    }
    return yaml.safe_dump(config, sort_keys=False)


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    folder: Path
    """The folder for all files; its present content is deleted."""
    port: int
    """Port of the page; 0: any free one."""
    interval_seconds: int
    """Seconds between two reads of the tables, and between two loads of the page by the browser."""
    kill_after_seconds: int | None
    """Seconds from the first rows until the master is killed, and from then until it is started again; None: the master
    is killed and started only by key presses.
    """


def demonstrate(options: Options) -> None:
    """Run the demonstration until Ctrl-C or SIGTERM, or until a part fails; then end all child processes."""
    started_at = time.monotonic()
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="live-demo-")))
        servers = Servers(folder / "servers", sockets)
        ports = {name: free_port() for name in (STREAM, DAEMON)}
        file = folder / "deployment.yaml"
        file.write_text(deployment_yaml(servers.socket, ports[STREAM], ports[DAEMON]))
        metrics_urls = {name: f"http://127.0.0.1:{port}/metrics" for name, port in ports.items()}
        report_file = folder / "report.html"
        port = stack.enter_context(
            serve_page(options.port, report_file, metrics_urls, options.interval_seconds)
        )
        display = EpochDisplay(load(file), report_file)
        stack.enter_context(_stop_at_end(servers.stop))
        servers.start_all()
        print(f"servers: a1 and a2, b1 and b2, after {time.monotonic() - started_at:.1f} s", flush=True)
        commands = []
        for name, command in ((DAEMON, "subscribe"), (STREAM, "run")):
            words = [sys.executable, "-m", "aggregator", command, "--config", str(file)]
            commands.append(Child(f"`aggregator {command}`", words, folder / f"{name}.log"))
            stack.enter_context(_stop_at_end(commands[-1].stop))
        print(f"page: http://127.0.0.1:{port}/ - metrics: /metrics/stream, /metrics/daemon", flush=True)
        print(f"files: {folder} - {KEYS_HELP}", flush=True)
        _show_epochs(options, servers, commands, display, started_at)


def _show_epochs(
    options: Options, servers: Servers, commands: list[Child], display: EpochDisplay, started_at: float
) -> None:
    """Show each new epoch, and kill and restart the master, until a signal comes or a child ends."""
    first_rows_at: float | None = None
    kill_at: float | None = None
    with _user_input() as user:
        while not user.wants_stop:
            if display.has_new_epoch():
                display.show()
                if first_rows_at is None and display.first_rows_at is not None:
                    first_rows_at = display.first_rows_at
                    print(f"first SQL rows {first_rows_at - started_at:.1f} s after the start", flush=True)
                    kill_at = _next_kill_at(options)
            pressed = user.wait_for_keys(
                options.interval_seconds if first_rows_at is not None else 0.2, kill_at
            )
            if "k" in pressed or (kill_at is not None and time.monotonic() >= kill_at):
                _kill_or_restart(servers)
                kill_at = None if servers.is_running(KILLED_MASTER) else _next_kill_at(options)
            servers.raise_if_ended()
            for command in commands:
                command.raise_if_ended()


def _next_kill_at(options: Options) -> float | None:
    """Return when the master is killed or started next, as a time of the monotonic clock; None: only by a key."""
    return None if options.kill_after_seconds is None else time.monotonic() + options.kill_after_seconds


def _kill_or_restart(servers: Servers) -> None:
    """Kill the master if it runs; start it if it was killed."""
    if servers.is_running(KILLED_MASTER):
        servers.kill(KILLED_MASTER)
        print(
            f"\n== master {KILLED_MASTER} is killed: the daemon continues with the other member", flush=True
        )
    else:
        servers.start(KILLED_MASTER)
        print(f"\n== master {KILLED_MASTER} runs again", flush=True)


class UserInput:
    """Receives key presses, if stdin is a terminal, and the request to stop by Ctrl-C or SIGTERM.

    A signal only sets `wants_stop`: an exception in the middle of a call to Spark would print long error traces.

    Args:
        terminal: The file descriptor of the terminal.
        signal_pipe: A file descriptor that becomes readable with the first signal.
    """

    def __init__(self, terminal: int | None, signal_pipe: int) -> None:
        self._signal_pipe = signal_pipe
        self._inputs = [signal_pipe] if terminal is None else [signal_pipe, terminal]
        self.wants_stop = False

    def wait_for_keys(self, seconds: float, not_after: float | None) -> str:
        """Wait for a key press or a signal, and return the pressed keys; empty if there were none.

        Args:
            seconds: Maximum time to wait.
            not_after: Time of the monotonic clock at which waiting ends even before `seconds` have passed; None: no
                such time.
        """
        if not_after is not None:
            seconds = min(seconds, max(0.0, not_after - time.monotonic()))
        ready, _, _ = select.select(self._inputs, [], [], seconds)
        self.wants_stop = self.wants_stop or self._signal_pipe in ready
        return "".join(
            os.read(descriptor, 64).decode(errors="replace")
            for descriptor in ready
            if descriptor != self._signal_pipe
        )


@contextmanager
def _user_input() -> Iterator[UserInput]:
    """Receive signals and single key presses while the block runs; yield the object that has them."""
    with ExitStack() as stack:
        read_end, write_end = os.pipe()
        stack.callback(os.close, read_end)
        stack.callback(os.close, write_end)
        for number in (signal.SIGINT, signal.SIGTERM):
            old_handler = signal.signal(number, lambda *_: os.write(write_end, b"."))
            stack.callback(signal.signal, number, old_handler)
        if not sys.stdin.isatty():
            yield UserInput(None, read_end)
            return
        terminal = sys.stdin.fileno()
        stack.callback(termios.tcsetattr, terminal, termios.TCSADRAIN, termios.tcgetattr(terminal))
        tty.setcbreak(terminal)
        yield UserInput(terminal, read_end)


@contextmanager
def _stop_at_end(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` when the block ends, also by an error; from then on, Ctrl-C and SIGTERM are ignored."""
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        stop()


def free_port() -> int:
    """Return a port of this machine on which no process listens now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])

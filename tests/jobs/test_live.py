"""The daemons' sections and commands: refused configurations, the status page, and how they end."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from config.deployment import load_daemon_config
from schemas.errors import ConfigurationError
from sources.subscribe.options import FeedMode
from tests.live import Tarantool
from tests.sources.subscribe.following import await_until

ROOT = Path(__file__).resolve().parents[2]
LIVE = ROOT / "conf" / "live.yaml"


def written(folder: Path, text: str) -> Path:
    path = folder / "live.yaml"
    path.write_text(text)
    return path


def test_the_example_is_right_and_names_every_key() -> None:
    config = load_daemon_config(LIVE)
    assert config.subscribe is not None
    assert config.relay is not None
    text = LIVE.read_text()
    parts = [config.subscribe, config.subscribe.keep, config.subscribe.replicasets[0], config.relay]
    parts += [config.relay.spools[0], config.relay.users[0]]
    for part in parts:
        assert [key for key in type(part).model_fields if f"{key}:" not in text] == []
    options = config.subscribe.replicaset_options()[0]
    assert (options.feed, options.peers[0].user, options.peers[1].user) == (
        FeedMode.LEADER,
        "replicator",
        "replicator",
    )
    assert config.relay.spool_options()[0].users["central"].file == "/etc/aggregator/central.password"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("subscribe: {replicasets: []}", "subscribe.replicasets"),
        ("subscribe: {replicasets: [{name: a, spool: s, peers: []}]}", "subscribe.replicasets[0].peers"),
        (
            "subscribe: {replicasets: [{name: a, spool: s, peers: ['u:p@h:1']}]}",
            "subscribe.replicasets[0].peers[0]",
        ),
        ("subscribe: {replicasets: [{name: a, spool: s, pears: ['h:1']}]}", "subscribe.replicasets[0]"),
        (
            "subscribe: {replicasets: [{name: a, spool: 's3://x/y', peers: ['h:1']}]}",
            "subscribe.replicasets[0].spool",
        ),
        ("subscribe: {feed: any, replicasets: [{name: a, spool: s, peers: ['h:1']}]}", "subscribe.feed"),
        ("relay: {spools: [{name: a, spool: s, listen: 'h:1'}]}", "relay.users"),
        ("relays: {}", "relays"),
        (
            "relay: {users: [{name: u, password_env: P}], spools: [{name: a, spool: s, listen: 'h:1'}]}",
            "relay.spools[0].listen",
        ),
        (
            "relay: {guest: true, limits: {connections: 0}, spools: [{name: a, spool: s, listen: 'h:1'}]}",
            "relay.limits.connections",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        load_daemon_config(written(tmp_path, text))
    assert where in str(error.value)


def test_keys_of_other_jobs_are_ignored(tmp_path: Path) -> None:
    config = load_daemon_config(
        written(tmp_path, "warehouse: 7\nrelay: {guest: true, spools: [{name: a, spool: s, listen: 'h:1'}]}")
    )
    assert config.subscribe is None


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def get(port: int, page: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10) as answer:
        return str(answer.read().decode())


def answers(port: int) -> bool:
    try:
        return bool(get(port, "status"))
    except OSError:
        return False


@contextmanager
def daemon(job: str, config: Path, said: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon that logs to a file; it is always stopped at the end."""
    command = [sys.executable, "-m", f"jobs.{job}", "--config", str(config), "--verbose"]
    with said.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stderr=file)
        try:
            yield process
        except AssertionError as error:
            error.add_note(f"{job}: {said.read_text()[-4000:]}")
            raise
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def becomes(process: subprocess.Popen[bytes], condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; fail if the daemon ends before."""
    await_until(lambda: process.poll() is not None or condition(), what, 120)
    assert process.poll() is None, f"it ended with {process.returncode}"


@pytest.mark.live
def test_both_daemons_run_serve_their_status_and_end_cleanly(tarantool: Tarantool, tmp_path: Path) -> None:
    tarantool.eval(
        """
        box.session.su('admin', function()
            box.schema.user.create('reader', {password = 'hidden-word'})
            box.schema.user.grant('reader', 'replication')
        end)
        """
    )
    ports = free_port(), free_port()
    path = written(
        tmp_path,
        f"""
subscribe:
  status: 127.0.0.1:{ports[0]}
  replicasets: [{{name: a, spool: spool, peers: ["reader@unix/:{tarantool.socket}"], password_env: WORD}}]
relay:
  status: 127.0.0.1:{ports[1]}
  guest: true
  spools: [{{name: a, spool: spool, listen: "unix/:{tmp_path}/relay.sock"}}]
""",
    )
    logs = tmp_path / "subscribe.log", tmp_path / "relay.log"
    with (
        daemon("subscribe", path, logs[0], WORD="hidden-word") as subscriber,
        daemon("relay", path, logs[1]) as server,
    ):
        running = subscriber, server
        for process, port in zip(running, ports, strict=True):
            becomes(process, lambda port=port: answers(port), "the status page")  # type: ignore[misc]
        becomes(
            subscriber,
            lambda: json.loads(get(ports[0], "status"))["replicasets"][0]["assignment"] != {},
            "a stream",
        )
        becomes(server, lambda: json.loads(get(ports[1], "status"))["spools"][0]["vclock"] != {}, "the spool")
        metrics = get(ports[0], "metrics") + get(ports[1], "metrics") + get(ports[0], "status")
        for process in running:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in running] == [143, 143]
    said = "".join(log.read_text() for log in logs)
    assert 'subscribe_lag_rows{replica_id="1",replicaset="a"} 0.0' in metrics
    assert 'relay_failed{spool="a"} 0.0' in metrics
    assert "hidden-word" not in metrics + said
    for file in [tmp_path / "spool", *(tmp_path / "spool").rglob("*")]:
        assert file.stat().st_mode & 0o077 == 0, f"others may read {file}"
    assert next((tmp_path / "spool").glob("*.snap")).read_bytes().endswith(b"\xd5\x10\xad\xed")

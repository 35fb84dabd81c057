"""The daemons' sections and commands: what is refused and where, what is shown, how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from jobs.config import load_live
from schemas.errors import ConfigurationError
from sources.subscribe.options import Feed
from tests.live import Tarantool
from tests.sources.subscribe.following import await_until

ROOT = Path(__file__).resolve().parents[2]
LIVE = ROOT / "conf" / "live.yaml"


def written(folder: Path, text: str) -> Path:
    path = folder / "live.yaml"
    path.write_text(text)
    return path


def test_the_example_is_right_and_names_every_key() -> None:
    config = load_live(LIVE)
    assert config.subscribe is not None
    assert config.relay is not None
    text = LIVE.read_text()
    parts = [config.subscribe, config.subscribe.keep, config.subscribe.replicasets[0], config.relay]
    parts += [config.relay.spools[0], config.relay.users[0]]
    for part in parts:
        assert [key for key in type(part).model_fields if f"{key}:" not in text] == []
    options = config.subscribe.options()[0]
    assert (options.feed, options.peers[0].user, options.peers[1].user) == (
        Feed.OWN_PEER,
        "replicator",
        "replicator",
    )
    assert config.relay.options()[0].users["central"].file == "/etc/aggregator/central.password"


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
    ],
)
def test_a_mistake_is_named_by_its_place(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        load_live(written(tmp_path, text))
    assert where in str(error.value)


def test_keys_of_other_jobs_are_let_be(tmp_path: Path) -> None:
    config = load_live(
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


@pytest.mark.soak
@pytest.mark.live
def test_both_daemons_run_show_themselves_and_end_cleanly(tarantool: Tarantool, tmp_path: Path) -> None:
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
    environment = os.environ | {"WORD": "hidden-word"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", f"jobs.{job}", "--config", str(path), "--verbose"],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for job in ("subscribe", "relay")
    ]
    try:
        for port in ports:
            await_until(lambda port=port: answers(port), "the status page", 120)  # type: ignore[misc]
        await_until(
            lambda: json.loads(get(ports[0], "status"))["replicasets"][0]["assignment"] != {}, "a stream"
        )
        await_until(lambda: json.loads(get(ports[1], "status"))["spools"][0]["vclock"] != {}, "the spool")
        metrics = get(ports[0], "metrics") + get(ports[1], "metrics") + get(ports[0], "status")
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
    said = [process.communicate(timeout=60)[1] for process in running]
    assert [process.returncode for process in running] == [143, 143], said
    assert 'subscribe_lag_rows{replica_id="1",replicaset="a"} 0.0' in metrics
    assert 'relay_failed{spool="a"} 0.0' in metrics
    assert "hidden-word" not in metrics + "".join(said)
    assert next((tmp_path / "spool").glob("*.snap")).read_bytes().endswith(b"\xd5\x10\xad\xed")

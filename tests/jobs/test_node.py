"""The job and `relay --aggregated` as processes: a real server gets the decided tuples of two replicasets.

Faults and figures are in `tests/pipeline/replication_out` and `benchmarks/node.py`.
"""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.commands import Command
from tests.live.server import Tarantool
from tests.pipeline.replication_out.conftest import subscribers
from tests.pipeline.replication_out.world import World, world
from tests.sources.subscribe.following import await_until

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.soak]

STATUS = "127.0.0.1:18073"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as found:
        yield found


def configured(two: World, root: Path) -> Path:
    """Write the YAML of all processes."""
    whole: dict[str, Any] = {
        "warehouse": str(root / "warehouse"),
        "checkpoint": str(root / "checkpoint"),
        "trigger": "1 second",
        "start": "logs",
        "sources": [{"name": name, "path": str(root / name)} for name in two.masters],
        "relay": {
            "guest": True,
            "status": STATUS,
            "aggregated": {
                "warehouse": str(root / "warehouse"),
                "spool": str(root / "stream"),
                "listen": f"unix/:{two.socket}",
                "poll": "100 milliseconds",
                "readers": [
                    {"name": "guest", "executes": True},
                    {"name": "app", "password_env": "APP_PASSWORD"},
                ],
            },
        },
    }
    path = root / "all.yaml"
    path.write_text(yaml.safe_dump(whole))
    return path


def write(two: World, round_: int) -> None:
    for name in two.masters:
        two.eval(
            name,
            """
            local round = ...
            local s, me = box.space.accounts, box.info.uuid:sub(1, 1) .. round .. '-'
            for i = 1, 300 do s:replace{i, me .. i, i * round} end
            for i = round, 300, 10 do s:delete(i) end
            s:insert{1000 * round + (me:sub(1, 1) == 'a' and 1 or 2), me}
            """,
            round_,
        )


def as_app(subscriber: Tarantool, lua: str) -> Any:
    """Run Lua over a connection of the user `app`, and return its result."""
    code = f"""
        local c = require('net.box').connect(box.cfg.listen, {{user = 'app', password = 'secret'}})
        local ok, found = pcall(function() return {lua} end)
        c:close()
        return ok, ok and found or tostring(found)
    """
    return subscriber.eval(code)


def test_a_server_follows_the_job(two: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = subscribers()
    if not servers:
        pytest.skip("TARANTOOL names no server of 2.11 or newer")
    monkeypatch.setenv("APP_PASSWORD", "secret")
    config = configured(two, tmp_path)
    with ExitStack() as stack:
        stack.enter_context(Command("aggregate", config, tmp_path / "job.log"))
        stack.enter_context(Command("relay", config, tmp_path / "relay.log", "--aggregated"))
        write(two, 1)
        await_until(lambda: any((tmp_path / "stream").glob("*.snap")), "the stream", seconds=400)
        running = [stack.enter_context(two.subscriber(binary, Path(binary).name)) for binary in servers]
        for round_ in range(2, 6):
            write(two, round_)
        ids = two.global_ids()
        for subscriber in running:
            for name in "ab":
                lsn = two.eval(name, "return box.info.lsn")
                seen = f"return box.info.vclock[{ids[name]}]"
                await_until(lambda f=subscriber, s=seen, n=lsn: f.eval(s) == n, "its rows", seconds=400)  # type: ignore[misc]
            two.check(subscriber, "accounts")
            assert subscriber.eval("return box.space.accounts:get(5001)")[1] == "a5-"
            assert as_app(subscriber, "c.space.accounts:get(5002)[2]") == [True, "b5-"]
            assert as_app(subscriber, "c:eval('return 1')")[0] is False
            assert as_app(subscriber, "c.space.accounts:delete(1)")[0] is False
        with urllib.request.urlopen(f"http://{STATUS}/status") as page:
            status = json.load(page)
        assert status["aggregated"]["epoch"] == status["aggregated"]["newest_epoch"]
        assert status["aggregated"]["error"] is None
        assert len(status["spools"][0]["subscribers"]) == len(servers)
        with urllib.request.urlopen(f"http://{STATUS}/metrics") as page:
            assert b"node_lag_seconds 0.0" in page.read()

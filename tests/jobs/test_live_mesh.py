"""Three masters in full mesh, the daemon and the job, all killed at random: the tables end equal to the servers.

SOAK_MINUTES, SOAK_SEED: the duration, and the seed of the random choices.
"""

import json
import os
import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from sources.subscribe.options import FeedMode
from tests.live.commands import Command
from tests.live.mesh import REPLICASET, Mesh, mesh
from tests.live.proxy import Proxy
from tests.live.spools import tuples_of
from tests.sources.subscribe.following import await_until
from tests.sources.subscribe.test_soak import Load, disturb

pytestmark = [pytest.mark.live, pytest.mark.soak]

MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
CONFIG = """
warehouse: warehouse
checkpoint: checkpoint
trigger: 1 second
sources: [{{name: a, path: spool}}]
subscribe:
  feed: {feed}
  answer: 2 seconds
  patience: 3 seconds
  reconnect: 100 milliseconds
  rotate: 100 KiB
  replicasets: [{{name: a, spool: spool, peers: {peers}}}]
"""


def rows(folder: Path, table: str, *columns: str) -> list[dict[str, Any]]:
    try:
        opened = DeltaTable(str(folder / "warehouse" / "aggregator.db" / table))
    except TableNotFoundError:
        return []
    found: list[dict[str, Any]] = opened.to_pyarrow_table(columns=list(columns)).to_pylist()
    return found


def settled(folder: Path) -> dict[int, int]:
    """Return the vclock of the newest epoch."""
    newest = max(rows(folder, "_epochs", "epoch", "vclock"), key=lambda row: int(row["epoch"]), default=None)
    vclock = {} if newest is None else json.loads(newest["vclock"]).get(REPLICASET, {})
    return {int(i): int(lsn) for i, lsn in vclock.items() if int(i) and lsn}


def restarted(command: Command) -> None:
    """Start a command again after it was killed, or ended by itself because a peer was missing."""
    command.kill()
    command.start()


def same_everywhere(masters: Mesh) -> bool:
    return all(masters.vclock(n) == masters.vclock(1) for n in masters.members)


@pytest.mark.parametrize("feed", list(FeedMode))
def test_random_kills_end_with_the_servers_tuples(tmp_path: Path, feed: FeedMode) -> None:
    chance, harms = random.Random(SEED), Counter[str]()
    with mesh(tmp_path, 3) as masters, ExitStack() as stack:
        proxies = {n: stack.enter_context(Proxy(server.socket)) for n, server in masters.members.items()}
        peers = json.dumps([proxy.address for proxy in proxies.values()])
        config = tmp_path / "config.yaml"
        config.write_text(CONFIG.format(feed=feed.value, peers=peers))
        daemon = stack.enter_context(Command("subscribe", config, tmp_path / "daemon.log"))
        await_until(lambda: bool(list((tmp_path / "spool").glob("*.snap"))), "a snapshot", 120)
        job = stack.enter_context(Command("aggregate", config, tmp_path / "job.log"))
        await_until(lambda: bool(settled(tmp_path)), "the first epoch", 300, pause=0.5)
        end, next_job = time.monotonic() + 60 * MINUTES, time.monotonic() + 15
        with Load(masters, 0.1) as load:
            while time.monotonic() < end:
                if chance.random() < 0.4:
                    restarted(daemon)
                    harms["daemon"] += 1
                else:
                    undo = disturb(masters, proxies, chance)
                    time.sleep(chance.random() * 4)
                    undo()
                    harms["master"] += 1
                if time.monotonic() > next_job:
                    restarted(job)
                    harms["job"] += 1
                    next_job = time.monotonic() + 45
                time.sleep(chance.random() * 2)
        await_until(lambda: same_everywhere(masters), "replication", 120)
        expected = masters.vclock(1)
        await_until(lambda: settled(tmp_path) == expected, f"{expected} in the tables", 600, pause=0.5)
        assert daemon.is_running
        assert job.is_running
        assert job.stop() == 143
        assert daemon.stop() == 143
        check(tmp_path, masters, expected)
        written = len(rows(tmp_path, "load", "_tuple"))
        epochs, logs = len(rows(tmp_path, "_epochs", "epoch")), len(list((tmp_path / "spool").glob("*.xlog")))
        print(
            f"{feed}: {dict(harms)}, {load.rows} rows asked for, vclock {expected}, {epochs} epochs, {written} tuples "
            f"equal, {logs} logs left of the spool"
        )


def check(folder: Path, masters: Mesh, expected: dict[int, int]) -> None:
    tuples = sorted(msgpack.unpackb(row["_tuple"]) for row in rows(folder, "load", "_tuple"))
    assert tuples == tuples_of(masters[1])
    for table in ("_gaps", "_pending", "_quarantine"):
        assert rows(folder, table, "replicaset_id") == []
    logged = rows(folder, "_changelog", "file", "replicaset_id", "replica_id", "lsn")
    named = [
        (row["replica_id"], row["lsn"])
        for row in logged
        if row["file"].endswith(".xlog") and row["replicaset_id"]
    ]
    assert len(named) == len(set(named)), "a row stands twice"
    for replica_id, last in expected.items():
        lsns = sorted(lsn for one, lsn in named if one == replica_id)
        assert lsns == list(range(last - len(lsns) + 1, last + 1)), f"rows of {replica_id} are missing"

"""The daemon and masters in full mesh are killed for minutes: no row is lost or written twice."""

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from sources.iproto import row_stream
from sources.spool.options import SpoolOptions
from sources.spool.state import read_state
from sources.subscribe.options import FeedMode, ReplicasetOptions
from sources.subscribe.replicaset import ReplicasetSubscription
from tests.live.client import TarantoolError
from tests.live.mesh import Mesh, instance_uuid, mesh
from tests.live.proxy import Proxy
from tests.live.spools import read_spool, recovered_server, tuples_of
from tests.sources.subscribe.following import QUICK, await_until, following, options
from tests.sources.subscribe.test_following import await_all

pytestmark = [pytest.mark.live, pytest.mark.soak]

SEED = int(os.environ.get("SOAK_SEED", "1"))
SECONDS = float(os.environ.get("SOAK_SECONDS", "20"))
KILLS = int(os.environ.get("SOAK_KILLS", "100"))
MINUTES = float(os.environ.get("SOAK_MINUTES", "3"))
LOAD = """
    local first, count, value = ...
    for i = first, first + count - 1 do
        if i % 7 == 0 then
            box.begin() box.space.load:replace{i, value} box.space.load:delete{i - 1} box.commit()
        else
            box.space.load:replace{i, value}
        end
    end
"""


class Load:
    """Writes different keys to each master in threads until it is stopped; dead masters are skipped."""

    def __init__(self, masters: Mesh, pause: float) -> None:
        self.rows = 0
        self._masters, self._pause = masters, pause
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in masters.members]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        k = 0
        while not self._stop.is_set():
            try:
                with self._masters[number].connect() as connection:
                    while not self._stop.is_set():
                        k += 1
                        connection.eval(LOAD, number * 1_000_000 + (k % 500) * 20, 20, f"{number}-{k}")
                        self.rows += 20
                        self._stop.wait(self._pause)
            except (OSError, RuntimeError, TarantoolError):
                self._stop.wait(0.2)


WRITER = """
    local number, count = ...
    require('fiber').create(function()
        for k = 1, 1e9 do
            local first = number * 1000000 + (k % 500) * 20
            for i = first, first + 19 do
                box.begin()
                box.space.load:replace{i, tostring(k)}
                if i % 7 == 0 then box.space.load:delete{i - 1} end
                box.commit()
            end
            if stopped then break end
            require('fiber').sleep(0.005)
        end
        has_ended = true
    end)
"""


def fork_daemon(how: ReplicasetOptions) -> int:
    """Run the daemon in a forked process, with everything imported and compiled; return its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(ReplicasetSubscription(how).run())
        finally:
            os._exit(1)
    return pid


def test_a_daemon_that_is_killed_a_hundred_times(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    spool = tmp_path / "spool"
    row_stream.compile_kernels()
    with mesh(tmp_path, 2) as masters:
        addresses = [f"unix/:{server.socket}" for server in masters.members.values()]
        how = options(spool, *addresses, feed=FeedMode.OWN_PEER, spool=SpoolOptions(rotate_bytes=200_000))
        for number in masters.members:
            masters[number].eval(WRITER, number)
        for round_ in range(KILLS):
            pid, before = fork_daemon(how), size_of(spool)
            # Some are killed while they start, some while they write.
            if chance.random() < 0.8:
                await_until(lambda b=before: size_of(spool) > b, "growth", 120)  # type: ignore[misc]
            time.sleep(chance.random() * 0.3)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if round_ % 10 == 9:
                rows, faults, _ = read_spool(masters[1], spool)
                assert faults == []
                print(f"killed {round_ + 1} times, {rows} rows", flush=True)
        for number in masters.members:
            masters[number].eval("stopped = true")
        for number in masters.members:
            await_until(lambda n=number: masters[n].eval("return has_ended == true"), "the writer's end")  # type: ignore[misc]
        with following(how) as replicaset:
            await_all(masters, replicaset)
            expected = dict(replicaset.spool.vclock or {})
        rows, faults, tuples = read_spool(masters[1], spool)
        assert faults == []
        assert rows == sum(expected.values()) - first_of(spool)
        assert tuples == tuples_of(masters[1])
        with recovered_server(spool, tmp_path / "recovered") as server:
            assert tuples_of(server) == tuples_of(masters[1])
        print(
            f"killed {KILLS} times: {rows} rows, {len(list(spool.glob('*.xlog')))} logs, {len(tuples)} tuples equal"
        )


def size_of(spool: Path) -> int:
    return sum(path.stat().st_size for path in spool.glob("*.[sx]*")) if spool.exists() else 0


def disturb(masters: Mesh, proxies: dict[int, Proxy], chance: random.Random) -> Callable[[], None]:
    """Apply a random fault to a random master; return a function that undoes it."""
    number = chance.choice(sorted(masters.members))
    match chance.choice(["freeze", "kill", "partition", "cut"]):
        case "freeze":
            masters.signal(number, signal.SIGSTOP)
            return lambda: masters.signal(number, signal.SIGCONT)
        case "kill":
            masters[number].kill()
            return lambda: restart(masters, number)
        case "partition":
            proxies[number].partition(True)
            return lambda: proxies[number].partition(False)
        case _:
            proxies[number].cut()
            return lambda: None


def restart(masters: Mesh, number: int) -> None:
    masters[number].start()
    peers = [f"unix/:{server.socket}" for server in masters.members.values()]
    masters[number].eval("box.cfg{replication = ...}", peers)


@pytest.mark.parametrize("feed", list(FeedMode))
def test_a_mesh_that_is_killed_frozen_and_disconnected(tmp_path: Path, feed: FeedMode) -> None:
    chance = random.Random(SEED)
    spool, harms = tmp_path / "spool", 0
    with mesh(tmp_path, 3) as masters, ExitStack() as stack:
        proxies = {n: stack.enter_context(Proxy(server.socket)) for n, server in masters.members.items()}
        addresses = [proxy.address for proxy in proxies.values()]
        replicaset = stack.enter_context(following(options(spool, *addresses, feed=feed)))
        await_until(lambda: bool(replicaset.feeds), "a stream")
        end = time.monotonic() + 60 * MINUTES
        with Load(masters, 0.01) as load:
            while time.monotonic() < end:
                undo = disturb(masters, proxies, chance)
                time.sleep(chance.random() * 2 * QUICK.answer_seconds)
                undo()
                harms += 1
                time.sleep(chance.random() * QUICK.answer_seconds)
        await_all(masters, replicaset)
        rows, faults, tuples = read_spool(masters[1], spool)
        assert faults == []
        assert tuples == tuples_of(masters[1])
        progress = replicaset.progress
        assert rows == sum((replicaset.spool.vclock or {}).values()) - first_of(spool)
        print(
            f"{feed}: {harms} harms, {load.rows} written, {rows} rows in the spool, {len(tuples)} tuples equal, "
            f"{progress.started_streams} streams, {progress.assignment_changes} assignments, "
            f"{progress.repeated_rows} repeated"
        )


def first_of(spool: Path) -> int:
    return int(min(path.name for path in spool.glob("*.xlog")).removesuffix(".xlog"))


@pytest.mark.parametrize("feed", list(FeedMode))
def test_each_record_is_fetched_once(tmp_path: Path, feed: FeedMode) -> None:
    """Without faults, each written transaction is received once; with own_peer from its own peer."""
    with mesh(tmp_path, 3, {"replication_timeout": 10}) as masters:
        addresses = [f"unix/:{server.socket}" for server in masters.members.values()]
        patient = replace(QUICK, answer_seconds=60.0, patience_seconds=60.0)
        with following(options(tmp_path / "spool", *addresses, feed=feed, timing=patient)) as replicaset:
            await_until(lambda: len(replicaset.feeds) == (3 if feed is FeedMode.OWN_PEER else 1), "streams")
            start = dict(replicaset.spool.vclock or {})
            with Load(masters, 0.0):
                time.sleep(SECONDS)
            await_all(masters, replicaset)
            fetched = {uuid: feed.rows.row_counts for uuid, feed in replicaset.feeds.items()}
            written = {i: n - start.get(i, 0) for i, n in (replicaset.spool.vclock or {}).items()}
            assert sum(int(counts.sum()) for counts in fetched.values()) == sum(written.values())
            assert all(feed.rows.repeated_rows == 0 for feed in replicaset.feeds.values())
            if feed is FeedMode.OWN_PEER:
                for n in (1, 2, 3):
                    assert (
                        int(fetched[instance_uuid(n)].sum())
                        == int(fetched[instance_uuid(n)][n])
                        == written[n]
                    )
            print(f"{feed}: {sum(written.values())} rows written, as many fetched")
    assert read_state(tmp_path / "spool").vclock is not None

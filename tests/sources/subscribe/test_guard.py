"""A faulty master or a damaged spool stops only its replicaset, which is tried again with growing waits."""

import asyncio
import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import SpoolError
from sources.iproto.greeting import Greeting, format_greeting
from sources.iproto.packet import encode_packet
from sources.iproto.row_stream import TransactionChunk
from sources.spool.options import SpoolRetention
from sources.spool.spool import Spool
from sources.subscribe.daemon import daemon_tasks, replicaset_status
from sources.subscribe.peer_rows import PeerFeed
from sources.subscribe.peer_state import Backoff
from sources.subscribe.replicaset import ReplicasetSubscription
from tests.live.mesh import mesh
from tests.live.spools import read_spool, tuples_of
from tests.sources.subscribe.following import QUICK, options
from tests.sources.subscribe.test_following import write

A1 = "a0000001-0000-4000-8000-000000000001"
TIMING = replace(QUICK, answer_seconds=0.5, min_retry_seconds=0.01, max_retry_seconds=0.05)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def run(replicasets: list[ReplicasetSubscription], test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the daemon of some replicasets while a test runs; none of its tasks may end by itself."""

    async def both() -> None:
        tasks = [asyncio.create_task(each) for each in daemon_tasks(replicasets, SpoolRetention())]
        try:
            await test()
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(both())


def replicaset(directory: Path, *peers: str) -> ReplicasetSubscription:
    return ReplicasetSubscription(options(directory, *peers, timing=TIMING))


def test_a_damaged_spool_stops_only_its_replicaset(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "lock").touch()
    damaged = tmp_path / "bad" / "00000000000000000007.xlog"
    damaged.write_bytes(b"this is no log")
    nobody = f"unix/:{tmp_path}/nobody.sock"
    bad, good = replicaset(tmp_path / "bad", nobody), replicaset(tmp_path / "good", nobody)

    async def test() -> None:
        await until(lambda: bad.restarts >= 2 and good.links[0].error is not None)
        assert "damaged" in str(bad.error)
        assert replicaset_status(bad)["restarts"] >= 2
        assert "damaged" in replicaset_status(bad)["error"]
        assert (good.restarts, good.error) == (0, None)
        damaged.unlink()
        await until(lambda: bad.error is None and bad.links[0].error is not None)

    run([bad, good], test)


@contextlib.asynccontextmanager
async def serving(path: Path, answer: Callable[[int, dict[int, Any]], bytes]) -> Any:
    """Run a server that answers as a function says."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(format_greeting(Greeting((2, 6, 0), A1, bytes(32))))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while head := await reader.readexactly(5):
                message = await reader.readexactly(int.from_bytes(head[1:], "big"))
                writer.write(answer(message[2], {}))
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield
    finally:
        server.close()
        for writer in writers:
            writer.close()


BALLOT = {0x29: {1: False, 4: False, 2: {1: 5}, 3: {}}}
ODD: list[tuple[str, dict[int, Any]]] = [
    ("members that are numbers", {0x30: [1, 2, 3]}),
    ("a key without a value", {0x30: [["cluster"]]}),
    ("a uuid that is a number", {0x30: [["cluster", 5]]}),
    ("a uuid with line breaks", {0x30: [["cluster", f"{A1}\nVClock: {{1: 9}}\n\n"]]}),
    ("data that is a number", {0x30: 7}),
]


@pytest.mark.parametrize("body", [body for _, body in ODD], ids=[name for name, _ in ODD])
def test_a_faulty_master_stops_only_its_replicaset(tmp_path: Path, body: dict[int, Any]) -> None:
    odd = replicaset(tmp_path / "odd", f"unix/:{tmp_path}/odd.sock")
    good = replicaset(tmp_path / "good", f"unix/:{tmp_path}/nobody.sock")

    def answer(kind: int, _: dict[int, Any]) -> bytes:
        return encode_packet(0, 0, BALLOT if kind == 0x44 else body)

    async def test() -> None:
        async with serving(tmp_path / "odd.sock", answer):
            await until(lambda: odd.links[0].connection_count >= 3 and odd.links[0].error is not None)
            assert "not" in str(odd.links[0].error) or "no data" in str(odd.links[0].error)
            assert odd.restarts == good.restarts == 0

    run([odd, good], test)


def test_a_bug_stops_only_one_replicaset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = f"unix/:{tmp_path}/nobody.sock"
    bad, good = replicaset(tmp_path / "bad", nobody), replicaset(tmp_path / "good", nobody)

    async def broken() -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(bad, "_step", broken)

    async def test() -> None:
        await until(lambda: bad.restarts >= 3)
        assert "a bug" in str(bad.error)
        assert good.restarts == 0

    run([bad, good], test)


def test_a_replicaset_that_fails_while_it_is_cancelled_does_not_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, starts = replicaset(tmp_path / "spool", f"unix/:{tmp_path}/nobody.sock"), []

    async def fail_at_cancellation() -> None:
        starts.append(True)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if len(starts) == 1:
                raise TypeError("a bug") from None
            raise

    async def cancel() -> None:
        following, *_ = (asyncio.create_task(each) for each in daemon_tasks([failing], SpoolRetention()))
        await until(lambda: bool(starts))
        following.cancel()
        await asyncio.wait([following], timeout=5)
        assert following.cancelled()

    monkeypatch.setattr(failing, "run", fail_at_cancellation)
    asyncio.run(cancel())
    assert starts == [True]


@pytest.mark.live
def test_rows_that_arrive_after_a_failed_fsync_are_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool is truncated; until it is closed, a stream that continues after the lost rows must not write."""
    spool, waits, fails = tmp_path / "spool", threading.Event(), threading.Event()
    arrived: list[tuple[PeerFeed, TransactionChunk]] = []
    fsync, took, failed = os.fsync, ReplicasetSubscription._on_chunk, Spool.record_flush_failure

    def failing(file: int) -> None:
        if fails.is_set() and str(Path(f"/proc/self/fd/{file}").readlink()).endswith(".xlog"):
            fails.clear()
            waits.set()
            limit = time.monotonic() + 30
            while not arrived and time.monotonic() < limit:
                time.sleep(0.001)
            raise OSError(errno.EIO, "Input/output error")
        fsync(file)

    def hold_back(self: ReplicasetSubscription, feed: PeerFeed, chunk: TransactionChunk) -> None:
        if waits.is_set():
            arrived.append((feed, chunk))
        else:
            took(self, feed, chunk)

    with mesh(tmp_path, 1) as masters:
        how = options(spool, f"unix/:{masters[1].socket}", timing=replace(TIMING, acknowledge_seconds=0.02))
        subscription = ReplicasetSubscription(how)

        def then_arrive(self: Spool, error: OSError) -> SpoolError:
            found = failed(self, error)
            waits.clear()
            for feed, chunk in arrived:
                took(subscription, feed, chunk)
            return found

        monkeypatch.setattr(os, "fsync", failing)
        monkeypatch.setattr(ReplicasetSubscription, "_on_chunk", hold_back)
        monkeypatch.setattr(Spool, "record_flush_failure", then_arrive)

        async def test() -> None:
            write(masters, 1, 0, 20)
            await until(lambda: subscription.spool.durable_vclock == masters.vclock(1))
            fails.set()
            write(masters, 1, 20, 20)
            await until(waits.is_set)
            write(masters, 1, 40, 20)
            await until(
                lambda: subscription.restarts > 0 and subscription.spool.durable_vclock == masters.vclock(1)
            )

        run([subscription], test)
        assert arrived
        _, faults, tuples = read_spool(masters[1], spool)
        assert (faults, tuples) == ([], tuples_of(masters[1]))


@pytest.mark.live
@pytest.mark.parametrize("call", ["fsync", "write"])
def test_a_failing_disk_loses_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Each sixth call of one kind fails: following restarts, and fetches the lost rows again."""
    spool, calls = tmp_path / "spool", [0]
    real = getattr(os, call)

    def failing(file: int, *arguments: Any) -> Any:
        if str(Path(f"/proc/self/fd/{file}").readlink()).startswith(f"{spool}/0"):
            calls[0] += 1
            if calls[0] % 6 == 0:
                raise OSError(errno.EIO, "Input/output error")
        return real(file, *arguments)

    with mesh(tmp_path, 1) as masters:
        how = options(spool, f"unix/:{masters[1].socket}", timing=replace(TIMING, acknowledge_seconds=0.02))
        subscription = ReplicasetSubscription(how)
        monkeypatch.setattr(os, call, failing)

        async def test() -> None:
            for number in range(20):
                write(masters, 1, 20 * number, 20)
                reached = masters.vclock(1)
                await until(lambda reached=reached: subscription.spool.vclock == reached)  # type: ignore[misc]
            assert subscription.restarts > 0
            await until(lambda: subscription.spool.durable_vclock == masters.vclock(1))

        run([subscription], test)
        monkeypatch.undo()
        _, faults, tuples = read_spool(masters[1], spool)
        assert (faults, tuples) == ([], tuples_of(masters[1]))


def test_backoff_grows_is_bounded_and_random(monkeypatch: pytest.MonkeyPatch) -> None:
    high = Backoff(1.0, 30.0)
    monkeypatch.setattr(random, "uniform", lambda _low, most: most)
    assert [high.next_wait_seconds() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    high.reset()
    assert high.next_wait_seconds() == 1
    monkeypatch.undo()
    low = Backoff(1.0, 30.0)
    found = [low.next_wait_seconds() for _ in range(200)]
    assert min(found) >= 1.0
    assert len(set(found[10:])) > 100

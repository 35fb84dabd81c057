"""Runs the daemon of one replicaset inside a test, in a thread with its own event loop."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.fs

from sources.iproto import row_stream
from sources.iproto.address import Peer, parse_address
from sources.subscribe.options import ReplicasetOptions, SpoolStart, Timing
from sources.subscribe.replicaset import ReplicasetSubscription
from sources.xlog.reader import reader
from tests.live.server import Tarantool

QUICK = Timing(
    answer_seconds=2.0,
    poll_seconds=0.02,
    acknowledge_seconds=0.2,
    min_retry_seconds=0.02,
    max_retry_seconds=0.2,
    patience_seconds=1.0,
    max_clock_skew_seconds=0.05,
)
WAIT_SECONDS = 60.0


def await_until(
    condition: Callable[[], bool], what: str = "it", seconds: float = WAIT_SECONDS, pause: float = 0.005
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come")
        time.sleep(pause)


def peers(*addresses: str) -> tuple[Peer, ...]:
    return tuple(Peer(text, parse_address(text)[1]) for text in addresses)


def options(directory: Path, *addresses: str, **other: Any) -> ReplicasetOptions:
    return ReplicasetOptions("a", directory, peers(*addresses), **({"timing": QUICK} | other))


@contextmanager
def following(how: ReplicasetOptions, start: SpoolStart | None = None) -> Iterator[ReplicasetSubscription]:
    """Run the daemon while the `with` block runs; errors of the daemon are raised at its end."""
    row_stream.compile_kernels()
    loop = asyncio.new_event_loop()
    replicaset = ReplicasetSubscription(how, start)
    failed: list[BaseException] = []
    task: list[asyncio.Task[None]] = []

    def run() -> None:
        asyncio.set_event_loop(loop)
        task.append(loop.create_task(replicaset.run()))
        try:
            loop.run_until_complete(task[0])
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            failed.append(error)
            logging.getLogger(__name__).exception("the daemon failed")
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield replicaset
    finally:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(task[0].cancel)
        thread.join(WAIT_SECONDS)
    assert not thread.is_alive(), "the daemon did not end"
    if failed:
        raise failed[0]


def vclock(server: Tarantool) -> dict[int, int]:
    pairs = server.eval(
        "local p = {} for i, l in pairs(box.info.vclock) do table.insert(p, {i, l}) end return p"
    )
    return {int(i): int(lsn) for i, lsn in pairs if i and lsn}


def has(replicaset: ReplicasetSubscription, servers: Iterable[Tarantool]) -> Callable[[], bool]:
    """Return a function that tells whether a spool has all rows that the servers have now."""
    expected = [vclock(server) for server in servers]
    return lambda: all(
        (replicaset.spool.vclock or {}).get(i, 0) >= n for one in expected for i, n in one.items()
    )


def kept_rows(spool: Path, id_: int) -> list[int]:
    """Return the lsns of an id's rows in the last log of a spool that are no NOPs."""
    log = max(spool.glob("*.xlog"))
    batches = reader.read_rows(pyarrow.fs.LocalFileSystem(), str(log))
    rows = [row for batch in batches for row in batch.select(["type", "replica_id", "lsn"]).to_pylist()]
    return [row["lsn"] for row in rows if row["replica_id"] == id_ and row["type"] != "NOP"]

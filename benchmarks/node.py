"""Time until a real server that follows the aggregated tables of two replicasets has their tuples.

    python -m benchmarks.node --rows 1000000 --subscriber tarantool

Two real masters write the rows, a third of the keys both of them; batches run in this process, without Spark. After
each step, all tuples of the subscriber are compared with the table's.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.replication_out.writer import ReplicationWriter
from tests.live.server import Tarantool, find_servers
from tests.pipeline.replication_out.world import World, tuples_of, vclock_of
from tests.pipeline.replication_out.world import world as two_replicasets
from tests.sources.subscribe.following import await_until

FILL = """
    local first, last, step = ...
    local s, me = box.space.accounts, box.info.uuid:sub(1, 1)
    for i = first, last do
        if (i - first) % step == 0 then
            if (i - first) / step % 1000 == 0 then box.commit() box.begin() end
            s:replace{i, me .. '-' .. i, i}
        end
    end
    box.commit()
"""


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print the seconds that the block takes."""
    begin = time.monotonic()
    yield
    print(f"{what:<62} {time.monotonic() - begin:8.2f} s", flush=True)


def check(world: World, subscriber: Tarantool) -> int:
    """Return the number of tuples of the table; exit unless the subscriber has the same ones."""
    expected = sorted(world.deployment.tuples("accounts"))
    if tuples_of(subscriber, "accounts") != expected:
        raise SystemExit("the subscriber's tuples are not those of the table")
    return len(expected)


def seconds_since_commit(writer: ReplicationWriter, subscriber: Tarantool) -> tuple[float, float]:
    """Return the seconds from the newest epoch's commit until the stream has it, and until the subscriber has it."""
    writer.advance()
    committed = writer.mark.committed_at / 1e6 if writer.mark is not None else 0.0
    written = time.time() - committed
    wanted = {i: lsn for i, lsn in writer.stream.vclock.items() if lsn}
    await_until(lambda: vclock_of(subscriber) == wanted, "the subscriber", seconds=600)
    return written, time.time() - committed


def run(root: Path, rows: int, binary: str) -> None:
    """Measure the first snapshot and three epochs, and print the times; `binary` is the subscriber's Tarantool."""
    with two_replicasets(root) as world:
        for name in "ab":
            world.eval(name, "box.space.accounts.index.name:drop()")
        shared = rows // 4
        with timed(f"two masters write {rows:,} rows, {shared:,} keys both of them"):
            world.eval("a", FILL, 1, 2 * shared, 1)
            world.eval("b", FILL, shared + 1, 3 * shared, 1)
        with timed("one batch"):
            world.settle()
        with world.writing() as writer, world.serving():
            with timed("snapshot of the stream"):
                writer.advance()
            with timed("the subscriber starts and joins"):
                subscriber = world._stack.enter_context(world.subscriber(binary))
                world.await_epoch(subscriber, writer)
            with timed("comparing"):
                print(f"{check(world, subscriber):,} tuples equal")
            for size in (100, 10_000, rows // 4):
                world.eval("a", FILL, 1, size, 2)
                world.eval("b", FILL, 1, size, 3)
                world.settle()
                in_stream, in_subscriber = seconds_since_commit(writer, subscriber)
                print(
                    f"an epoch of {size // 2 + size // 3:>9,} rows: in the stream after {in_stream:6.2f} s, "
                    f"at the subscriber after {in_subscriber:6.2f} s; {check(world, subscriber):,} tuples equal",
                    flush=True,
                )


def main() -> int:
    """Measure how fast a server follows the decided tables, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--subscriber", default=next(iter(find_servers()), None))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        run(Path(root), options.rows, options.subscriber)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A real server that follows the decided tables of two replicasets: how long it takes, and that every tuple equals.

    python -m benchmarks.node --rows 1000000 --follower tarantool

Two real masters write the rows, a half of the keys both of them; the batches are done in this process, without Spark.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.node.writer import NodeWriter
from tests.live.server import Tarantool, find_servers
from tests.pipeline.node.world import World, tuples_of, vclock_of, world
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
    """Print how long something takes."""
    begin = time.monotonic()
    yield
    print(f"{what:<62} {time.monotonic() - begin:8.2f} s", flush=True)


def check(found: World, follower: Tarantool) -> int:
    """Compare all tuples, and return how many there are."""
    expected = sorted(found.deployment.tuples("accounts"))
    if tuples_of(follower, "accounts") != expected:
        raise SystemExit("the follower's tuples are not those of the table")
    return len(expected)


def lag(writer: NodeWriter, follower: Tarantool) -> tuple[float, float]:
    """Return the seconds from an epoch's commit until the stream and the follower have it."""
    writer.advance()
    committed = writer.mark.committed_at / 1e6 if writer.mark is not None else 0.0
    written = time.time() - committed
    wanted = {i: lsn for i, lsn in writer.stream.vclock.items() if lsn}
    await_until(lambda: vclock_of(follower) == wanted, "the follower", seconds=600)
    return written, time.time() - committed


def run(root: Path, rows: int, binary: str) -> None:
    """Print the figures."""
    with world(root) as found:
        for name in "ab":
            found.eval(name, "box.space.accounts.index.name:drop()")
        third = rows // 4
        with timed(f"two masters write {rows:,} rows, {third:,} keys both of them"):
            found.eval("a", FILL, 1, 2 * third, 1)
            found.eval("b", FILL, third + 1, 3 * third, 1)
        with timed("one batch"):
            found.settle()
        with found.writing() as writer, found.serving():
            with timed("snapshot of the stream"):
                writer.advance()
            with timed("the follower starts and joins"):
                follower = found._stack.enter_context(found.follower(binary))
                found.await_epoch(follower, writer)
            with timed("comparing"):
                print(f"{check(found, follower):,} tuples equal")
            for size in (100, 10_000, rows // 4):
                found.eval("a", FILL, 1, size, 2)
                found.eval("b", FILL, 1, size, 3)
                found.settle()
                written, there = lag(writer, follower)
                print(
                    f"an epoch of {size // 2 + size // 3:>9,} rows: written after {written:6.2f} s, "
                    f"at the follower after {there:6.2f} s; {check(found, follower):,} tuples equal",
                    flush=True,
                )


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--follower", default=next(iter(find_servers()), None))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        run(Path(root), options.rows, options.follower)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A job that stops itself (SIGSTOP) right before one of its commits, between the look at its lease and the commit.

    python -m tests.jobs.sleeper STEP --config FILE [--once]     # jobs/aggregate.py
    python -m tests.jobs.sleeper STEP FILE                       # one batch of the same writer, without Spark

STEP counts the commits with a mark: the first is that by which a writer takes its number. 0 stops nowhere. Leases are
short, so that tests need not wait for a minute.
"""

import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import warehouse.lock.lease
import warehouse.lock.lock
from config.deployment import Config, load
from jobs.main import main as command
from pipeline.batch import BatchWriter
from pipeline.commit.batch import BatchName
from pipeline.commit.load import load_state
from pipeline.source_options import stream_options
from schemas.errors import LockError
from sources.xlog.directory.offset import from_text, to_text
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.log_stream import LogStream
from warehouse.copies.primary import PrimaryLock
from warehouse.delta.fence import Fence
from warehouse.system_tables import cluster, epochs
from warehouse.warehouse import Warehouse

LEASE_SECONDS = 3.0
OVERTAKEN = 9
"""The exit code of a writer that finds out that it is one no more."""


def shorten_leases() -> None:
    """Set the time after which a lease ends."""
    warehouse.lock.lease.LEASE_SECONDS, warehouse.lock.lease.TRUSTED_SECONDS = (
        LEASE_SECONDS,
        LEASE_SECONDS * 3 / 4,
    )
    warehouse.lock.lock.RENEW_SECONDS = LEASE_SECONDS / 6  # type: ignore[attr-defined]


def stop_before(step: int) -> None:
    """Stop this process before the commit with that number."""
    made, count = Fence.next_mark, 0

    def next_mark(fence: Fence) -> int:
        nonlocal count
        count += 1
        if count == step:
            os.kill(os.getpid(), signal.SIGSTOP)
        return made(fence)

    setattr(Fence, "next_mark", next_mark)  # noqa: B010


def do_batch(config: Config, step: int) -> None:
    """Write the logs as one batch, in the same way as the job."""
    warehouse = Warehouse(None, config.warehouse, config.database)
    with PrimaryLock(warehouse, f"step {step}") as lock:
        warehouse.create_system_tables()
        epochs.roll_back(warehouse, epochs.last(warehouse))
        cluster.record_allocation(warehouse, config.cluster.allocation, datetime.now(UTC))
        state = load_state(warehouse)
        log_stream = LogStream(parse_options(stream_options(config, state, 1)))
        last = epochs.last(warehouse)
        start = {} if last is None or last.end_offset is None else from_text(last.end_offset)
        writer = BatchWriter(warehouse, config, log_stream, lock, state)
        # In the first batch of all the replicasets begin without rows.
        while (end := log_stream.latest(start, None)) != start:
            name = BatchName("test", writer.state.epoch + 1, (to_text(start), to_text(end)))
            writer.process(segments_between(log_stream, start, end), name)
            start = end


def main(step: int, file: Path) -> int:
    """Write one batch if there is no other writer, and return the exit code."""
    config = load(file)
    while True:
        try:
            do_batch(config, step)
        except LockError as error:
            if "is being written by" not in error.reason:
                print(error, file=sys.stderr)
                return OVERTAKEN
            time.sleep(LEASE_SECONDS / 6)
        else:
            return 0


if __name__ == "__main__":
    step = int(sys.argv.pop(1))
    shorten_leases()
    stop_before(step)
    sys.exit(command("run") if sys.argv[1].startswith("-") else main(step, Path(sys.argv[1])))

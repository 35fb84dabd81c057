"""Keeps the stream of the spaces' tables at the newest epoch until it is stopped, and retries after any error.

Writing is slow and must not delay the relay, so it has a thread of its own. `writer` writes the stream, `sources.relay`
serves it.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from pipeline.replication_out.state import EpochMark
from pipeline.replication_out.stream import Stream
from pipeline.replication_out.target import EpochRow
from pipeline.replication_out.users import SubscriberUser
from pipeline.replication_out.writer import ReplicationWriter
from schemas.conditions import NODE_LAG_SECONDS, Job
from schemas.errors import AggregatorError
from schemas.problems import Problem, condition_metric, problem
from sources.xlog.format.block import BLOCK_LIMIT
from warehouse.warehouse import Warehouse

logger = logging.getLogger(__name__)

MAX_RETRY_SECONDS = 30.0
"""The maximum number of seconds between an error and the next attempt."""


@dataclass(frozen=True)
class ReplicationOptions:
    """The options of a `ReplicationService`."""

    location: str
    database: str
    """The location and the database of the warehouse."""
    directory: Path
    readers: tuple[SubscriberUser, ...] = ()
    poll_seconds: float = 1.0
    """The seconds between two checks of `_epochs`."""
    forget_seconds: float = 86400.0
    """The seconds for which files stay for a subscriber that no longer acknowledges any."""
    max_block_bytes: int = BLOCK_LIMIT


class ReplicationService:
    """Writes the stream of one warehouse."""

    def __init__(self, options: ReplicationOptions) -> None:
        self.options = options
        self.error: str | None = None
        """The last error, None if the stream continues."""
        self.mark: EpochMark | None = None
        """The epoch that subscribers can have."""
        self.newest: EpochRow | None = None
        self.left_out: Mapping[str, str] = {}
        """The reasons why spaces and instances are not served, by name."""
        self._stop = threading.Event()
        self._stream: Stream | None = None

    def durable_end(self) -> tuple[Path, int] | None:
        """Return the log that is being written, and the number of its bytes that are synced to the disk."""
        stream = self._stream
        return None if stream is None else stream.spool.durable_end

    @property
    def lag(self) -> float:
        """Seconds since the newest epoch was committed, 0 if subscribers can have it."""
        newest, mark = self.newest, self.mark
        if newest is None or (mark is not None and mark.committed_at == newest.committed_at):
            return 0.0
        return max(0.0, time.time() - newest.committed_at / 1e6)

    async def run(self) -> None:
        """Run `keep_up` in a thread until the task is cancelled."""
        try:
            await asyncio.to_thread(self.keep_up)
        finally:
            self._stop.set()

    def keep_up(self) -> None:
        """Write the stream until `stop` is called; after an error, wait and continue."""
        wait = self.options.poll_seconds
        while not self._stop.is_set():
            try:
                self._write_until_stopped()
                wait = self.options.poll_seconds
            except Exception as error:  # the relay serves the files that exist
                self._log_error(error)
                self._stop.wait(wait)
                wait = min(2 * wait, MAX_RETRY_SECONDS)

    def stop(self) -> None:
        """End `keep_up` after its current step."""
        self._stop.set()

    def _write_until_stopped(self) -> None:
        options = self.options
        warehouse = Warehouse(None, options.location, options.database)
        with Stream(options.directory, options.max_block_bytes, options.forget_seconds) as stream:
            self._stream = stream
            writer = ReplicationWriter(warehouse, stream, options.readers)
            while not self._stop.is_set():
                has_more = writer.advance()
                self.mark, self.newest, self.left_out = writer.mark, writer.newest, writer.left_out
                self.error = None
                if not has_more:
                    stream.remove_old_files()
                    self._stop.wait(options.poll_seconds)

    def _log_error(self, error: Exception) -> None:
        is_expected = isinstance(error, AggregatorError | OSError)
        shown = str(error) if is_expected else f"{type(error).__name__}: {error}"
        if shown != self.error:
            logger.error("%s: %s", self.options.directory, shown, exc_info=None if is_expected else error)
        self.error = shown


def service_status(service: ReplicationService) -> dict[str, Any]:
    """Return the status of a service as JSON, for the daemon's status page."""
    return {
        "spool": str(service.options.directory),
        "error": service.error,
        "epoch": None if service.mark is None else service.mark.epoch,
        "newest_epoch": None if service.newest is None else service.newest.epoch,
        "lag_seconds": service.lag,
        "left_out": dict(sorted(service.left_out.items())),
    }


def service_problems(service: ReplicationService) -> Iterator[Problem]:
    """Yield what needs attention at the stream of decided tables."""
    if service.error is not None:
        yield problem("node_failed", "node", service.error)
    if service.lag > NODE_LAG_SECONDS:
        text = f"subscribers cannot have epochs of the last {service.lag:.0f} s"
        yield problem("node_lag_high", "node", text)


class ReplicationMetrics:
    """A collector for `prometheus_client`."""

    def __init__(self, service: ReplicationService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        service = self._service
        epoch = -1 if service.mark is None else service.mark.epoch
        yield GaugeMetricFamily("node_epoch", "The epoch that subscribers can have", value=epoch)
        yield GaugeMetricFamily(
            "node_lag_seconds",
            "Since the newest epoch was committed that subscribers cannot have yet",
            value=service.lag,
        )
        yield GaugeMetricFamily(
            "node_failed", "Whether the stream does not continue", value=service.error is not None
        )
        yield condition_metric(Job.NODE, service_problems(service))
        yield GaugeMetricFamily(
            "node_left_out", "Spaces, indexes and instances that are not served", value=len(service.left_out)
        )

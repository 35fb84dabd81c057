"""Keeps a node's stream at the newest epoch until it is stopped, and retries after any error.

Writing is slow and must not delay the relay, so it has a thread of its own. `writer` writes the stream, `sources.relay`
serves it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from pipeline.node.state import EpochMark
from pipeline.node.stream import Stream
from pipeline.node.target import EpochRow
from pipeline.node.users import NodeUser
from pipeline.node.writer import NodeWriter
from schemas.errors import AggregatorError
from sources.xlog.format.block import BLOCK_LIMIT
from warehouse.warehouse import Warehouse

logger = logging.getLogger(__name__)

LONGEST_WAIT = 30.0
"""The maximum time between two attempts, in seconds."""


@dataclass(frozen=True)
class NodeOptions:
    """The options of one node.

    Parameters
    ----------
    location, database : str
        The location and the database of the warehouse.
    directory : Path
        The directory of the stream.
    readers : tuple of NodeUser
        The users of the followers.
    poll : float
        The seconds between two checks of `_epochs`.
    forget : float
        The seconds for which files are kept for a follower that no longer reads.
    max_block_bytes : int
        The maximum size of a block of the stream.

    """

    location: str
    database: str
    directory: Path
    readers: tuple[NodeUser, ...] = ()
    poll: float = 1.0
    forget: float = 86400.0
    max_block_bytes: int = BLOCK_LIMIT


class NodeService:
    """Writes the stream of one warehouse.

    Parameters
    ----------
    options : NodeOptions

    """

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self.error: str | None = None
        """The last error, None if the stream continues."""
        self.mark: EpochMark | None = None
        """The epoch that followers can have."""
        self.newest: EpochRow | None = None
        self.left_out: Mapping[str, str] = {}
        self._stop = threading.Event()
        self._stream: Stream | None = None

    def durable_end(self) -> tuple[Path, int] | None:
        """Return the log that is being written, and the number of its bytes that are synced to the disk."""
        stream = self._stream
        return None if stream is None else stream.spool.durable_end

    @property
    def lag(self) -> float:
        """Seconds since the newest epoch was committed, 0 if followers can have it."""
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
        """Write the stream until `stop` is called, and begin again after an error."""
        wait = self.options.poll
        while not self._stop.is_set():
            try:
                self._write()
                wait = self.options.poll
            except Exception as error:  # the relay serves the files that exist
                self._report(error)
                self._stop.wait(wait)
                wait = min(2 * wait, LONGEST_WAIT)

    def stop(self) -> None:
        """End `keep_up` after its current step."""
        self._stop.set()

    def _write(self) -> None:
        options = self.options
        warehouse = Warehouse(None, options.location, options.database)
        with Stream(options.directory, options.max_block_bytes, options.forget) as stream:
            self._stream = stream
            writer = NodeWriter(warehouse, stream, options.readers)
            while not self._stop.is_set():
                has_more = writer.advance()
                self.mark, self.newest, self.left_out = writer.mark, writer.newest, writer.left_out
                self.error = None
                if not has_more:
                    stream.tidy()
                    self._stop.wait(options.poll)

    def _report(self, error: Exception) -> None:
        is_expected = isinstance(error, AggregatorError | OSError)
        shown = str(error) if is_expected else f"{type(error).__name__}: {error}"
        if shown != self.error:
            logger.error("%s: %s", self.options.directory, shown, exc_info=None if is_expected else error)
        self.error = shown


def status_of(node: NodeService) -> dict[str, Any]:
    """Return the status of a node in JSON's types."""
    return {
        "spool": str(node.options.directory),
        "error": node.error,
        "epoch": None if node.mark is None else node.mark.epoch,
        "newest_epoch": None if node.newest is None else node.newest.epoch,
        "lag_seconds": node.lag,
        "left_out": dict(sorted(node.left_out.items())),
    }


class NodeMetrics:
    """A collector for `prometheus_client`.

    Parameters
    ----------
    node : NodeService

    """

    def __init__(self, node: NodeService) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        node = self._node
        epoch = -1 if node.mark is None else node.mark.epoch
        yield GaugeMetricFamily("node_epoch", "The epoch that followers can have", value=epoch)
        yield GaugeMetricFamily(
            "node_lag_seconds",
            "Since the newest epoch was committed that followers cannot have yet",
            value=node.lag,
        )
        yield GaugeMetricFamily(
            "node_failed", "Whether the stream does not continue", value=node.error is not None
        )
        yield GaugeMetricFamily(
            "node_left_out", "Spaces, indexes and instances that are not served", value=len(node.left_out)
        )

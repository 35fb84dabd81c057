"""Passes Spark's events and committed batches to the metrics, the JSON log and warnings.

A StreamingQueryListener: Spark calls it after each trigger, also one without rows, in its own thread, so it never
delays a batch. A batch's numbers are read from its commit (`observe.metrics.committed_batches`); Spark's event has its
duration and the end of the logs. `observe.metrics.stream_metrics` counts.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from config.address import listen_address
from config.deployment import Config
from config.subscribe import seconds
from observe.metrics.committed_batches import Batch, CommittedBatchReader
from observe.metrics.stream_metrics import Notice, StreamMetrics, Trigger, step_of
from observe.status_page import status_page
from pipeline.batch import BatchResult
from schemas.errors import ConfigurationError
from warehouse.lock import WriterLock
from warehouse.peers import Peers
from warehouse.place import place_of

log = logging.getLogger(__name__)

LAST_EVENT_SECONDS = 10.0
"""Seconds to wait for the event of the query's end, which Spark sends after all progress events."""


class Listener(StreamingQueryListener):
    """Passes events to the metrics and the log.

    Parameters
    ----------
    metrics : StreamMetrics
    committed : CommittedBatchReader
    lines : TextIO or None
        The JSON log.

    """

    def __init__(self, metrics: StreamMetrics, committed: CommittedBatchReader, lines: TextIO | None) -> None:
        self._metrics, self._committed, self._lines = metrics, committed, lines
        self._results: dict[int, BatchResult] = {}
        self._step = Trigger("", -1)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()

    def batch_done(self, done: BatchResult) -> None:
        """Take the job's own report of a batch, which comes before Spark's."""
        self._results = {done.batch_id: done}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Record that the stream runs."""
        self._ended.clear()
        self._write("started", {"query": str(event.id), "run": str(event.runId)})

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Process a finished trigger."""
        self._take(step_of(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802, ARG002
        """Check the time: a source may have become stale."""
        self._take(replace(self._step, batch_id=-1))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Record that the stream has ended."""
        reason = None if event.exception is None else event.exception.partition("\n")[0]
        self._write("stopped", {"query": str(event.id), "error": reason})
        self._ended.set()

    def finish(self) -> None:
        """Wait for the last event, and report batches that no event has reported."""
        self._ended.wait(LAST_EVENT_SECONDS)
        self._take(replace(self._step, batch_id=-1))

    def _take(self, step: Trigger) -> None:
        # An error here must not look like one of the stream.
        try:
            with self._lock:
                self._step = step
                done = self._results.pop(step.batch_id, None)
                steps = {} if done is None else done.steps
                worked = False
                has_batches = False
                for batch in self._committed.since():
                    has_batches = True
                    own = (batch.query_id, batch.batch_id) == (step.query_id, step.batch_id)
                    worked = worked or own
                    notices = self._metrics.batch(batch)
                    self._write("batch", self._log_line(batch, step, steps if own else None))
                    self._warn(notices)
                if has_batches:
                    self._metrics.hold(self._committed.held())
                self._warn(self._metrics.step(step, worked, steps))
        except Exception:
            log.exception("metrics: a trigger of the stream could not be reported")

    def _log_line(self, batch: Batch, step: Trigger, steps: Mapping[str, float] | None) -> dict[str, Any]:
        """Return a log line; the duration is known only for this trigger's own batch."""
        committed = batch.committed_at
        origins = [
            {
                "source": one.source,
                "replicaset": one.replicaset_id,
                "origin": one.global_id,
                "rows": one.rows,
                "lag_seconds": None
                if one.newest is None
                else round((committed - one.newest).total_seconds(), 3),
            }
            for one in batch.origins
        ]
        return {
            "epoch": batch.epoch,
            "batch": batch.batch_id,
            "committed_at": committed.isoformat(),
            "rows": batch.rows,
            "origins": origins,
            "behind_bytes": dict(step.behind),
            "phases": {} if steps is None else dict(step.phases),
            "steps": {name: round(at, 3) for name, at in (steps or {}).items()},
            "conflicts": dict(batch.conflicts),
            "quarantined": dict(batch.quarantined),
            "gaps": len(batch.gaps),
        }

    def _warn(self, notices: list[Notice]) -> None:
        for notice in notices:
            log.warning("%s", notice.message)
            self._write("warning", {"warning": notice.name, "message": notice.message, **notice.details})

    def _write(self, event: str, fields: Mapping[str, Any]) -> None:
        if self._lines is not None:
            line = {"at": datetime.now(UTC).isoformat(), "event": event, **fields}
            self._lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._lines.flush()


@contextmanager
def measured(
    spark: SparkSession,
    config: Config,
    *,
    once: bool,
    lock: WriterLock | None = None,
    peers: Peers | None = None,
) -> Iterator[Listener | None]:
    """Report the streams that run in this context; yield None without the section `metrics`.

    Parameters
    ----------
    once : bool
        Whether the stream ends by itself, so that batches have no fixed interval.
    lock : WriterLock, optional
        The stream's lock.
    peers : Peers, optional
        Copies that the stream keeps connected.

    Raises
    ------
    ConfigurationError
        The log cannot be opened, or the port is taken.
    WarehouseError
        The warehouse's location can be opened by Spark only.

    """
    wanted = config.metrics
    if wanted is None:
        yield None
        return
    committed = CommittedBatchReader(place_of(config.warehouse, config.database))
    trigger = None if once else seconds(config.trigger)
    stale = None if wanted.stale is None else seconds(wanted.stale)
    metrics = StreamMetrics(
        trigger,
        stale,
        committed.open_gaps(),
        is_lock_held=lambda: lock is None or lock.is_held,
        peers=lambda: () if peers is None else peers.states(),
    )
    metrics.hold(committed.held())
    with ExitStack() as stack:
        lines = _lines(wanted.log, stack)
        stack.enter_context(status_page(listen_address(wanted.status), metrics, metrics.status))
        listener = Listener(metrics, committed, lines)
        spark.streams.addListener(listener)
        try:
            yield listener
        finally:
            listener.finish()
            spark.streams.removeListener(listener)


def _lines(name: str | None, stack: ExitStack) -> TextIO | None:
    if name is None or name == "stderr":
        return None if name is None else sys.stderr
    try:
        return stack.enter_context(Path(name).open("a", encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"the log of the metrics cannot be written: {error.strerror}", path="metrics.log", file=name
        ) from error

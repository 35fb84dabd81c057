"""Spark's events and the tables' books → the board, the JSON log, warnings.

A StreamingQueryListener: Spark calls it after each trigger, also one without rows, in a thread of its own, so
nothing here holds a batch up. What a batch did is read back from what it committed (`observe.metrics.books`); Spark's
event says how long it took and how far the log reaches. Not here: what is counted (`observe.metrics.board`).
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

from config.address import port_of
from config.deployment import Config
from config.subscribe import seconds
from observe.metrics.board import Board
from observe.metrics.books import Batch, Books
from observe.metrics.notices import Notice
from observe.metrics.progress_event import Trigger, step_of
from observe.status_page import status_page
from pipeline.batch import BatchResult
from schemas.errors import ConfigurationError
from warehouse.lock import WriterLock
from warehouse.place import place_of

log = logging.getLogger(__name__)

LAST_EVENT_SECONDS = 10.0
"""Spark tells the end of a query behind all of its progress; longer than this nobody waits for it."""


class Listener(StreamingQueryListener):
    """Carries events to the board and the log.

    Parameters
    ----------
    board : Board
    books : Books
    lines : TextIO or None
        The JSON log.

    """

    def __init__(self, board: Board, books: Books, lines: TextIO | None) -> None:
        self._board, self._books, self._lines = board, books, lines
        self._results: dict[int, BatchResult] = {}
        self._step = Trigger("", -1)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()

    def batch_done(self, done: BatchResult) -> None:
        """Take the job's own word on a batch, before Spark's."""
        self._results = {done.batch_id: done}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Note that the stream runs."""
        self._ended.clear()
        self._write("started", {"query": str(event.id), "run": str(event.runId)})

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take a trigger that was done."""
        self._take(step_of(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802, ARG002
        """Look at the time: a source may have become stale."""
        self._take(replace(self._step, batch_id=-1))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Note that the stream has ended."""
        reason = None if event.exception is None else event.exception.partition("\n")[0]
        self._write("stopped", {"query": str(event.id), "error": reason})
        self._ended.set()

    def finish(self) -> None:
        """Wait for the last event, and report the batches that no event reported."""
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
                for batch in self._books.since():
                    has_batches = True
                    own = (batch.query_id, batch.batch_id) == (step.query_id, step.batch_id)
                    worked = worked or own
                    notices = self._board.batch(batch)
                    self._write("batch", self._told(batch, step, steps if own else None))
                    self._warn(notices)
                if has_batches:
                    self._board.hold(self._books.held())
                self._warn(self._board.step(step, worked, steps))
        except Exception:
            log.exception("metrics: a step of the stream could not be told")

    def _told(self, batch: Batch, step: Trigger, steps: Mapping[str, float] | None) -> dict[str, Any]:
        """Return a line; how long it took is known of the batch of this very trigger alone."""
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
    spark: SparkSession, config: Config, *, once: bool, lock: WriterLock | None = None
) -> Iterator[Listener | None]:
    """Report the streams that run in this context, as the configuration says; yield None without the section `metrics`.

    Parameters
    ----------
    once : bool
        Whether the stream ends by itself, so that no batch can be longer than its trigger.
    lock : WriterLock, optional
        The stream's.

    Raises
    ------
    ConfigurationError
        The log cannot be opened, or the port is taken.
    WarehouseError
        Only Spark opens the place of the warehouse.

    """
    wanted = config.metrics
    if wanted is None:
        yield None
        return
    books = Books(place_of(config.warehouse, config.database))
    trigger = None if once else seconds(config.trigger)
    stale = None if wanted.stale is None else seconds(wanted.stale)
    board = Board(trigger, stale, books.open_gaps(), is_lock_held=lambda: lock is None or lock.is_held)
    board.hold(books.held())
    with ExitStack() as stack:
        lines = _lines(wanted.log, stack)
        stack.enter_context(status_page(port_of(wanted.status), board, board.status))
        listener = Listener(board, books, lines)
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

"""Passes Spark's events and committed batches to the metrics, the JSON log and the warnings.

Spark calls a StreamingQueryListener after each trigger, even without rows, in a separate thread, so the listener never
delays a batch. The numbers of a batch are read from the tables (`observe.metrics.committed_batches`); Spark's event has
the batch's duration and the positions up to which logs were read. `observe.metrics.stream_metrics` computes the
metrics.
"""

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

from config.deployment import Config
from config.subscribe import seconds
from config.values import listen_address
from observe.applied_rows import AppliedRows
from observe.facts import DeploymentFacts
from observe.metrics.committed_batches import CommittedBatch, CommittedBatchReader
from observe.metrics.health import StreamHealth
from observe.metrics.stream_metrics import StreamMetrics, StreamWarning, TriggerReport, parse_trigger_report
from observe.status_page import status_page
from pipeline.batch import BatchResult
from pipeline.commit.costs import BatchCosts
from schemas.errors import ConfigurationError
from warehouse.copies.standbys import Standbys
from warehouse.delta.location import location_of
from warehouse.delta.newest_epoch import NO_EPOCH, last_epoch
from warehouse.lock.lock import WriterLock

log = logging.getLogger(__name__)

LAST_EVENT_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for the event that the query has ended, which Spark sends after all progress events."""


class MetricsListener(StreamingQueryListener):
    """Passes Spark's events to the metrics and the JSON log.

    Args:
        committed: Reads what each batch did after Spark has reported its trigger.
        health: Called each time when Spark's events show that the reader of the logs has answered.
    """

    def __init__(
        self,
        metrics: StreamMetrics,
        committed: CommittedBatchReader,
        log_file: TextIO | None,
        health: StreamHealth | None = None,
    ) -> None:
        self.health = health
        self._metrics, self._committed, self._log_file = metrics, committed, log_file
        self._result_by_batch_id: dict[int, BatchResult] = {}
        self._unreported: list[CommittedBatch] = []
        self._query_id, self._newest_batch_id = "", -1
        self._last_report = TriggerReport("", -1)
        self._report_lock = threading.Lock()
        self._query_ended = threading.Event()
        self._query_ended.set()

    def batch_done(self, result: BatchResult) -> None:
        """Store the result of a batch until Spark's progress event of the same batch arrives."""
        self._result_by_batch_id[result.batch_id] = result

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Log that the stream has started."""
        self._query_ended.clear()
        self._query_id, self._newest_batch_id = str(event.id), -1
        self._write_log_line("started", {"query": str(event.id), "run": str(event.runId)})

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report a finished trigger."""
        report = parse_trigger_report(json.loads(event.progress.json))
        self._newest_batch_id = report.batch_id
        self._report_trigger(report)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802, ARG002
        """Report a trigger without a batch: a source may have become stale in the meantime."""
        self._report_trigger(replace(self._last_report, batch_id=-1))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Log that the stream has ended."""
        reason = None if event.exception is None else event.exception.partition("\n")[0]
        self._write_log_line("stopped", {"query": str(event.id), "error": reason})
        self._query_ended.set()

    def finish(self) -> None:
        """Wait for Spark's last event, and report batches for which Spark sent no event."""
        self._query_ended.wait(LAST_EVENT_TIMEOUT_SECONDS)
        self._query_id = ""
        self._report_trigger(replace(self._last_report, batch_id=-1))

    def _report_trigger(self, report: TriggerReport) -> None:
        # An error of the metrics must not look like an error of the stream.
        if self.health is not None:
            self.health.see_reader()
        try:
            with self._report_lock:
                self._last_report = report
                result = self._result_by_batch_id.pop(report.batch_id, None)
                for number in list(self._result_by_batch_id):  # a batch may end meanwhile, in another thread
                    if number < report.batch_id:
                        del self._result_by_batch_id[number]
                seconds_by_step = {} if result is None else result.seconds_by_step
                costs = None if result is None else result.costs
                if costs is not None:
                    self._metrics.count_costs(costs)
                has_own_batch = False
                has_batches = False
                for batch in self._batches_to_report():
                    has_batches = True
                    is_own = (batch.query_id, batch.batch_id) == (report.query_id, report.batch_id)
                    has_own_batch = has_own_batch or is_own
                    warnings = self._metrics.count_batch(batch)
                    self._write_log_line(
                        "batch",
                        {
                            **self._batch_line(batch, report, seconds_by_step if is_own else None),
                            **(_cost_fields(costs) if is_own and costs is not None else {}),
                        },
                    )
                    self._log_warnings(warnings)
                if has_batches:
                    self._metrics.set_pending(self._committed.pending_counts())
                self._log_warnings(self._metrics.count_trigger(report, has_own_batch, seconds_by_step))
        except Exception:
            log.exception("metrics: a trigger of the stream could not be reported")

    def _batches_to_report(self) -> list[CommittedBatch]:
        """Return the committed batches, without those of this query whose own event has not come yet.

        Spark's events arrive late on a busy machine: the next batch may have been committed by then.
        """
        batches = [*self._unreported, *self._committed.new_batches()]
        self._unreported = [
            batch
            for batch in batches
            if batch.query_id == self._query_id and batch.batch_id > self._newest_batch_id
        ]
        return [batch for batch in batches if batch not in self._unreported]

    def _batch_line(
        self, batch: CommittedBatch, report: TriggerReport, seconds_by_step: Mapping[str, float] | None
    ) -> dict[str, Any]:
        """Return the log line of a batch; `seconds_by_step` is None if `report` is of another batch."""
        committed = batch.committed_at
        origins = [
            {
                "source": origin.source,
                "replicaset": origin.replicaset_id,
                "origin": origin.global_id,
                "rows": origin.row_count,
                "lag_seconds": None
                if origin.newest_time is None
                else round((committed - origin.newest_time).total_seconds(), 3),
            }
            for origin in batch.origins
        ]
        return {
            "epoch": batch.epoch,
            "batch": batch.batch_id,
            "committed_at": committed.isoformat(),
            "rows": batch.read_row_count,
            "executor": batch.executor,
            "origins": origins,
            "behind_bytes": dict(report.unread_bytes_by_leader),
            "phases": {} if seconds_by_step is None else dict(report.seconds_by_phase),
            "steps": {name: round(end, 3) for name, end in (seconds_by_step or {}).items()},
            "conflicts": dict(batch.conflicts_by_space),
            "quarantined": dict(batch.quarantined_by_space),
            "gaps": len(batch.changed_gaps),
        }

    def _log_warnings(self, warnings: list[StreamWarning]) -> None:
        for warning in warnings:
            log.warning("%s", warning.message)
            self._write_log_line(
                "warning", {"warning": warning.name, "message": warning.message, **warning.details}
            )

    def _write_log_line(self, event: str, fields: Mapping[str, Any]) -> None:
        if self._log_file is not None:
            line = {"at": datetime.now(UTC).isoformat(), "event": event, **fields}
            self._log_file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._log_file.flush()


def _cost_fields(costs: BatchCosts) -> dict[str, Any]:
    return {
        "written_bytes": costs.written_bytes,
        "changed_bytes": costs.changed_bytes,
        "copies": {"hits": costs.copies.used, "misses": costs.copies.missed},
    }


@contextmanager
def metrics_listener(
    spark: SparkSession,
    config: Config,
    *,
    once: bool,
    lock: WriterLock | None = None,
    standbys: Standbys | None = None,
) -> Iterator[MetricsListener | None]:
    """Report metrics of the streams that run while the block runs, and yield the listener.

    Without the section `metrics`, yield None and report nothing.

    Args:
        once: Whether the stream stops at the end of the logs; if so, no batch is reported as slow.

    Raises:
        ConfigurationError: The JSON log cannot be opened, or the port of the status page is taken.
        WarehouseError: Only Spark can open the warehouse's location.
    """
    section = config.metrics
    if section is None:
        yield None
        return
    location = location_of(config.warehouse, config.database)
    committed = CommittedBatchReader(location)
    trigger = None if once else seconds(config.trigger)
    stale = None if section.stale is None else seconds(section.stale)
    metrics = StreamMetrics(
        trigger,
        stale,
        committed.open_gaps(),
        is_lock_held=lambda: lock is None or lock.is_held,
        standbys=lambda: () if standbys is None else standbys.states(),
    )
    metrics.set_pending(committed.pending_counts())
    if last_epoch(location) != NO_EPOCH:
        facts = DeploymentFacts(location)
        metrics.set_epoch(int(facts.epoch_row["epoch"]), facts.committed_at.timestamp(), facts.positions)
    with ExitStack() as stack:
        log_file = _open_log(section.log, stack)
        pages = {"/wait": AppliedRows(location).page}
        stack.enter_context(status_page(listen_address(section.status), metrics, metrics.status, pages))
        health = StreamHealth(config, location, metrics, is_endless=not once)
        stack.enter_context(health.watching())
        listener = MetricsListener(metrics, committed, log_file, health)
        spark.streams.addListener(listener)
        try:
            yield listener
        finally:
            listener.finish()
            spark.streams.removeListener(listener)


def _open_log(name: str | None, stack: ExitStack) -> TextIO | None:
    """Open the JSON log, and let `stack` close it; "stderr" is the standard error output, None: there is no log."""
    if name is None or name == "stderr":
        return None if name is None else sys.stderr
    try:
        return stack.enter_context(Path(name).open("a", encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"the JSON log cannot be written: {error.strerror}", path="metrics.log", file=name
        ) from error

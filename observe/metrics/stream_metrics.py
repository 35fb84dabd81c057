"""Computes the stream's metrics from committed batches and Spark's reports: Prometheus samples, a status, warnings.

Thread-safe, since Spark's listener, the job and the status page run in different threads. No I/O.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from observe.metrics.committed_batches import CommittedBatch, OriginRows, PendingCounts
from pipeline.commit.costs import BatchCosts
from schemas.conditions import Job
from schemas.problems import Problem, condition_metric, problem_as_json
from schemas.states import GapKind, GapState
from sources.xlog.directory.offset import InstantState
from warehouse.copies.standbys import StandbyState
from warehouse.system_tables.gaps import CLOSED, Gap


class CostMetrics:
    """Counts the costs of batches (`pipeline.commit.costs`); its caller holds a lock.

    | metric | |
    |---|---|
    | `aggregator_written_bytes_total{kind}` | bytes written to tables of spaces: `data`, `vectors`, `compaction` |
    | `aggregator_changed_bytes_total` | of the data, the part of the batches' own rows |
    | `aggregator_key_copy_searches_total{result}` | searches of data files for keys: by a copy (`hit`), or not |
    | `aggregator_key_copy_bytes` | the size of the folder of key copies on the driver's machine |
    | `aggregator_deleted_rows_ratio{table}` | of a table with deletion vectors: the share of its rows that is deleted |
    | `aggregator_compaction_debt_bytes{table}` | of such a table: the size of files that compaction is to write again |
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.last: BatchCosts | None = None
        """The costs of the newest batch; None before the first one."""
        self._written = Counter(
            "aggregator_written_bytes", "Bytes written to tables of spaces", ["kind"], registry=registry
        )
        self._changed = Counter(
            "aggregator_changed_bytes", "Bytes of the changed rows in written files", registry=registry
        )
        self._searches = Counter(
            "aggregator_key_copy_searches",
            "Searches of data files for keys, by a key copy or without",
            ["result"],
            registry=registry,
        )
        self._copy_bytes = Gauge("aggregator_key_copy_bytes", "Size of the key copies", registry=registry)
        self._deleted = Gauge(
            "aggregator_deleted_rows_ratio",
            "Share of a table's rows that is deleted",
            ["table"],
            registry=registry,
        )
        self._due = Gauge(
            "aggregator_compaction_debt_bytes",
            "Size of a table's files that compaction is to write again",
            ["table"],
            registry=registry,
        )

    def count(self, costs: BatchCosts) -> None:
        """Add the costs of a batch."""
        self.last = costs
        by_kind = {
            "data": costs.data_bytes,
            "vectors": costs.vector_bytes,
            "compaction": costs.compaction_bytes,
        }
        for kind, size in by_kind.items():
            self._written.labels(kind).inc(size)
        self._changed.inc(costs.changed_bytes)
        for result, count in (("hit", costs.copies.used), ("miss", costs.copies.missed)):
            self._searches.labels(result).inc(count)
        for table, debt in costs.debts.items():
            self._deleted.labels(table).set(debt.deleted_share)
            self._due.labels(table).set(debt.due_bytes)

    def set_copy_bytes(self, size: int) -> None:
        """Set the size of the folder of key copies."""
        self._copy_bytes.set(size)


@dataclass(frozen=True)
class TriggerReport:
    """Spark's progress event after one trigger, which may have had no batch."""

    query_id: str
    """Spark's id of the streaming query, as in `_epochs`."""
    batch_id: int
    """Spark's number of the batch; -1 for an idle trigger."""
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase of the trigger (Spark's `durationMs`); `triggerExecution` is the whole trigger."""
    leaders: frozenset[str] = frozenset()
    """The leader (the source that is read now) of each replicaset."""
    unread_bytes_by_leader: Mapping[str, int] = field(default_factory=dict)
    """By leader: the number of unread bytes of its newest log file. Leaders that are read in an earlier file are
    absent."""
    waiting_since_by_leader: Mapping[str, float] = field(default_factory=dict)
    """By leader that waits at a marker for the other replicasets: the marker's time, in seconds since 1970."""


def parse_trigger_report(progress: Mapping[str, Any]) -> TriggerReport:
    """Return the report in a progress event of Spark (StreamingQueryProgress, parsed from JSON)."""
    sources = progress.get("sources") or [{}]
    end, latest = (_log_positions(sources[0].get(name)) for name in ("endOffset", "latestOffset"))
    unread_bytes_by_leader = {
        target["leader"]: max(0, target["position"] - end[uuid]["position"])
        for uuid, target in latest.items()
        if uuid in end and end[uuid]["file"] == target["file"]
    }
    leaders = {entry["leader"] for entry in (end or latest).values()}
    instants = {entry["leader"]: entry["instant"] for entry in end.values() if entry.get("instant")}
    waiting_since_by_leader = {
        leader: instant["time"] / 1_000_000
        for leader, instant in instants.items()
        if instant["state"] == InstantState.WAITING
    }
    seconds_by_phase = {name: ms / 1000 for name, ms in (progress.get("durationMs") or {}).items()}
    return TriggerReport(
        str(progress.get("id")),
        progress["batchId"],
        seconds_by_phase,
        frozenset(leaders),
        unread_bytes_by_leader,
        waiting_since_by_leader,
    )


def _log_positions(offset: Any) -> dict[str, Any]:
    document = json.loads(offset) if isinstance(offset, str) else offset
    replicasets: dict[str, Any] = (document or {}).get("replicasets", {})
    return replicasets


@dataclass(frozen=True)
class StreamWarning:
    """A named warning about the stream, for people (`message`) and for programs (`name`, `details`)."""

    name: str
    """source_stale, source_back, gap_open, divergence, batches_slow; a condition, or the end of one."""
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """The facts of the message, such as the source, the lsns or the batch."""


def stale_source_warning(source: str, silent_seconds: float) -> StreamWarning:
    """Return the warning that no row of a leader was read for some seconds."""
    message = f"source {source} is stale: no row for {silent_seconds:.0f} s; is its server up, are its files copied?"
    return StreamWarning(
        "source_stale", message, {"source": source, "silent_seconds": round(silent_seconds, 3)}
    )


def source_back_warning(source: str) -> StreamWarning:
    """Return the warning that rows of a stale source are read again."""
    return StreamWarning("source_back", f"source {source} has rows again", {"source": source})


def gap_warning(gap: Gap) -> StreamWarning:
    """Return the warning about a new row of `_gaps`."""
    origin = f"replicaset {gap.replicaset_id}, source {gap.source}, replica id {gap.local_id}"
    details = {name: getattr(gap, name) for name in gap.__dataclass_fields__}
    if gap.kind == GapKind.DIVERGENCE:
        message = (
            f"divergence: {origin}: two logs have different rows under lsns {gap.first_lsn} to {gap.last_lsn}"
        )
        return StreamWarning("divergence", message, details)
    effect = "rows behind it wait" if gap.state == GapState.OPEN else "it was skipped"
    message = f"gap: {origin}: lsns {gap.first_lsn} to {gap.last_lsn} are missing before {gap.file}; {effect}"
    return StreamWarning("gap_open", message, details)


def slow_batch_warning(batch_id: int, took_seconds: float, trigger_seconds: float) -> StreamWarning:
    """Return the warning that a batch took longer than the trigger interval."""
    message = (
        f"batch {batch_id} took {took_seconds:.1f} s, longer than the trigger of {trigger_seconds:.1f} s"
    )
    details = {"batch": batch_id, "seconds": round(took_seconds, 3), "trigger_seconds": trigger_seconds}
    return StreamWarning("batches_slow", message, details)


BATCH_SECONDS_BOUNDS = (0.5, 1, 2, 3, 5, 8, 12, 20, 30, 60, 120, 300, 600)
"""Bucket bounds of the histogram `aggregator_batch_seconds`."""


class StreamMetrics(Collector):
    """The metrics of the stream since its start, as a collector of the Prometheus client.

    Args:
        stale_seconds: Seconds without a row after which a leader is stale; None: never.
    """

    def __init__(
        self,
        trigger_seconds: float | None,
        stale_seconds: float | None,
        gaps: Iterable[Gap] = (),
        now: Callable[[], float] = time.time,
        is_lock_held: Callable[[], bool] = lambda: True,
        standbys: Callable[[], Sequence[StandbyState]] = tuple,
    ) -> None:
        self.is_lock_held, self.standbys = is_lock_held, standbys
        self.problems: Callable[[], Sequence[Problem]] = tuple
        """Returns what needs attention; `observe.metrics.health` sets it."""
        self.positions: Mapping[str, Mapping[str, Any]] = {}
        """By replicaset uuid: its entry of the stream's offset, as of the newest epoch."""
        self.epoch: int | None = None
        self.committed_at: float | None = None
        """When the newest epoch was committed, in seconds since 1970."""
        self._unread_bytes: dict[str, int] = {}
        self._replicaset_ids: set[str] = set()
        self._trigger_seconds, self._stale_seconds, self._now = trigger_seconds, stale_seconds, now
        self._lock = threading.RLock()
        self._last_row_at: dict[str, float] = {}
        self._stale_sources: set[str] = set()
        self._newest_time_by_origin: dict[tuple[str, str, str], float] = {}
        self._waiting_since_by_source: dict[str, float | None] = {}
        self._open_gap_by_key = {gap.key: gap for gap in gaps}
        self._status: dict[str, Any] = {"epoch": None}
        self._registry = CollectorRegistry()
        self.costs = CostMetrics(self._registry)
        self._create_metrics()

    def _create_metrics(self) -> None:
        registry = self._registry

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"aggregator_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"aggregator_{name}", text, labels, registry=registry)

        self._epoch = gauge("epoch", "The newest epoch")
        self._committed_at = gauge("committed_timestamp_seconds", "When the newest epoch was committed")
        self._lag = gauge(
            "lag_seconds",
            "Age of the newest committed row; origin is a global id",
            "source",
            "replicaset",
            "origin",
        )
        self._behind = gauge("behind_bytes", "Bytes of the logs beyond the newest epoch", "source")
        self._stale_gauge = gauge(
            "source_stale", "Whether a leading source has had no rows for long", "source"
        )
        self._open_gaps = gauge("gaps_open", "Missing lsn ranges and divergences")
        self._open_gaps.set(len(self._open_gap_by_key))
        self._phase = gauge("phase_seconds", "Phases of the last batch", "phase")
        self._batches = counter("batches", "Batches with rows")
        self._batches_by_executor = counter(
            "batches_by_executor",
            "Batches with rows, by where they were processed: driver, driver_alone, tasks",
            "executor",
        )
        self._slow = counter("batches_slow", "Batches that took longer than the trigger interval")
        self._rows = counter("rows", "Rows that became part of _changelog", "source")
        self._conflicts = counter("conflicts", "Decisions between replicasets", "space")
        self._quarantined = counter(
            "quarantined", "Rows set aside, or in their table with a column that does not fit", "space"
        )
        self._misfits = counter("misfits", "Rows in their table with a column that is NULL", "space")
        self._set_aside = counter("set_aside", "Rows that are in no table", "space")
        self._waiting = gauge("rows_waiting", "Rows of _pending", "replicaset")
        self._refused = gauge("spaces_refused", "Spaces that are followed in _changelog only", "replicaset")
        self._instant = gauge(
            "instant_wait_seconds", "Age of the marker at which a source waits for the others", "source"
        )
        self._lock_held = gauge("lock_held", "Whether this job has the writer lock, by its own clock")
        self._proven_at = gauge(
            "proven_timestamp_seconds",
            "Since when all compared tables were equal to their servers'; 0 before prove's first round",
        )
        self._peer_connected = gauge("peer_connected", "Whether a standby copy is connected", "peer")
        self._batch_seconds = Histogram(
            "aggregator_batch_seconds",
            "How long Spark took for a batch",
            buckets=BATCH_SECONDS_BOUNDS,
            registry=registry,
        )

    def count_batch(self, batch: CommittedBatch) -> list[StreamWarning]:
        """Add a committed batch to the metrics, and return its warnings."""
        with self._lock:
            self.set_epoch(batch.epoch, batch.committed_at.timestamp(), batch.positions or self.positions)
            if batch.executor is not None:
                self._batches_by_executor.labels(batch.executor).inc()
            warnings = [warning for origin in batch.origins for warning in self._count_origin(origin)]
            for space, count in batch.conflicts_by_space.items():
                self._conflicts.labels(space).inc(count)
            for space, count in batch.quarantined_by_space.items():
                self._quarantined.labels(space).inc(count)
                misfits = batch.misfits_by_space.get(space, 0)
                for counter, part in ((self._misfits, misfits), (self._set_aside, count - misfits)):
                    if part:
                        counter.labels(space).inc(part)
            for gap in batch.changed_gaps:
                warnings += self._count_gap(gap)
            self._open_gaps.set(len(self._open_gap_by_key))
            self._status = {"epoch": batch.epoch, "committed_at": batch.committed_at.isoformat()}
            return warnings

    def set_epoch(self, epoch: int, committed_at: float, positions: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the newest epoch, when it was committed, and how far it has read the logs."""
        with self._lock:
            self.epoch, self.committed_at, self.positions = epoch, committed_at, positions
            self._epoch.set(epoch)
            self._committed_at.set(committed_at)

    def set_proven_at(self, moment: float) -> None:
        """Set since when each tuple was compared with its server and equal, in seconds since 1970."""
        self._proven_at.set(moment)

    def set_unread_bytes(self, unread_bytes: Mapping[str, int]) -> None:
        """Set how many bytes of the logs are beyond the newest epoch, by source."""
        with self._lock:
            self._unread_bytes = dict(unread_bytes)
            for source, count in unread_bytes.items():
                self._behind.labels(source).set(count)

    def count_costs(self, costs: BatchCosts) -> None:
        """Add what a batch has cost."""
        with self._lock:
            self.costs.count(costs)

    def unread_bytes(self) -> Mapping[str, int]:
        """Return how many bytes of the logs are beyond the newest epoch, by source."""
        return self._unread_bytes

    def set_pending(self, counts: PendingCounts) -> None:
        """Set the numbers of pending rows and of refused spaces of each replicaset."""
        rows, spaces = counts.pending_rows_by_replicaset, counts.refused_spaces_by_replicaset
        with self._lock:
            self._replicaset_ids |= {str(number) for number in (*rows, *spaces)}
            for number in self._replicaset_ids:
                self._waiting.labels(number).set(rows.get(int(number), 0))
                self._refused.labels(number).set(spaces.get(int(number), 0))

    def _count_origin(self, origin: OriginRows) -> list[StreamWarning]:
        """Add the rows of one source and instance to the metrics; return `source_back` if it was stale."""
        self._rows.labels(origin.source).inc(origin.row_count)
        self._replicaset_ids.add(str(origin.replicaset_id))
        self._last_row_at[origin.source] = self._now()
        if origin.newest_time is not None:
            key = (origin.source, str(origin.replicaset_id), str(origin.global_id))
            self._newest_time_by_origin[key] = max(
                self._newest_time_by_origin.get(key, 0.0), origin.newest_time.timestamp()
            )
        if origin.source not in self._stale_sources:
            return []
        self._stale_sources.discard(origin.source)
        self._stale_gauge.labels(origin.source).set(0)
        return [source_back_warning(origin.source)]

    def _count_gap(self, gap: Gap) -> list[StreamWarning]:
        """Add a new row of `_gaps` to the metrics, and return its warning; no warning if the row closes a gap."""
        if gap.state in CLOSED:
            self._open_gap_by_key.pop(gap.key, None)
            return []
        if gap.state == GapState.OPEN:
            self._open_gap_by_key[gap.key] = gap
        return [gap_warning(gap)]

    def count_trigger(
        self, report: TriggerReport, has_batch: bool, seconds_by_step: Mapping[str, float] | None = None
    ) -> list[StreamWarning]:
        """Add a trigger to the metrics, and return its warnings.

        Args:
            seconds_by_step: By step of the aggregator: the seconds from the beginning of the batch to the end of the
                step.
        """
        with self._lock:
            now = self._now()
            for source in report.leaders:
                self._last_row_at.setdefault(source, now)
                self._stale_gauge.labels(source).set(source in self._stale_sources)
                self._waiting_since_by_source[source] = report.waiting_since_by_leader.get(source)
            for source, size in report.unread_bytes_by_leader.items():
                if source not in self._unread_bytes:
                    self._behind.labels(source).set(size)
            warnings = self._mark_stale(report.leaders, now)
            if not has_batch:
                return warnings
            took_seconds = report.seconds_by_phase.get("triggerExecution", 0.0)
            self._batches.inc()
            self._batch_seconds.observe(took_seconds)
            self._phase.clear()
            for phase, length in {
                **report.seconds_by_phase,
                **{f"step_{k}": v for k, v in (seconds_by_step or {}).items()},
            }.items():
                self._phase.labels(phase).set(length)
            if self._trigger_seconds is not None and took_seconds > self._trigger_seconds:
                self._slow.inc()
                warnings.append(slow_batch_warning(report.batch_id, took_seconds, self._trigger_seconds))
            return warnings

    def _mark_stale(self, leaders: Iterable[str], now: float) -> list[StreamWarning]:
        warnings = []
        for source in sorted(leaders):
            silent_seconds = now - self._last_row_at[source]
            if (
                self._stale_seconds is not None
                and silent_seconds > self._stale_seconds
                and source not in self._stale_sources
            ):
                self._stale_sources.add(source)
                self._stale_gauge.labels(source).set(1)
                warnings.append(stale_source_warning(source, silent_seconds))
        return warnings

    def find_stale_sources(self) -> list[StreamWarning]:
        """Mark the leaders that have become stale since the last trigger, and return a warning for each."""
        with self._lock:
            leaders = {str(one["leader"]) for one in self.positions.values()} & self._last_row_at.keys()
            return self._mark_stale(leaders, self._now())

    def stale_sources(self) -> dict[str, float]:
        """Return the stale sources, each with the seconds since its last row was read."""
        with self._lock:
            return {one: self._now() - self._last_row_at[one] for one in sorted(self._stale_sources)}

    def waiting_since(self) -> dict[str, float]:
        """Return the sources that wait at a marker, each with the marker's time in seconds since 1970."""
        with self._lock:
            return {one: since for one, since in self._waiting_since_by_source.items() if since is not None}

    def lag_by_origin(self) -> dict[tuple[str, str, str], float]:
        """Return the age in seconds of the newest committed row of each (source, replicaset id, global id)."""
        with self._lock:
            now = self._now()
            return {
                key: round(now - newest, 3) for key, newest in sorted(self._newest_time_by_origin.items())
            }

    def collect(self) -> Iterable[Metric]:
        """Yield the current metrics."""
        conditions = condition_metric(Job.STREAM, self.problems())
        with self._lock:
            for key, lag in self.lag_by_origin().items():
                self._lag.labels(*key).set(lag)
            for source, since in self._waiting_since_by_source.items():
                self._instant.labels(source).set(0 if since is None else max(0.0, self._now() - since))
            self._lock_held.set(self.is_lock_held())
            for standby in self.standbys():
                self._peer_connected.labels(standby.root).set(standby.is_connected)
            return [*self._registry.collect(), conditions]

    def status(self) -> dict[str, Any]:
        """Return the content of the page `/status`, for JSON."""
        problems = [problem_as_json(one) for one in self.problems()]
        with self._lock:
            lags = [
                {"source": source, "replicaset": replicaset, "origin": origin, "lag_seconds": lag}
                for (source, replicaset, origin), lag in self.lag_by_origin().items()
            ]
            gaps = [
                {n: getattr(g, n) for n in g.__dataclass_fields__} for g in self._open_gap_by_key.values()
            ]
            standbys = [asdict(standby) for standby in self.standbys()]
            status = {**self._status, "lag": lags, "stale": sorted(self._stale_sources), "gaps": gaps}
            status |= {"problems": problems, "behind_bytes": dict(self._unread_bytes)}
            status |= {} if self.costs.last is None else {"last_batch": self.costs.last.as_json()}
            return {**status, "peers": standbys} if standbys else status

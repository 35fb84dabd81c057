"""Collects the stream's metrics: takes batches and triggers, returns Prometheus samples, a status, and notices.

Thread-safe, since Spark's listener, the job and the status page are different threads. No I/O.

| metric | |
|---|---|
| `aggregator_epoch`, `aggregator_committed_timestamp_seconds` | the newest epoch, and when it was committed |
| `aggregator_batches_total`, `aggregator_batch_seconds` | batches with rows; how long Spark took for each |
| `aggregator_batches_slow_total` | those that took longer than the trigger |
| `aggregator_phase_seconds{phase}` | of the last batch: Spark's phases, and `step_…` of ours |
| `aggregator_rows_total{source}` | rows that became part of `_changelog` |
| `aggregator_lag_seconds{source, replicaset, origin}` | age of the newest committed row; `origin` is a global id |
| `aggregator_behind_bytes{source}` | what the source's log held beyond the last batch |
| `aggregator_source_stale{source}` | 1 if a leading source has given no row for `stale` |
| `aggregator_conflicts_total{space}`, `aggregator_quarantined_total{space}` | |
| `aggregator_misfits_total{space}` | of the quarantined: rows in their table with a column that is NULL |
| `aggregator_set_aside_total{space}` | of the quarantined: rows that are in no table |
| `aggregator_gaps_open` | missing lsn ranges, and divergences |
| `aggregator_rows_waiting{replicaset}` | rows of `_pending` |
| `aggregator_spaces_refused{replicaset}` | spaces that are followed in `_changelog` only |
| `aggregator_instant_wait_seconds{source}` | age of the marker at which it waits for the others; 0: it does not wait |
| `aggregator_peer_connected{peer}` | 1 while a standby copy has every epoch but the newest |
| `aggregator_lock_held` | 1 while the writer's lock is this job's by its own clock |

A notice is a warning that names the source, the lsns or the batch. A `Progress` is Spark's report of a trigger, parsed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from observe.metrics.committed_batches import Batch, HeldRows, Origin
from schemas.states import GapKind, GapState
from sources.xlog.directory.offset import InstantState
from warehouse.gaps import CLOSED, Gap
from warehouse.peers import PeerState


@dataclass(frozen=True)
class Trigger:
    """One trigger of the stream, with or without a batch.

    Parameters
    ----------
    query_id : str
        As in `_epochs`.
    batch_id : int
    phases : mapping of str to float
        Spark's `durationMs`, in seconds; `triggerExecution` is the total.
    leaders : frozenset of str
        Sources that lead their replicasets.
    behind : mapping of str to int
        Leader to unread bytes of its log, if its position is in its last file.
    waiting_since : mapping of str to float
        Leader that waits at an instant for the other replicasets, to the time of the marker in its log, seconds since
        1970.

    """

    query_id: str
    batch_id: int
    phases: Mapping[str, float] = field(default_factory=dict)
    leaders: frozenset[str] = frozenset()
    behind: Mapping[str, int] = field(default_factory=dict)
    waiting_since: Mapping[str, float] = field(default_factory=dict)


def step_of(progress: Mapping[str, Any]) -> Trigger:
    """Return the trigger of a progress report.

    Parameters
    ----------
    progress : mapping
        Spark's StreamingQueryProgress as JSON.

    """
    sources = progress.get("sources") or [{}]
    end, latest = (_replicasets(sources[0].get(name)) for name in ("endOffset", "latestOffset"))
    behind = {
        target["leader"]: max(0, target["position"] - end[uuid]["position"])
        for uuid, target in latest.items()
        if uuid in end and end[uuid]["file"] == target["file"]
    }
    leaders = {one["leader"] for one in (end or latest).values()}
    instants = {one["leader"]: one["instant"] for one in end.values() if one.get("instant")}
    since = {
        leader: instant["time"] / 1_000_000
        for leader, instant in instants.items()
        if instant["state"] == InstantState.WAITING
    }
    phases = {name: ms / 1000 for name, ms in (progress.get("durationMs") or {}).items()}
    return Trigger(str(progress.get("id")), progress["batchId"], phases, frozenset(leaders), behind, since)


def _replicasets(offset: Any) -> dict[str, Any]:
    found = json.loads(offset) if isinstance(offset, str) else offset
    replicasets: dict[str, Any] = (found or {}).get("replicasets", {})
    return replicasets


@dataclass(frozen=True)
class Notice:
    """One named warning.

    Parameters
    ----------
    name : str
        source_stale, source_back, gap_opened, divergence, batch_slow.
    message : str
    details : mapping
        The same as data.

    """

    name: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


def source_stale(source: str, silent: float) -> Notice:
    """Return the notice about a leading source that gave no row for that many seconds."""
    message = (
        f"source {source} is stale: no row of it for {silent:.0f} s; is its server up, are its files copied?"
    )
    return Notice("source_stale", message, {"source": source, "silent_seconds": round(silent, 3)})


def source_back(source: str) -> Notice:
    """Return the notice about a source that was stale and gives rows again."""
    return Notice("source_back", f"source {source} gives rows again", {"source": source})


def gap_found(gap: Gap) -> Notice:
    """Return the notice about a new row of `_gaps`."""
    place = f"replicaset {gap.replicaset_id}, source {gap.source}, replica id {gap.local_id}"
    details = {name: getattr(gap, name) for name in gap.__dataclass_fields__}
    if gap.kind == GapKind.DIVERGENCE:
        message = (
            f"divergence: {place}: two logs have different rows under lsns {gap.first_lsn} to {gap.last_lsn}"
        )
        return Notice("divergence", message, details)
    what = "rows behind it wait" if gap.state == GapState.OPEN else "it was skipped"
    message = f"gap: {place}: lsns {gap.first_lsn} to {gap.last_lsn} are missing before {gap.file}; {what}"
    return Notice("gap_opened", message, details)


def batch_slow(batch_id: int, took: float, trigger: float) -> Notice:
    """Return the notice about a batch that took longer than the interval between batches; both in seconds."""
    message = f"batch {batch_id} took {took:.1f} s, longer than the trigger of {trigger:.1f} s"
    details = {"batch": batch_id, "seconds": round(took, 3), "trigger_seconds": trigger}
    return Notice("batch_slow", message, details)


SECONDS = (0.5, 1, 2, 3, 5, 8, 12, 20, 30, 60, 120, 300, 600)
"""Bucket bounds of the histogram."""


class StreamMetrics(Collector):
    """The metrics of the stream since it started.

    Parameters
    ----------
    trigger : float or None
        Seconds between two batches; None without a fixed interval.
    stale : float or None
        Seconds without a row after which a leading source is stale; None: never.
    gaps : iterable of Gap
        Gaps that are open at the start.
    now : callable
        Seconds since 1970.
    is_lock_held : callable
        Returns whether this job has the writer lock.
    peers : callable
        Returns the copies that the job keeps connected.

    """

    def __init__(
        self,
        trigger: float | None,
        stale: float | None,
        gaps: Iterable[Gap] = (),
        now: Callable[[], float] = time.time,
        is_lock_held: Callable[[], bool] = lambda: True,
        peers: Callable[[], Sequence[PeerState]] = tuple,
    ) -> None:
        self._is_lock_held, self._peers = is_lock_held, peers
        self._replicasets: set[str] = set()
        self._trigger, self._stale_after, self._now = trigger, stale, now
        self._lock = threading.RLock()
        self._seen: dict[str, float] = {}
        self._stale: set[str] = set()
        self._newest: dict[tuple[str, str, str], float] = {}
        self._waiting_since: dict[str, float | None] = {}
        self._gaps = {gap.key: gap for gap in gaps}
        self._status: dict[str, Any] = {"epoch": None}
        self._registry = CollectorRegistry()
        self._make()

    def _make(self) -> None:
        registry = self._registry

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"aggregator_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"aggregator_{name}", text, labels, registry=registry)

        self._epoch = gauge("epoch", "The newest epoch")
        self._committed = gauge("committed_timestamp_seconds", "When the newest epoch was committed")
        self._lag = gauge("lag_seconds", "Age of the newest committed row", "source", "replicaset", "origin")
        self._behind = gauge("behind_bytes", "Bytes of the log after the last batch", "source")
        self._stale_gauge = gauge("source_stale", "Whether a leading source gives no rows", "source")
        self._open = gauge("gaps_open", "Missing lsn ranges and divergences")
        self._open.set(len(self._gaps))
        self._phase = gauge("phase_seconds", "Phases of the last batch", "phase")
        self._batches = counter("batches", "Batches with rows")
        self._slow = counter("batches_slow", "Batches that took longer than the trigger")
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
        self._lock_held = gauge("lock_held", "Whether the writer's lock is this job's by its own clock")
        self._peer_connected = gauge("peer_connected", "Whether a standby copy is connected", "peer")
        self._seconds = Histogram(
            "aggregator_batch_seconds", "How long Spark took for a batch", buckets=SECONDS, registry=registry
        )

    def batch(self, batch: Batch) -> list[Notice]:
        """Count a committed batch, and return notices about it."""
        with self._lock:
            self._epoch.set(batch.epoch)
            self._committed.set(batch.committed_at.timestamp())
            notices = [notice for origin in batch.origins for notice in self._came(origin)]
            for space, count in batch.conflicts.items():
                self._conflicts.labels(space).inc(count)
            for space, count in batch.quarantined.items():
                self._quarantined.labels(space).inc(count)
                misfits = batch.misfits.get(space, 0)
                for counter, part in ((self._misfits, misfits), (self._set_aside, count - misfits)):
                    if part:
                        counter.labels(space).inc(part)
            for gap in batch.gaps:
                notices += self._gap(gap)
            self._open.set(len(self._gaps))
            self._status = {"epoch": batch.epoch, "committed_at": batch.committed_at.isoformat()}
            return notices

    def hold(self, held: HeldRows) -> None:
        """Set the numbers of rows that wait and of refused spaces."""
        with self._lock:
            self._replicasets |= {str(number) for number in (*held.rows, *held.spaces)}
            for number in self._replicasets:
                self._waiting.labels(number).set(held.rows.get(int(number), 0))
                self._refused.labels(number).set(held.spaces.get(int(number), 0))

    def _came(self, origin: Origin) -> list[Notice]:
        self._rows.labels(origin.source).inc(origin.rows)
        self._replicasets.add(str(origin.replicaset_id))
        self._seen[origin.source] = self._now()
        if origin.newest is not None:
            key = (origin.source, str(origin.replicaset_id), str(origin.global_id))
            self._newest[key] = max(self._newest.get(key, 0.0), origin.newest.timestamp())
        if origin.source not in self._stale:
            return []
        self._stale.discard(origin.source)
        self._stale_gauge.labels(origin.source).set(0)
        return [source_back(origin.source)]

    def _gap(self, gap: Gap) -> list[Notice]:
        if gap.state in CLOSED:
            self._gaps.pop(gap.key, None)
            return []
        if gap.state == GapState.OPEN:
            self._gaps[gap.key] = gap
        return [gap_found(gap)]

    def step(self, step: Trigger, worked: bool, steps: Mapping[str, float] | None = None) -> list[Notice]:
        """Count a trigger from Spark's report, and return notices about it.

        Parameters
        ----------
        step : Trigger
        worked : bool
            Whether it committed a batch; an idle trigger did not.
        steps : mapping of str to float, optional
            Seconds from the batch's beginning to the end of each of our steps.

        """
        with self._lock:
            now = self._now()
            for source in step.leaders:
                self._seen.setdefault(source, now)
                self._stale_gauge.labels(source).set(source in self._stale)
                self._waiting_since[source] = step.waiting_since.get(source)
            for source, size in step.behind.items():
                self._behind.labels(source).set(size)
            notices = self._silent(step.leaders, now)
            if not worked:
                return notices
            took = step.phases.get("triggerExecution", 0.0)
            self._batches.inc()
            self._seconds.observe(took)
            self._phase.clear()
            for phase, length in {
                **step.phases,
                **{f"step_{k}": v for k, v in (steps or {}).items()},
            }.items():
                self._phase.labels(phase).set(length)
            if self._trigger is not None and took > self._trigger:
                self._slow.inc()
                notices.append(batch_slow(step.batch_id, took, self._trigger))
            return notices

    def _silent(self, leaders: Iterable[str], now: float) -> list[Notice]:
        notices = []
        for source in sorted(leaders):
            silent = now - self._seen[source]
            if self._stale_after is not None and silent > self._stale_after and source not in self._stale:
                self._stale.add(source)
                self._stale_gauge.labels(source).set(1)
                notices.append(source_stale(source, silent))
        return notices

    def lags(self) -> dict[tuple[str, str, str], float]:
        """Return the age in seconds of the newest committed row of each source, replicaset and origin."""
        with self._lock:
            now = self._now()
            return {key: round(now - newest, 3) for key, newest in sorted(self._newest.items())}

    def collect(self) -> Iterable[Metric]:
        """Yield the current metrics."""
        with self._lock:
            for key, lag in self.lags().items():
                self._lag.labels(*key).set(lag)
            for source, since in self._waiting_since.items():
                self._instant.labels(source).set(0 if since is None else max(0.0, self._now() - since))
            self._lock_held.set(self._is_lock_held())
            for peer in self._peers():
                self._peer_connected.labels(peer.root).set(peer.is_connected)
            return list(self._registry.collect())

    def status(self) -> dict[str, Any]:
        """Return the content of `/status`."""
        with self._lock:
            lags = [
                {"source": source, "replicaset": replicaset, "origin": origin, "lag_seconds": lag}
                for (source, replicaset, origin), lag in self.lags().items()
            ]
            gaps = [{n: getattr(g, n) for n in g.__dataclass_fields__} for g in self._gaps.values()]
            peers = [asdict(peer) for peer in self._peers()]
            found = {**self._status, "lag": lags, "stale": sorted(self._stale), "gaps": gaps}
            return {**found, "peers": peers} if peers else found

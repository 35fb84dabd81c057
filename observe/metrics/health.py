"""Finds what needs attention in a running stream, in a thread that does not wait for what it watches.

The reader of the logs is a process of Spark's, and a stream without progress reports nothing. So this thread of the
driver looks up the ends of the logs itself, and compares them with the newest epoch; and the age of the reader's last
look is computed when somebody asks.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from config.deployment import Config
from config.subscribe import seconds
from observe.deployment_problems import disk_problems
from observe.facts import FACT_ERRORS, DeploymentFacts
from observe.log_ends import LogEnds
from observe.metrics.stream_metrics import StreamMetrics
from observe.problems import (
    difference_problem,
    instant_problem,
    lag_problem,
    no_commit_problem,
    proof_problems,
    table_problems,
)
from observe.write_costs import debt_problems
from pipeline.lookup.copy_folder import stored_bytes
from schemas.conditions import CLOCK_AHEAD_SECONDS, INSTANT_WAIT_SECONDS, NO_COMMIT_SECONDS
from schemas.errors import AggregatorError
from schemas.problems import Problem, problem, problem_text, sorted_problems
from warehouse.delta.location import WarehouseLocation

log = logging.getLogger(__name__)

MAX_LOOK_SECONDS = 10.0
"""Longest time between two looks at the ends of the logs."""

START_SECONDS = 120.0
"""How long the reader may take for its first answer: it lists all sources then."""

DEFAULT_HUNG_SECONDS = 600.0
"""Where `metrics.stale` is not set: seconds without a look of the reader after which it hangs."""

COMPARE_SECONDS = 60.0
"""Shortest time between two comparisons of the tables with the newest epoch: each asks the store about each table."""

_LOOK_ERRORS = (*FACT_ERRORS, AggregatorError, pa.ArrowException)


class StreamHealth:
    """Watches the stream of one deployment, and says what needs attention."""

    def __init__(
        self, config: Config, location: WarehouseLocation, metrics: StreamMetrics, *, is_endless: bool
    ) -> None:
        self._config, self._location, self._metrics = config, location, metrics
        self._ends = LogEnds(config.sources)
        self._copy_folder = Path(config.cache.folder(config.checkpoint))
        trigger = seconds(config.trigger) if is_endless else None
        stale = (
            None if config.metrics is None or config.metrics.stale is None else seconds(config.metrics.stale)
        )
        self.hung_seconds = max(stale or DEFAULT_HUNG_SECONDS, 2 * (trigger or 0.0))
        self.look_seconds = min(MAX_LOOK_SECONDS, max(1.0, (stale or MAX_LOOK_SECONDS) / 4))
        self.is_in_batch: Callable[[], bool] = lambda: False
        """Whether a batch is in progress; then the reader need not look at the logs."""
        self._reader_seen_at = self._looked_at = time.time()
        self._has_reader_answered = False
        self._table_problems: Sequence[Problem] = ()
        self._disk_problems: Sequence[Problem] = ()
        self._differences: Sequence[Problem] = ()
        self._proof_problems: Sequence[Problem] = ()
        self._compared_at = 0.0
        self._tables_epoch: int | None = None
        self._told: dict[tuple[str, str], Problem] = {}
        self._is_ended = threading.Event()
        metrics.problems = self.problems

    def see_reader(self) -> None:
        """Record that the reader of the logs has just answered."""
        self._reader_seen_at, self._has_reader_answered = time.time(), True

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the stream in a thread while the block runs."""
        thread = threading.Thread(target=self._watch, name="health", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_ended.set()
            thread.join(self.look_seconds)  # one that hangs with a file system is left behind

    def _watch(self) -> None:
        while True:
            try:
                self.look()
            except Exception:  # the stream goes on
                log.exception("health: the stream could not be looked at")
            if self._is_ended.wait(self.look_seconds):
                return

    def look(self) -> None:
        """Look up the ends of the logs, the disks, and after a new epoch the tables; log what begins and ends."""
        if self.is_in_batch():
            self.see_reader()
        unread = self._ends.unread_bytes(self._metrics.positions)
        self._metrics.set_unread_bytes(unread)
        for warning in self._metrics.find_stale_sources():
            log.warning("%s", warning.message)
        self._metrics.costs.set_copy_bytes(stored_bytes(self._copy_folder))
        try:
            self._disk_problems = tuple(disk_problems(self._config, self._config.subscribe))
            epoch = self._metrics.epoch
            if epoch is not None and epoch != self._tables_epoch:
                self._table_problems = tuple(table_problems(DeploymentFacts(self._location)))
                self._tables_epoch = epoch
            if epoch is not None and time.time() - self._compared_at > COMPARE_SECONDS:
                facts = DeploymentFacts(self._location)
                self._differences = tuple(map(difference_problem, facts.table_differences))
                self._look_at_proof(facts)
                self._compared_at = time.time()
        except _LOOK_ERRORS as error:  # a table that is being rolled back
            log.debug("health: %s", error)
        self._looked_at = time.time()
        self._log_changes()

    def _look_at_proof(self, facts: DeploymentFacts) -> None:
        section = self._config.prove
        if section is not None:
            found = proof_problems(facts, seconds(section.every), datetime.now(UTC))
            self._proof_problems = tuple(found)
            if facts.proven_at is not None:
                self._metrics.set_proven_at(facts.proven_at.timestamp())

    def _log_changes(self) -> None:
        """Log each problem that has begun or ended since the last call; sources have warnings of their own."""
        now = {
            (one.condition, one.subject): one for one in self.problems() if one.condition != "source_stale"
        }
        for key in now.keys() - self._told.keys():
            log.warning("%s; %s", problem_text(now[key]), now[key].shown_advice)
        for key in self._told.keys() - now.keys():
            log.warning("%s: %s is over", key[1], key[0])
        self._told = now

    def problems(self) -> list[Problem]:
        """Return what needs attention now."""
        last = self._metrics.costs.last
        return sorted_problems(
            [
                *self._stream_problems(),
                *self._lag_problems(),
                *self._disk_problems,
                *self._differences,
                *self._proof_problems,
                *self._table_problems,
                *(() if last is None else debt_problems(last.debts)),
            ]
        )

    def _stream_problems(self) -> Iterator[Problem]:
        now, metrics = time.time(), self._metrics
        if not metrics.is_lock_held():
            yield problem(
                "lock_lost", "stream", "its writer lock was not renewed in time, or is another writer's"
            )
        silent = 0.0 if self.is_in_batch() else now - self._reader_seen_at
        patience = self.hung_seconds if self._has_reader_answered else max(self.hung_seconds, START_SECONDS)
        if silent > patience:
            text = f"the reader of the logs has not answered for {silent:.0f} s, and no batch is in progress"
            yield problem("reader_hung", "reader", text, since=self._reader_seen_at)
        if now - self._looked_at > self.hung_seconds + self.look_seconds:
            text = f"the ends of the logs could not be looked up for {now - self._looked_at:.0f} s: a file system hangs"
            yield problem("reader_hung", "file system", text, since=self._looked_at)
        for standby in metrics.standbys():
            if not standby.is_connected:
                yield problem("peer_lost", f"standby {standby.root}", standby.reason or "it is not connected")

    def _lag_problems(self) -> Iterator[Problem]:
        now, metrics = time.time(), self._metrics
        unread: Mapping[str, int] = {
            source: count for source, count in metrics.unread_bytes().items() if count
        }
        committed = metrics.committed_at
        if unread and committed is not None and now - committed > NO_COMMIT_SECONDS:
            yield no_commit_problem(unread, now - committed, committed)
        for source, silent in metrics.stale_sources().items():
            text = f"no row of it was read for {silent:.0f} s, and {unread.get(source, 0)} bytes of its log are unread"
            yield problem("source_stale", f"source {source}", text, since=now - silent)
        for (source, _, origin), lag in metrics.lag_by_origin().items():
            late = lag_problem(source, lag, unread.get(source, 0))
            if late is not None:
                yield late
            if lag < -CLOCK_AHEAD_SECONDS:
                text = f"its newest row has a time {-lag:.0f} s in the future"
                yield problem("clock_ahead", f"origin {origin} in source {source}", text)
        for source, since in metrics.waiting_since().items():
            if now - since > INSTANT_WAIT_SECONDS:
                yield instant_problem(source, now - since)

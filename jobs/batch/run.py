"""One micro-batch, from its offsets to its epoch: the order of the steps and of the commits.

    offsets → segments → summary → plan → `_cluster`, `_applier_map` → `_changelog`, `_pending`
        → keyed rows → changes → decisions → tables of spaces → `_versions`, `_conflicts`, `_quarantine`,
        `_schema`, `_gaps`, `_vclock` → `_epochs`

`_epochs` is the commit. A writer that dies anywhere before it leaves an unfinished batch, which the next one takes
back when it starts (`tables.epochs.take_back`); so every step sees the tables as the last epoch left them.
Each step is a module of its own beside this one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import DataFrame

from jobs.batch import pending
from jobs.batch.acknowledge import Acknowledger
from jobs.batch.announce import with_announced
from jobs.batch.changelog import changelog_rows, read_back
from jobs.batch.columns import check_space
from jobs.batch.commit import commit
from jobs.batch.divergence import divergences
from jobs.batch.heal import Healing, with_again
from jobs.batch.offsets import read_offset
from jobs.batch.outcome import Outcome
from jobs.batch.own import own_rows
from jobs.batch.pin import SMALL_BYTES, SMALL_ROWS, Pins, append
from jobs.batch.plan import Plan, plan_batch, sync_spaces
from jobs.batch.record import record, with_written
from jobs.batch.route import router_of
from jobs.batch.scan import scan, stretches_of
from jobs.batch.spaces import Batch, write_spaces
from jobs.batch.state import State
from jobs.batch.stretch import Stretch
from jobs.batch.summary import Summary
from config.deployment import Config
from config.policies import Policy
from schemas.errors import AggregatorError, WarehouseError
from schemas.spark import spark_schema
from schemas.xrow import SOURCES_ARROW
from sources.xlog.batch import segments_between
from sources.xlog.follow import Follower
from sources.xlog.offset import from_text
from sources.xlog.options import parse_options
from sources.xlog.segment import Segment
from tables import applier_map, cluster, epochs
from tables.lock import WriterLock
from tables.warehouse import Warehouse
from udfs.cluster_replace import Cluster, Incoming, replace_all

log = logging.getLogger(__name__)

MOVED = "moved"
"""In `_epochs` the query of a batch of rows that waited for a space to move."""


def reached(step: str) -> None:
    """Note that a step is done; tests end the process here."""
    log.debug("step %s is done", step)


class Writer:
    """What `foreachBatch` calls: it holds the state between two batches.

    Whoever does other work on the tables meanwhile holds `between`, so that no batch runs beside it.

    Parameters
    ----------
    warehouse : Warehouse
    config : Config
    options : mapping of str to str
        Those of the stream's `format("xlog")`.
    lock : WriterLock
        Held as long as the writer lives.
    state : State
        As loaded (`jobs.batch.load`).
    watch : callable, optional
        Told the outcome of each batch.

    """

    def __init__(
        self,
        warehouse: Warehouse,
        config: Config,
        options: Mapping[str, str],
        lock: WriterLock,
        state: State,
        watch: Callable[[Outcome], object] | None = None,
    ) -> None:
        self._warehouse = warehouse
        self._config = config
        self._follower = Follower(parse_options(options))
        self._acknowledge = Acknowledger(config, self._follower)
        self._lock = lock
        self.state = state
        self._watch = watch
        self._router = router_of(config.spaces, check_space)
        self._first = True
        self._is_finished = False
        self._steps = {}
        self.between = threading.Lock()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Do one micro-batch.

        Parameters
        ----------
        frame : DataFrame
            The stream's rows.
        batch_id : int
            Spark's number of the batch within the checkpoint.

        """
        with self.between:
            if self._is_finished:
                raise AggregatorError("the job is being stopped: this batch is for the next start")
            self._batch(frame, batch_id)

    def finish(self) -> None:
        """Wait until the batch in progress is done, and let none begin any more."""
        if self.between.locked():
            log.warning("the batch in progress is finished first; to stop at once, ask again")
        with self.between:
            self._is_finished = True

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        began, self._steps = time.monotonic(), {}
        query_id = str(self._warehouse.spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        if self._first and epochs.holds(self._warehouse, query_id, batch_id):
            self._first = False
            return
        self._first = False
        start = read_offset(self._warehouse, self._config.checkpoint, batch_id - 1)
        end = read_offset(self._warehouse, self._config.checkpoint, batch_id)
        if start is None or end is None:  # the first batch, in which the replicasets begin without rows
            return
        segments = segments_between(self._follower, from_text(start), from_text(end))
        rows, tables = self.process(frame, segments, query_id, batch_id, (start, end))
        self._acknowledge(from_text(start), self.state)
        if self._watch is not None:
            steps = {step: at - began for step, at in self._steps.items()}
            self._watch(Outcome(batch_id, rows, time.monotonic() - began, tables, steps))

    def process(
        self,
        frame: DataFrame,
        segments: Sequence[Segment],
        query_id: str,
        batch_id: int,
        offsets: tuple[str, str],
    ) -> tuple[int, int]:
        """Do one batch of segments, and return the rows read and the tables written.

        What waits behind a space that moves is done at once, in batches of its own.
        """
        rows, tables = self._process(frame, segments, query_id, batch_id, offsets)
        return rows, tables + self.go_on((offsets[1], offsets[1]))

    def go_on(self, offsets: tuple[str | None, str | None] = (None, None)) -> int:
        """Do what waits only because a space moves, and return the tables written.

        A job that was killed in front of it left it in `_pending`.
        """
        written = 0
        self.state = pending.with_servers(self._warehouse, self.state, self._follower)
        while any(one.moves for one in self.state.replicasets.values()):
            none = self._warehouse.spark.createDataFrame([], spark_schema(SOURCES_ARROW))
            before = self.state.epoch
            written += self._process(none, (), MOVED, before + 1, offsets)[1]
            if self.state.epoch == before:
                raise WarehouseError("rows wait for a space to move, and there are none", table="_pending")
        return written

    def heal(self, frame: DataFrame, segments: Sequence[Segment], name: str, healing: Healing) -> int:
        """Do a batch of a snapshot that heals its replicaset, and return the rows read."""
        return self._process(frame, segments, name, 0, (None, None), healing)[0]

    def _process(
        self,
        frame: DataFrame,
        segments: Sequence[Segment],
        query_id: str,
        batch_id: int,
        offsets: tuple[str | None, str | None],
        healing: Healing | None = None,
    ) -> tuple[int, int]:
        plan, frame = self._planned(frame, segments, healing)
        rows = sum(summary.rows for summary in plan.summaries.values())
        if not rows:
            return 0, 0
        epoch = self.state.epoch + 1
        self._lock.check()
        applier_map.append(self._warehouse, plan.new_maps)
        self._reached("_applier_map")
        pins = Pins(rows <= SMALL_ROWS and sum(s.end - s.begin for s in segments) <= SMALL_BYTES)
        try:
            changelog = pins.here(self._with_own(changelog_rows(frame, plan, epoch), plan, epoch))
            append(self._warehouse, "_changelog", changelog)
            self._reached("_changelog")
            plan = pending.settle_pending(self._warehouse, self.state, frame, plan, epoch, pins)
            self._reached("_pending")
            self._lock.check()
            batch = Batch(self._warehouse, self._config, self.state, plan, epoch)
            logged = read_back(self._warehouse, changelog, epoch)
            if healing is not None:
                logged = with_again(logged, healing, plan, pins)
            written = write_spaces(batch, logged, pins, self._reached)
        finally:
            pins.release()
        self._lock.check()
        diverged = divergences(self._warehouse, self.state, frame, plan, epoch)
        diverged += [] if healing is None else healing.gaps(epoch)
        if diverged:
            self._warehouse.append_rows("_gaps", diverged)
        plan = with_written(plan, written)
        told = record(self._warehouse, self.state, plan, epoch, self._reached)
        tables = ("_changelog", "_pending", *written.tables, *told, *(("_gaps",) if diverged else ()))
        after = replace(plan.state, epoch=self.state.epoch, versions=self.state.versions)
        self.state = commit(self._warehouse, after, tables, (query_id, batch_id), offsets, rows)
        self._reached("_epochs")
        return rows, len(written.changed)

    def use_policy(self, space: str, policy: Policy) -> None:
        """Choose by another policy in a space from now on; its table has been rebuilt by it."""
        spaces = {**self._config.policies.spaces, space: policy}
        policies = self._config.policies.model_copy(update={"spaces": spaces})
        self._config = self._config.model_copy(update={"policies": policies})

    def _planned(
        self, frame: DataFrame, segments: Sequence[Segment], healing: Healing | None
    ) -> tuple[Plan, DataFrame]:
        """Return the plan, and the frame with the rows that waited in front."""
        known = sync_spaces(self.state)
        while True:
            summaries = scan(self._warehouse.spark, segments, self._follower, known)
            if not segments:
                summaries = {u: Summary() for u, one in self.state.replicasets.items() if one.moves}
            given = self._asked(segments)
            stretches, whole, rows = pending.with_pending(
                self._warehouse, self.state, given, summaries, frame, known
            )
            if healing is not None:
                stretches, whole = healing.of_stretches(stretches), healing.of_summaries(whole)
            plan = plan_batch(self.state, stretches, whole, self._allocate, self._router, self._config.on_gap)
            found = sync_spaces(self.state, plan.controls)
            if all(found[uuid] <= known.get(uuid, frozenset()) for uuid in found):
                return plan, rows
            # A space became synchronous in this very batch: its rows are looked at once more.
            known = found

    def _asked(self, segments: Sequence[Segment]) -> list[Stretch]:
        numbered = {segment.segment: segment for segment in segments}
        sources = len(self._config.sources)
        return with_announced(stretches_of(segments), numbered, self._follower, self.state, sources)

    def _allocate(self, told: Sequence[Incoming]) -> Cluster:
        table = self._cluster or cluster.load(self._warehouse)
        _, changes = replace_all(table, told, "")
        if changes:
            self._lock.check()
            table = cluster.allocate(self._warehouse, told, datetime.now(UTC))
            self._reached("_cluster")
        self._cluster = table
        return table

    def _reached(self, step: str) -> None:
        self._steps[step] = time.monotonic()
        reached(step)

    _cluster: Cluster | None = None
    _steps: dict[str, float]

    def _with_own(self, rows: DataFrame, plan: Plan, epoch: int) -> DataFrame:
        own = self._cluster.own if self._cluster is not None else None
        if own is None or not plan.own_changes:
            return rows
        told = own_rows(plan.own_changes, self.state.own_lsn, own, epoch, datetime.now(UTC))
        return rows.unionByName(self._warehouse.rows("_changelog", told))

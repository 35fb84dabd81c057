"""Processes one micro-batch, from its segments to its epoch: see `BatchWriter.process`.

    log cells of the segments → summaries → plan → `_cluster`, `_applier_map` → tables prepared
        → an executor writes the files of all tables → one commit for each table, `_epochs` last

The stages are packages of this folder, in the order of the data: `plan`, `changelog`, `reduce`, `resolve`, `encode`,
`write`, `commit`. Two executors run the same functions: `local` in this process, `distributed` in Spark's tasks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from config.deployment import Config
from config.policies import Policy
from pipeline.changelog.cluster_rows import cluster_rows
from pipeline.changelog.divergence import repeated_lsn_bounds
from pipeline.changelog.segment_plan import segment_plans
from pipeline.commit.batch import BatchName, commit_batch, instant_label
from pipeline.commit.costs import BatchCosts, store_costs, stored_costs
from pipeline.commit.doubled_buckets import mark_collected_rows
from pipeline.commit.epoch import after_roll_back, commit_epoch
from pipeline.compaction.after_batch import CompactionCredits
from pipeline.encode.columns import TableEncoding
from pipeline.executors.batch_cells import collect_cells
from pipeline.executors.choice import is_read_by_driver, log_bytes_of, max_driver_log_bytes, runs_on_cluster
from pipeline.executors.local import DRIVER_ALONE, LocalExecutor, read_locally
from pipeline.executors.row_counts import SparkCount, remove_row_counts
from pipeline.lookup.files import BaseFiles
from pipeline.lookup.key_copies import CopyFolder
from pipeline.lookup.key_search import key_search_in
from pipeline.partition import partition_plan
from pipeline.pending.parts import PendingParts
from pipeline.pending.places import pending_places
from pipeline.pending.rows import PendingRows
from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.healing import Healing
from pipeline.plan.rows.position import with_spaced_numbers
from pipeline.plan.spaces.router import build_router
from pipeline.plan.spaces.tables import check_space
from pipeline.planning import Planner
from pipeline.state import State
from pipeline.work import BatchWork, Executor
from pipeline.write.prepare import PreparedTables, prepare_tables
from pipeline.write.system_rows import append_rows
from pipeline.write.vector_rule import VectorRule
from schemas.errors import LockError, WarehouseError
from schemas.names import exact_table
from schemas.states import GapState
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.segment import Segment
from udfs.remap.cluster_replace import Cluster, IncomingMember, apply_incoming
from warehouse.delta.newest_epoch import NO_EPOCH
from warehouse.delta.read import newest_of_each, rows_of
from warehouse.delta.table_files import TableFile
from warehouse.delta.write import arrow_rows
from warehouse.lock.lock import WriterLock
from warehouse.system_tables import applier_map, cluster, epochs
from warehouse.system_tables.gaps import KEY
from warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

NO_LIMIT = 1 << 62


def log_step_done(step: str) -> None:
    """Log that a step is done; tests replace this function to kill the process at a step."""
    log.debug("step %s is done", step)


@dataclass(frozen=True)
class BatchResult:
    """The size and the duration of one batch, for progress and metrics."""

    batch_id: int
    row_count: int
    """Number of rows read, including duplicates from other members' logs."""
    seconds: float
    table_count: int
    seconds_by_step: Mapping[str, float] = field(default_factory=dict)
    """For each step, in order, the seconds from the batch's begin to the step's end."""
    executor: str | None = None
    """Where the batch was processed: `driver`, `driver_alone` (which also read the logs), or `tasks`."""
    costs: BatchCosts = field(default_factory=BatchCosts)


class MakeDistributed(Protocol):
    """Makes the executor that processes a batch in Spark's tasks (`pipeline.executors.distributed`)."""

    def __call__(
        self,
        log_stream: LogStream,
        segments: Sequence[Segment],
        frame: DataFrame | None = None,
        title: str = ...,
    ) -> Executor:
        """Return the executor of a batch with these segments."""


class BatchWriter:
    """Processes batches one after another, and keeps the state between them.

    Other work on the tables holds the attribute `batch_lock`, so that no batch runs at the same time.

    Args:
        distributed: Makes the executor of a batch that is processed in Spark's tasks; by default all batches are
            processed in this process.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        config: Config,
        log_stream: LogStream,
        lock: WriterLock,
        state: State,
        distributed: MakeDistributed | None = None,
    ) -> None:
        self.state = state
        self.batch_lock = threading.Lock()
        self.tables = warehouse.open_tables
        self.log_stream = log_stream
        self._warehouse, self._config = warehouse, config
        self._lock, self._distributed = lock, distributed
        self._router = build_router(config.spaces, check_space)
        self._copy_folder = CopyFolder(config.cache.folder(config.checkpoint), config.cache.limit)
        self._search = key_search_in(self._copy_folder)
        self._counts_folder = config.cache.counts_folder(config.checkpoint)
        remove_row_counts(self._counts_folder)
        self._is_first_of_stream = True
        self._credits = CompactionCredits()
        stored = stored_costs(self._copy_folder.path)
        self._credits.debts.update({} if stored is None else stored.debts)
        self._pending = PendingParts(self.tables)
        self._cluster: Cluster | None = None
        self._began = 0.0
        self._read_to_end_at: datetime | None = None
        self.seconds_by_step: dict[str, float] = {}
        self.last_executor: str | None = None
        """Where the last batch was processed (`BatchResult.executor`)."""
        self.costs = BatchCosts()

    def process(
        self,
        segments: Sequence[Segment],
        name: BatchName,
        healing: Healing | None = None,
        log_stream: LogStream | None = None,
        read_to_end_at: datetime | None = None,
        frame: DataFrame | None = None,
    ) -> tuple[int, int]:
        """Process one batch; return the number of rows read, and of tables of spaces written.

        Args:
            segments: The parts of logs to read; waiting rows of the same replicasets are read as well.
            healing: Given if a snapshot in the batch replaces the state of its replicaset, or some of its spaces.
            log_stream: Lists the segments' files; by default the one that follows the deployment's sources.
        """
        self._read_to_end_at = read_to_end_at
        self._began, self.seconds_by_step, self.costs = time.monotonic(), {}, BatchCosts()
        with self.tables.refreshed_once_per_table():
            while True:
                spaced, stream = with_spaced_numbers(segments), log_stream or self.log_stream
                executor = self._executor(spaced, stream, frame, f"batch {name.batch_id}")
                self.last_executor = executor.name
                try:
                    return self._process(executor, spaced, name, healing, stream)
                except LockError:
                    raise
                except Exception as error:
                    if healing is not None or not self._has_newly_changed_tables():
                        raise
                    log.error("the batch is rolled back and done again, without changed tables: %s", error)
                    self.roll_back()
                finally:
                    executor.close()
                    remove_row_counts(self._counts_folder)

    def roll_back(self) -> None:
        """Roll back what was written since the last epoch, and set aside tables that somebody else has changed.

        Raises:
            WarehouseError: The work that has failed is committed nevertheless, so this writer's state is not that of
                the tables: only the store's answer was lost.
        """
        self._lock.check()
        last, found = epochs.last(self._warehouse), epochs.require_tables(self._warehouse.location)
        committed = NO_EPOCH if last is None else last.epoch
        if committed != self.state.epoch:
            raise WarehouseError(
                f"what has failed is committed nevertheless, as epoch {committed}",
                advice="start again: the job continues after it",
            )
        rolled_back = epochs.roll_back(self._warehouse, last, found)
        for table in found:
            self.tables.forget(table)
            self.tables.forget(exact_table(table))
        self.state = after_roll_back(self.tables, replace(self.state, set_aside=found), last, rolled_back)

    def set_changed_tables_aside(self) -> None:
        """Set aside tables that somebody else has changed since the last batch."""
        if self._has_newly_changed_tables():
            self.roll_back()

    def _has_newly_changed_tables(self) -> bool:
        return bool(epochs.require_tables(self._warehouse.location).keys() - self.state.set_aside.keys())

    def _process(
        self,
        executor: Executor,
        segments: Sequence[Segment],
        name: BatchName,
        healing: Healing | None,
        log_stream: LogStream,
    ) -> tuple[int, int]:
        plan, pending = self._plan(executor, segments, healing, log_stream)
        if not plan.row_count and not any(segment.left_out_registrations for segment in segments):
            self._commit_instant(name)
            return 0, 0
        self._lock.check()
        if plan.new_map_rows:
            known = rows_of(self.tables.open(applier_map.TABLE))
            new = applier_map.missing_rows(known, plan.new_map_rows)
            append_rows(self.tables, applier_map.TABLE, [asdict(entry) for entry in new])
            self._step_done("_applier_map")
        work, prepared = self._prepare_work(plan, pending, healing)
        self._step_done("prepare")
        written = mark_collected_rows(executor.run(work), work.location)
        self._step_done("files")
        self._lock.check()
        closed = () if healing is None else healing.gap_rows(plan.epoch)
        self.state, self.costs = commit_batch(
            self.tables, work, prepared, written, name, self._step_done, self._credits, closed
        )
        store_costs(self._copy_folder.path, self.costs)
        return plan.row_count, len(written.tables)

    def _commit_instant(self, name: BatchName) -> None:
        """Commit an epoch for an instant (`pipeline.commit.batch.instant_label`) although its batch has no rows.

        For example, a whitelist may exclude the marker rows, at which the replicasets waited for each other.
        """
        label = instant_label(name, self.state)
        if label is not None:
            self._lock.check()
            query = (name.query_id, name.batch_id)
            self.state = commit_epoch(self.tables, self.state, {}, query, name.offsets, 0, label)
            self._step_done("_epochs")

    @property
    def config(self) -> Config:
        """The configuration that the next batch will use."""
        return self._config

    def use_policy(self, space: str, policy: Policy) -> None:
        """Use another policy for a space from now on; the space's table must already be rebuilt with that policy."""
        spaces = {**self._config.policies.spaces, space: policy}
        policies = self._config.policies.model_copy(update={"spaces": spaces})
        self.use_config(self._config.model_copy(update={"policies": policies}))

    def use_config(self, config: Config) -> None:
        """Use another configuration from now on; the tables must already be as it says."""
        self._config = config
        self._router = build_router(config.spaces, check_space)

    def _executor(
        self, segments: Sequence[Segment], log_stream: LogStream, frame: DataFrame | None, title: str
    ) -> Executor:
        config, distributed = self._config, self._distributed
        if distributed is None:
            alone = self._read_alone(segments, log_stream, NO_LIMIT, None, title)
            assert alone is not None
            return alone
        log_bytes = log_bytes_of(segments)
        is_cluster = frame is not None and runs_on_cluster(frame.sparkSession)
        is_first = self._is_first_of_stream
        self._is_first_of_stream &= frame is None
        if frame is None or is_read_by_driver(
            config.executor, log_bytes, is_cluster=is_cluster, is_first=is_first
        ):
            limit = 0 if config.executor == "tasks" else config.local_bytes
            alone = self._read_alone(segments, log_stream, limit, frame, title)
            return alone or distributed(log_stream, segments, frame, title)
        if log_bytes > max_driver_log_bytes(config.executor, config.local_bytes, is_cluster=is_cluster):
            return distributed(log_stream, segments, frame, title)
        cells = collect_cells(frame, segments, title)
        if cells.decoded_bytes > config.local_bytes:
            return distributed(log_stream, segments, frame.sparkSession.createDataFrame(cells.table), title)
        return LocalExecutor(segments, cells.rows(segments), self._search, cells.summaries())

    def _read_alone(
        self,
        segments: Sequence[Segment],
        log_stream: LogStream,
        limit: int,
        frame: DataFrame | None,
        title: str,
    ) -> LocalExecutor | None:
        """Return the executor of rows that this process reads itself; None if they need more memory than the limit."""
        rows = read_locally(log_stream, segments, limit)
        if rows is None:
            return None
        folder = self._counts_folder
        count = None if frame is None else SparkCount(frame, segments, folder, rows.counts, title)
        return LocalExecutor(segments, rows.by_segment, self._search, count=count, name=DRIVER_ALONE)

    def _plan(
        self,
        executor: Executor,
        segments: Sequence[Segment],
        healing: Healing | None,
        log_stream: LogStream,
    ) -> tuple[BatchPlan, list[PendingRows]]:
        planner = Planner(
            *(self._config, self.tables, self.state, self._allocate_global_ids, self._router),
            self._pending,
            read_to_end_at=self._read_to_end_at,
        )
        return planner.plan(executor, segments, log_stream, healing)

    def _allocate_global_ids(self, incoming: Sequence[IncomingMember]) -> Cluster:
        table = self._cluster or cluster.load(self._warehouse)
        _, changes = apply_incoming(table, incoming, "")
        if changes:
            self._lock.check()
            table = cluster.allocate(self._warehouse, incoming, datetime.now(UTC))
            self._step_done("_cluster")
        self._cluster = table
        return table

    def _prepare_work(
        self, plan: BatchPlan, pending: Sequence[PendingRows], healing: Healing | None
    ) -> tuple[BatchWork, PreparedTables]:
        tables, partition = self.tables, partition_plan(plan)
        prepared = prepare_tables(tables, partition.encodings)
        names = {name for one in partition.encodings for name in (one.exact_table, one.name)}
        files = {name: tables.files(name) for name in sorted(names)}
        base = BaseFiles(
            tables.location,
            {
                number: (one.exact_table, files[one.exact_table])
                for number, one in enumerate(partition.encodings)
            },
            tables.files("_versions"),
            tuple(one.name for one in partition.encodings),
            frozenset(number for number, one in enumerate(partition.encodings) if one.quarantines_misfits),
        )
        lsn_ranges, places = repeated_lsn_bounds(plan), pending_places(plan, pending)
        return (
            BatchWork(
                plan,
                tables.location,
                segment_plans(plan, places.numbers),
                partition,
                base,
                files,
                prepared.changes,
                [one for one in pending if one.segment.number not in places.unchanged],
                self._changelog_files_with_lsns(lsn_ranges),
                self._healed_gaps() if lsn_ranges else (),
                self._aggregator_cluster_rows(plan),
                () if healing is None else healing.reapplied_rows,
                self._vector_rules(partition.encodings),
                self._copy_folder,
            ),
            prepared,
        )

    def _vector_rules(self, encodings: Sequence[TableEncoding]) -> dict[str, VectorRule]:
        config, tables = self._config, self.tables
        return {
            name: VectorRule(
                config.vector_mode(one.layout.space),
                config.deletion_vectors_above,
                tables.allows_vectors(name),
            )
            for one in encodings
            for name in (one.exact_table, one.name)
        }

    def _changelog_files_with_lsns(self, lsn_ranges: Mapping[int, tuple[int, int]]) -> Sequence[TableFile]:
        if not lsn_ranges:
            return ()
        first = min(one[0] for one in lsn_ranges.values())
        last = max(one[1] for one in lsn_ranges.values())
        return self.tables.files_between("_changelog", "lsn", first, last)

    def _healed_gaps(self) -> list[dict[str, object]]:
        rows = newest_of_each(self.tables.open("_gaps"), KEY)
        return [row for row in rows if row["state"] == GapState.HEALED]

    def _aggregator_cluster_rows(self, plan: BatchPlan) -> pa.Table | None:
        own = self._cluster.own_member if self._cluster is not None else None
        if own is None or not plan.cluster_changes:
            return None
        rows = cluster_rows(
            plan.cluster_changes, plan.before.aggregator_lsn, own, plan.epoch, datetime.now(UTC)
        )
        return arrow_rows("_changelog", rows)

    def _step_done(self, step: str) -> None:
        self.seconds_by_step[step] = time.monotonic() - self._began
        log_step_done(step)

"""Aggregate the xlog streams of several replicasets into Delta tables, as a streaming job.

Reads the configuration, takes the writer lock, rolls back an unfinished batch of a killed job, and starts the stream.
`pipeline.batch` has a batch's steps.
"""

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from config.deployment import Config
from config.subscribe import seconds
from jobs.main import main
from jobs.prove import servers_to_read
from jobs.runtime.command_line import Stopped, StoppedInBatch
from jobs.runtime.output import say
from jobs.runtime.progress import StreamProgress
from jobs.runtime.session import spark_session
from jobs.runtime.steps import log_step
from observe.facts import DeploymentFacts
from observe.lineage.emitter import lineage_events
from observe.metrics.listener import metrics_listener
from observe.pending_work import leaders_of, open_requests, pending_rows, unread_sources, waiting_instants
from observe.problems import table_problems
from observe.proof.rolling import RollingProof
from pipeline.batch import BatchWriter
from pipeline.checkpoint_fit import require_fitting_checkpoint
from pipeline.executors import cell_source
from pipeline.executors.choice import runs_on_cluster
from pipeline.executors.distributed import DistributedExecutor
from pipeline.requests.pending_moves import PendingMoves
from pipeline.requests.service import Service
from pipeline.source_options import stream_options
from pipeline.start import open_writer
from pipeline.state import State
from pipeline.stream import OnResult, StreamWriter
from schemas.compiled import is_cached
from schemas.problems import problem_text
from sources.xlog.format.kernels.fill import walk_rows
from udfs.before_replace.custom import load_function
from warehouse import catalog
from warehouse.copies.primary import PrimaryLock
from warehouse.copies.standbys import Standbys
from warehouse.delta.location import WarehouseLocation, has_known_scheme, location_of
from warehouse.delta.newest_epoch import newest_row
from warehouse.lock.lock import WriterLock, refuse_if_locked
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)


BATCHES_TO_RETAIN = "spark.sql.streaming.minBatchesToRetain"
"""Spark's setting for the number of batches that it keeps in a checkpoint; it removes older ones as it runs."""


def check_custom_functions(config: Config) -> None:
    """Raise ConfigurationError, before anything starts, if the function of a `custom` policy cannot be imported."""
    policies = config.policies
    for policy in (policies.default, *map(policies.of, policies.spaces)):
        if policy.function is not None:
            load_function(policy.function)


def open_batch_writer(
    spark: SparkSession, config: Config, warehouse: Warehouse, lock: WriterLock
) -> BatchWriter:
    """Open the writer of a deployment's batches, with the lock; large batches run in the tasks of `spark`."""
    tasks = spark.sparkContext.defaultParallelism
    return open_writer(config, warehouse, lock, partial(DistributedExecutor, spark), tasks)


def configured_standbys(config: Config, *, waits: bool) -> Standbys | None:
    """Return the standbys that the configuration names; None if it names none.

    With `waits` the job, when it ends, waits for copies to standbys that are in progress.
    """
    if not config.standby.peers:
        return None
    source = location_of(config.warehouse, config.database)
    locations = [location_of(standby, config.database) for standby in config.standby.peers]
    return Standbys(source, locations, retry_seconds=seconds(config.standby.retry), waits=waits)


def keep_standbys_connected(
    writer: BatchWriter, standbys: Standbys | None, *, may_have_new_epoch: bool
) -> None:
    """Copy an epoch that was committed between two batches to the standbys; try to connect lost standbys again."""
    if standbys is not None and (may_have_new_epoch or standbys.has_retry_due()):
        with writer.batch_lock:
            standbys.copy_and_reconnect()


def rolling_proof(
    config: Config, location: WarehouseLocation, writer: BatchWriter, *, once: bool
) -> AbstractContextManager[None]:
    """Return a context manager that runs the rolling proof; it does nothing if there is none, or with `once`."""
    if config.prove is None or once:
        return nullcontext()
    peers = servers_to_read(config, config.prove.peers, config.prove.password_env)
    return RollingProof(
        *(config.prove, location, peers),
        state=lambda: writer.state,
        file=config.cache.proof_file(config.checkpoint),
        is_in_batch=writer.batch_lock.locked,
    ).running()


def start_stream(
    spark: SparkSession, config: Config, state: State, write_batch: StreamWriter, *, once: bool
) -> StreamingQuery:
    """Start the streaming query of a deployment."""
    cell_source.register(spark)
    options = stream_options(config, state, spark.sparkContext.defaultParallelism)
    if not runs_on_cluster(spark):
        options |= {cell_source.COUNTS_OPTION: config.cache.counts_folder(config.checkpoint)}
    spark.conf.set(BATCHES_TO_RETAIN, str(config.retention.batches))
    cells = spark.readStream.format(cell_source.FORMAT).options(**options).load()
    stream = cell_source.observed_cells(cells).writeStream.queryName("aggregate")
    stream = stream.option("checkpointLocation", config.checkpoint).foreachBatch(write_batch)
    stream = stream.trigger(availableNow=True) if once else stream.trigger(processingTime=config.trigger)
    return stream.start()


@dataclass(frozen=True)
class RunEnd:
    """Where a run of the job has ended."""

    epoch: int
    """The last epoch; -1 if there is none."""
    pending: tuple[str, ...]
    """What is not done: pending rows, sources that were not read, open requests."""
    set_aside: tuple[str, ...] = ()
    """The spaces with rows in no table, and why."""
    misfits: tuple[str, ...] = ()
    """The tables with rows that have a NULL for a value that its column cannot hold."""


def aggregate(config: Config, *, once: bool = False) -> RunEnd:
    """Run the job until it is stopped, or with `once` up to the current end of the logs."""
    check_custom_functions(config)
    if has_known_scheme(config.warehouse):  # before Spark starts, which takes a minute
        refuse_if_locked(location_of(config.warehouse, config.database).root)
    if not is_cached(walk_rows):
        text = "kernels are compiled in the first batch, once on this machine: a minute of one core"
        say(f"{text} (`aggregator setup` does it ahead)", err=True)
    spark = spark_session(config, "aggregate")
    cell_source.start_python_processes(spark)
    warehouse = Warehouse(spark, config.warehouse, config.database)
    standbys = configured_standbys(config, waits=once)
    with (
        PrimaryLock(warehouse, "jobs/aggregate.py", standbys) as lock,
        StreamProgress(config.sources) as progress,
        metrics_listener(spark, config, once=once, lock=lock, standbys=standbys) as listener,
    ):
        watches: list[OnResult] = [progress.show_batch, *([] if listener is None else [listener.batch_done])]
        if standbys is not None:
            watches.append(lambda _done: standbys.copy_and_reconnect())
        log_step(f"reading {len(warehouse.tables())} tables, and the ends of {len(config.sources)} sources")
        writer = open_batch_writer(spark, config, warehouse, lock)
        require_fitting_checkpoint(warehouse, config.checkpoint, writer.log_stream, writer.state)
        if listener is not None and listener.health is not None:
            listener.health.is_in_batch = writer.batch_lock.locked
        metastore = catalog.MetastoreTables(warehouse)
        metastore.register(warehouse.tables())
        watches.append(lambda _done: metastore.register(writer.state.versions))
        service = Service(spark, warehouse, config, writer)
        service.read_newly_included_spaces()
        moves = PendingMoves(writer)
        with (
            lineage_events(config, spark.version, lambda: writer.state.versions) as around,
            rolling_proof(config, warehouse.location, writer, once=once),
        ):
            batches = StreamWriter(
                *(warehouse, config, writer, lambda done: [watch(done) for watch in watches]),
                progress.log_first_batch(around),
            )
            log_step("starting the stream")
            query = start_stream(spark, config, writer.state, batches, once=once)
            try:
                progress.wait_for_end(
                    query,
                    lambda: keep_standbys_connected(
                        writer,
                        standbys,
                        may_have_new_epoch=service.serve_if_due() + moves.look_again_if_due() > 0,
                    ),
                )
            finally:
                try:
                    if not batches.finish():
                        raise StoppedInBatch from sys.exception()
                except StoppedInBatch:
                    raise
                except (Stopped, KeyboardInterrupt) as stop:
                    raise StoppedInBatch from stop
                finally:
                    query.stop()
        service.serve()
        if once:
            moves.look_again(datetime.now(UTC))
        pending = _pending_work(warehouse.location, query)
        metastore.register(warehouse.tables())
    return RunEnd(writer.state.epoch, pending, **_faulty_rows(warehouse.location))


def _faulty_rows(location: WarehouseLocation) -> dict[str, tuple[str, ...]]:
    texts: dict[str, tuple[str, ...]] = {"rows_set_aside": (), "misfits": ()}
    if has_known_scheme(location.root) and newest_row(location) is not None:
        for one in table_problems(DeploymentFacts(location)):
            if one.condition in texts:
                texts[one.condition] += (problem_text(one),)
    return {"set_aside": texts["rows_set_aside"], "misfits": texts["misfits"]}


def _pending_work(location: WarehouseLocation, query: StreamingQuery) -> tuple[str, ...]:
    """Return texts about what is not done although the stream has ended."""
    last = query.lastProgress
    source = last.sources[0] if last is not None and last.sources else None
    unread = unread_sources(None if source is None else source.latestOffset)
    end = None if source is None else source.endOffset
    leaders = leaders_of(end)
    return (
        *waiting_instants(end),
        *(f"source {name} was not read: {reason}" for name, reason in sorted(unread.items())),
        *pending_rows(location, leaders),
        *(f"request {text}" for text in open_requests(location)),
    )


if __name__ == "__main__":
    sys.exit(main("run"))

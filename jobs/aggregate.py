"""Aggregate the xlog streams of several replicasets into Delta tables, as a streaming job.

    spark-submit jobs/aggregate.py --config FILE [--once]

Thin: reads the configuration, takes the writer lock, takes back what a killed job left, starts the stream. What a
batch does is in `jobs.batch.run`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.batch.choices import check_functions
from jobs.batch.load import load_state
from jobs.batch.outcome import Outcome
from jobs.batch.remask import remasked
from jobs.batch.run import Writer
from jobs.cli import parser, run
from config.deployment import Config
from jobs.metrics.listener import measured
from jobs.options import stream_options
from jobs.progress import Progress
from jobs.service import Service
from jobs.session import spark_session
from sources.xlog.datasource import register
from tables import catalog, cluster, epochs
from tables.lock import WriterLock
from tables.primary import PrimaryLock
from tables.warehouse import Warehouse

log = logging.getLogger(__name__)

Watch = Callable[[Outcome], object]


def opened_writer(
    spark: SparkSession, config: Config, warehouse: Warehouse, lock: WriterLock, watch: Watch | None = None
) -> Writer:
    """Return the writer of a deployment, over tables without anything of an unfinished batch.

    Parameters
    ----------
    lock : WriterLock
        Held.
    watch : callable, optional
        Told the outcome of each batch.

    """
    warehouse.create_system_tables()
    epochs.take_back(warehouse, epochs.last(warehouse))
    cluster.start(warehouse, config.cluster.allocation, datetime.now(UTC))
    state = remasked(warehouse, config, load_state(warehouse))
    options = stream_options(config, state, spark.sparkContext.defaultParallelism)
    writer = Writer(warehouse, config, options, lock, state, watch)
    writer.go_on()
    return writer


def start_stream(spark: SparkSession, config: Config, writer: Writer, *, once: bool) -> StreamingQuery:
    """Start the streaming query of a deployment.

    Parameters
    ----------
    writer : Writer
        As `opened_writer` makes it.
    once : bool
        Whether to stop when everything that is there now is done.

    """
    options = stream_options(config, writer.state, spark.sparkContext.defaultParallelism)
    rows = spark.readStream.format("xlog").options(**options).load()
    stream = rows.writeStream.queryName("aggregate").option("checkpointLocation", config.checkpoint)
    stream = stream.foreachBatch(writer)
    stream = stream.trigger(availableNow=True) if once else stream.trigger(processingTime=config.trigger)
    return stream.start()


def aggregate(config: Config, options: argparse.Namespace) -> None:
    """Run the job until it is stopped, or with `--once` until it is done."""
    check_functions(config.policies)
    spark = spark_session(config, "aggregate")
    register(spark)
    warehouse = Warehouse(spark, config.warehouse, config.database)
    with (
        PrimaryLock(warehouse, "jobs/aggregate.py") as lock,
        Progress(config.sources) as progress,
        measured(spark, config, once=options.once) as listener,
    ):
        watches = [progress.batch_done, *([] if listener is None else [listener.outcome])]
        writer = opened_writer(spark, config, warehouse, lock, lambda o: [watch(o) for watch in watches])
        service = Service(spark, warehouse, config, writer)
        service.serve()
        query = start_stream(spark, config, writer, once=options.once)
        try:
            progress.follow(query, service.glance)
        finally:
            try:
                writer.finish()
            finally:
                query.stop()
        service.serve()
        catalog.register_tables(warehouse)


def main() -> int:
    """Run the command."""
    arguments = parser((__doc__ or "").partition("\n")[0])
    arguments.add_argument(
        "--once", action="store_true", help="stop when everything that is there now is done"
    )
    return run(aggregate, arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Aggregate the xlog streams of several replicasets into Delta tables, as a streaming job.

    spark-submit jobs/aggregate.py --config FILE [--once]

Thin: reads the configuration, takes the writer lock, takes back what a killed job left, starts the stream. What a
batch does is in `jobs.batch.run`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.batch.choices import check_functions
from jobs.batch.load import load_state
from jobs.batch.run import Writer
from jobs.batch.state import State
from jobs.cli import parser, run
from jobs.config import Config
from jobs.progress import Progress
from jobs.session import spark_session
from sources.xlog.datasource import register
from tables import catalog, cluster, epochs
from tables.lock import WriterLock
from tables.warehouse import Warehouse

log = logging.getLogger(__name__)


def stream_options(config: Config, state: State, cores: int) -> dict[str, str]:
    """Return the options of `format("xlog")` for a deployment on so many cores.

    Where the stream knows nothing of a replicaset (a new source, a lost checkpoint), it starts from the tables.
    """
    sources = [
        {"name": s.name, "path": s.path, "replicaset": s.replicaset, "origins": list(s.origins)}
        for s in config.sources
    ]
    return {
        "sources": json.dumps([{k: v for k, v in s.items() if v} for s in sources]),
        "start": {"snapshot": "snapshot", "logs": "history"}[config.start],
        "startVclock": json.dumps(
            {uuid: {str(i): n for i, n in v.items()} for uuid, v in state.start_vclocks().items()}
        ),
        "maxBytesPerTrigger": str(config.max_bytes_per_trigger),
        "minPartitions": str(cores),
        "gaps": "report",
        "on_source_error": config.on_source_error,
    }


def start_stream(
    spark: SparkSession,
    config: Config,
    warehouse: Warehouse,
    lock: WriterLock,
    progress: Progress,
    *,
    once: bool,
) -> StreamingQuery:
    """Start the streaming query of a deployment.

    Parameters
    ----------
    warehouse : Warehouse
        With all system tables, and nothing of an unfinished batch.
    lock : WriterLock
        Held.
    once : bool
        Whether to stop when everything that is there now is done.

    """
    state = load_state(warehouse)
    options = stream_options(config, state, spark.sparkContext.defaultParallelism)
    writer = Writer(warehouse, config, options, lock, state, progress.batch_done)
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
    with WriterLock(warehouse, "jobs/aggregate.py") as lock, Progress(config.sources) as progress:
        warehouse.create_system_tables()
        epochs.take_back(warehouse, epochs.last(warehouse))
        cluster.start(warehouse, config.cluster.allocation, datetime.now(UTC))
        query = start_stream(spark, config, warehouse, lock, progress, once=options.once)
        try:
            progress.follow(query)
        finally:
            query.stop()
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

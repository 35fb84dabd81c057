"""Opens the writer of a deployment: all steps of a job between acquiring the writer lock and its first batch."""

from __future__ import annotations

from datetime import UTC, datetime

from config.deployment import Config
from pipeline.batch import BatchWriter, MakeDistributed
from pipeline.commit.load import load_state
from pipeline.inputs import with_server_versions
from pipeline.plan.policy_fields import warn_unknown_fields
from pipeline.plan.tables import spaces_by_table
from pipeline.source_options import stream_options
from pipeline.start.release import release_old_rows
from pipeline.start.remask import apply_masks
from sources.xlog.options import parse_options
from sources.xlog.stream.instants import follower_of
from warehouse import cluster, epochs
from warehouse.lock import WriterLock
from warehouse.warehouse import Warehouse


def open_writer(
    config: Config,
    warehouse: Warehouse,
    lock: WriterLock,
    distributed: MakeDistributed | None = None,
    tasks: int = 1,
) -> BatchWriter:
    """Roll back an unfinished batch, and return the writer of a deployment.

    Parameters
    ----------
    lock : WriterLock
        The acquired lock.
    distributed : callable, optional
        Makes the executor of large batches; by default all batches are done in this process.
    tasks : int
        Number of tasks that read a large batch.

    """
    warehouse.create_system_tables()
    epochs.roll_back(warehouse, epochs.last(warehouse))
    cluster.record_allocation(warehouse, config.cluster.allocation, datetime.now(UTC))
    state = apply_masks(warehouse, config, load_state(warehouse))
    for definitions in spaces_by_table(state).values():
        warn_unknown_fields(config.policies, definitions.values())
    follower = follower_of(parse_options(stream_options(config, state, tasks)))
    state = with_server_versions(warehouse.open_tables, follower, state)
    writer = BatchWriter(warehouse, config, follower, lock, state, distributed)
    release_old_rows(writer)
    return writer

"""Opens the writer of a deployment: all steps of a job between acquiring the writer's lock and its first batch.

An unfinished batch is rolled back. If a mask was added, changed or removed in the configuration, the table that readers
see is rewritten from the exact one, and one epoch commits all such tables; maintenance removes the old versions with
the unmasked values. (`pipeline.write.prepare` handles a mask whose field appears in a format while the stream runs.)
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from config.deployment import Config
from pipeline.batch import BatchWriter, MakeDistributed
from pipeline.commit.epoch import after_roll_back, commit_epoch
from pipeline.commit.load import load_state
from pipeline.encode.columns import TableEncoding, encoding_of
from pipeline.plan.spaces.masks import MASKS_PROPERTY
from pipeline.plan.spaces.tables import current_table_plan, spaces_by_table, warn_unknown_fields
from pipeline.source_options import open_log_stream
from pipeline.state import State
from pipeline.write.changes import TableChange, write_rows
from pipeline.write.prepare import PreparedTables, masks_differ, prepare_table, rewrite_exact, rewrite_masked
from schemas.errors import UnsupportedError
from schemas.names import exact_table, is_space_table
from warehouse.delta.commits import OpenTables
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.delta.table_files import read_file
from warehouse.lock.lock import WriterLock
from warehouse.system_tables import cluster, epochs
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)

MASK_QUERY_ID = "masked"
"""The query id in `_epochs` of the epoch that changes masks."""


def open_writer(
    config: Config,
    warehouse: Warehouse,
    lock: WriterLock,
    distributed: MakeDistributed | None = None,
    tasks: int = 1,
) -> BatchWriter:
    """Roll back an unfinished batch, and return the writer of a deployment."""
    epoch = epochs.last(warehouse) if warehouse.exists(EPOCHS) else None
    aside = epochs.require_tables(warehouse.location)
    warehouse.create_system_tables()
    rolled_back = epochs.roll_back(warehouse, epoch, aside)
    cluster.record_allocation(warehouse, config.cluster.allocation, datetime.now(UTC))
    loaded = replace(load_state(warehouse), set_aside=aside)
    state = after_roll_back(warehouse.open_tables, loaded, epoch, rolled_back)
    state = apply_masks(warehouse, config, state)
    for definitions in spaces_by_table(state).values():
        warn_unknown_fields(config.policies, definitions.values())
    log_stream = open_log_stream(config, state, cores=tasks, at_instants=True)
    return BatchWriter(warehouse, config, log_stream, lock, state, distributed)


@dataclass(frozen=True)
class MaskChange:
    """A table whose masks change."""

    table: str
    encoding: TableEncoding | None
    """The encoding with the new masks; None if the table is not masked any more."""
    was_masked: bool

    @property
    def exact(self) -> str:
        """The table with the unmasked rows, which exists while the table is masked."""
        return exact_table(self.table)


def mask_changes(tables: OpenTables, config: Config, state: State) -> Iterator[MaskChange]:
    """Yield the tables whose masks the start must change; raise UnsupportedError if a mask does not hide its field."""
    for table in filter(is_space_table, state.versions.keys() - state.set_aside.keys()):
        was_masked = exact_table(table) in state.versions
        if not was_masked and not config.spaces.has_readers_tables:
            continue
        try:
            plan = current_table_plan(state, config, table)
        except UnsupportedError as error:
            raise UnsupportedError(f"{table}: {error.reason}", advice="see spaces.masks") from error
        if plan is None:
            if was_masked:
                log.warning("%s stays masked as before: its space was dropped", table)
        elif plan.mask is not None:
            encoding = encoding_of(plan)
            if not was_masked or masks_differ(tables, encoding):
                yield MaskChange(table, encoding, was_masked)
        elif was_masked:
            yield MaskChange(table, None, was_masked)


def apply_masks(warehouse: Warehouse, config: Config, state: State) -> State:
    """Rewrite all tables whose masks changed, commit an epoch, and return the state after it."""
    tables = warehouse.open_tables
    changed: dict[str, int] = {}
    gone: list[str] = []
    for one in mask_changes(tables, config, state):
        if one.encoding is not None:
            prepared = PreparedTables()
            prepare_table(tables, one.encoding, prepared)
            if prepared.changes[one.exact] is TableChange.REWRITE:
                rewrite_exact(tables, one.encoding)
            changed[one.table] = rewrite_masked(tables, one.encoding)
            changed[one.exact] = tables.version(one.exact)
        else:
            log.warning("%s is not masked any more", one.table)
            changed[one.table] = _unmask(tables, one.table)
            gone.append(one.exact)
    if not changed:
        return state
    kept = {name: version for name, version in state.versions.items() if name not in gone}
    after = commit_epoch(tables, replace(state, versions=kept), changed, (MASK_QUERY_ID, state.epoch + 1))
    for table in gone:
        warehouse.drop(table)
    return after


def _unmask(tables: OpenTables, table: str) -> int:
    """Replace a masked table's rows by those of its exact table, and return its new Delta version."""
    exact = exact_table(table)
    added = []
    for file in tables.files(exact):
        added += write_rows(tables.location, table, read_file(tables.location, exact, file))
    tables.replace(table, added, tables.columns(exact))
    return tables.set_properties(table, {MASKS_PROPERTY: "{}"})

"""Gathers facts of a warehouse's location and tables. Test files have unique names and are removed at once.

The writer lock is not acquired, since a job that starts at that moment would be refused.
"""

import uuid as uuids
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake.exceptions import DeltaError

from config.deployment import Config
from observe.doctor.gather.machine import nearest_existing_folder
from observe.doctor.store import StoreFacts, TableFacts
from pipeline.checkpoint import resume_offset
from pipeline.commit.load import check_format
from schemas.errors import AggregatorError, UnsupportedError, WarehouseError
from schemas.tables import SYSTEM_TABLES
from warehouse.copies.rid import RidTable
from warehouse.delta.location import location_of
from warehouse.delta.newest_epoch import EPOCHS, NEVER_ROLLED_BACK, RID, newest_row
from warehouse.delta.read import columns_of
from warehouse.delta.table_files import TableFile, files_of
from warehouse.lock.lease import LEASE_SECONDS, holder_of
from warehouse.lock.lease_store import object_lease
from warehouse.lock.lock import LOCK_NAME, holder_now, local_folder
from warehouse.system_tables import cluster, epochs
from warehouse.system_tables.table_differences import TableState, compare_table, table_differences
from warehouse.warehouse import EpochWarehouse

_TABLE_ERRORS = (AggregatorError, OSError, DeltaError, pa.ArrowException)


def gather_store(config: Config) -> StoreFacts:
    """Return the facts of the location of a deployment's warehouse."""
    try:
        location = location_of(config.warehouse, config.database)
    except WarehouseError as error:
        return StoreFacts(config.warehouse, scheme_error=str(error))
    folder = local_folder(location.root)
    checkpoint = local_folder(config.checkpoint)
    checkpoint_error = None if checkpoint is None else _test_folder(checkpoint).write
    if folder is None:
        return _remote_store(location.root, checkpoint_error)
    errors = _test_folder(folder)
    holder = holder_now(folder / LOCK_NAME)
    above, within = _sources_above_and_within(config)
    return StoreFacts(location.root, None, *errors, checkpoint_error, holder, above, within)


def _sources_above_and_within(config: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the sources whose folder contains the warehouse, and of those whose folder is within it.

    Only local folders are compared: other sources are left out, and both tuples are empty if the warehouse is not
    local.
    """
    warehouse = local_folder(config.warehouse)
    folders = {source.name: local_folder(source.path) for source in config.sources}
    if warehouse is None:
        return (), ()
    root = warehouse.resolve()
    resolved = {name: folder.resolve() for name, folder in folders.items() if folder is not None}
    above = tuple(name for name, folder in resolved.items() if root.is_relative_to(folder))
    within = (name for name, folder in resolved.items() if folder.is_relative_to(root))
    return above, tuple(name for name in within if name not in above)


class _FolderTestErrors(NamedTuple):
    """The errors of tests in a folder, which write a file, rename it and create it again; None if one passed."""

    write: str | None = None
    rename: str | None = None
    create_again: str | None = None


def _test_folder(folder: Path) -> _FolderTestErrors:
    """Test with files, which are removed at once, whether a folder is suitable for tables."""
    base = nearest_existing_folder(folder)
    probe, other = (base / f".aggregator-doctor-{uuids.uuid4()}{suffix}" for suffix in ("", ".renamed"))
    if not base.is_dir():
        return _FolderTestErrors(write=f"{base} is not a folder")
    try:
        probe.write_bytes(b"1")
    except OSError as error:
        return _FolderTestErrors(write=f"{base} cannot be written: {error.strerror}")
    try:
        probe.rename(other)
        try:
            with other.open("xb"):
                return _FolderTestErrors(create_again=f"{base} lets two writers create the same file")
        except FileExistsError:
            return _FolderTestErrors()
    except OSError as error:
        return _FolderTestErrors(rename=f"files at {base} cannot be renamed: {error.strerror}")
    finally:
        probe.unlink(missing_ok=True)
        other.unlink(missing_ok=True)


def _remote_store(root: str, checkpoint_error: str | None) -> StoreFacts:
    try:
        lease = object_lease(root, LOCK_NAME)
        now, stored = lease.now(), lease.read()
    except UnsupportedError as error:
        return StoreFacts(root, conditional_write_error=str(error), checkpoint_error=checkpoint_error)
    except OSError as error:
        return StoreFacts(root, write_error=str(error), checkpoint_error=checkpoint_error)
    is_held = (
        stored is not None and '"free": true' not in stored.text and now - stored.modified < LEASE_SECONDS
    )
    holder = holder_of(stored.text) if stored is not None and is_held else None
    return StoreFacts(root, checkpoint_error=checkpoint_error, lock_holder=holder)


def gather_tables(config: Config) -> TableFacts:
    """Return the facts of a deployment's tables."""
    warehouse = EpochWarehouse(None, config.warehouse, config.database)
    location = warehouse.location
    checkpoint_error, has_checkpoint = _checkpoint_error_and_existence(warehouse, config.checkpoint)
    if not location.has(EPOCHS):
        return TableFacts(checkpoint_error=checkpoint_error, has_checkpoint=has_checkpoint)
    try:
        epoch = epochs.last(warehouse)
        newer = _newer_release_error(None if epoch is None else epoch.settings)
    except _TABLE_ERRORS as error:
        return TableFacts(unreadable_tables={EPOCHS: str(error)}, has_checkpoint=has_checkpoint)
    versions = {} if epoch is None else epoch.versions
    differences = tuple(table_differences(location, newest_row(location)))
    different = {one.table for one in differences}
    unreadable_tables = dict(_unreadable_tables(warehouse, versions, different))
    unknown = {} if unreadable_tables or different else _unknown_columns(warehouse)
    rid = RidTable(location).last()
    readable = set(location.tables()) - unreadable_tables.keys() - different
    return TableFacts(
        epoch=-1 if epoch is None else epoch.epoch,
        table_count=len(versions),
        unreadable_tables=unreadable_tables,
        newer_release_error=newer,
        unknown_columns=unknown,
        tables_ahead=tuple(
            name
            for name in sorted(readable & versions.keys() - NEVER_ROLLED_BACK)
            if EPOCHS not in different
            and compare_table(location, name, versions[name]).state is TableState.UNFINISHED
        ),
        differences=differences,
        rid=str(rid.node.rid) if rid.number else None,
        is_primary=not rid.number or rid.node.rid.primary,
        id_allocation=cluster.recorded_allocation(warehouse) if cluster.TABLE in readable else None,
        checkpoint_error=checkpoint_error,
        has_checkpoint=has_checkpoint,
    )


def _checkpoint_error_and_existence(warehouse: EpochWarehouse, location: str) -> tuple[str | None, bool]:
    """Return (error, whether there is a checkpoint); the error says why it cannot be read, None if it can."""
    try:
        return None, resume_offset(warehouse, location) is not None
    except AggregatorError as error:
        return str(error), True


def _newer_release_error(settings: str | None) -> str | None:
    try:
        check_format(settings)
    except WarehouseError as error:
        return error.reason
    return None


def _unreadable_tables(
    warehouse: EpochWarehouse, versions: Mapping[str, int], different: Set[str] = frozenset()
) -> Iterator[tuple[str, str]]:
    """Yield (table, reason) for each table that cannot be read at its version in `versions`, except different ones."""
    for name in sorted({*versions, *(n for n in SYSTEM_TABLES if warehouse.exists(n))} - different):
        try:
            opened = warehouse.location.open(name, versions.get(name))
            if opened is None:
                yield name, "it is in the newest epoch, but does not exist"
            else:
                missing = _missing_file(warehouse, name, files_of(opened, name))
                if missing is not None:
                    yield name, f"its file {missing} is missing"
        except _TABLE_ERRORS as error:
            yield name, str(error)


def _missing_file(warehouse: EpochWarehouse, table: str, files: Sequence[TableFile]) -> str | None:
    """Return the first of some data files of a table, and of their deletion vectors, that does not exist.

    Files in an object store are not checked, since each check would be a request.
    """
    folder = local_folder(warehouse.root)
    if folder is None:
        return None
    paths = {unquote(file.path): None for file in files}
    paths |= {
        file.vector.path: None for file in files if file.vector is not None and file.vector.path is not None
    }
    return next((path for path in paths if not (folder / table / path).is_file()), None)


def _unknown_columns(warehouse: EpochWarehouse) -> dict[str, tuple[str, ...]]:
    """Return, by name of one of the aggregator's own tables, its columns that this release does not know."""
    unknown = {}
    for name, schema in SYSTEM_TABLES.items():
        if name != RID and warehouse.exists(name):
            new = sorted(set(columns_of(warehouse.opened(name)).names) - set(schema.names))
            if new:
                unknown[name] = tuple(new)
    return unknown

"""Gathers facts of the warehouse's location and tables, and checks whether this release can write them.

Test files have unique names and are removed at once. The writer lock is not acquired, since a job that starts at that
moment would be refused.
"""

import uuid as uuids
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake.exceptions import DeltaError

from config.deployment import Config
from observe.doctor.findings import STORES, Finding, fail, ok, warn
from observe.doctor.machine import nearest_existing_folder
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
from warehouse.system_tables.table_differences import (
    TableDifference,
    TableState,
    compare_table,
    table_differences,
)
from warehouse.warehouse import EpochWarehouse


@dataclass(frozen=True)
class StoreFacts:
    """The facts of a warehouse's location."""

    location: str
    """Path or URI of the folder with the tables."""
    scheme_error: str | None = None
    """Why Spark and delta-rs cannot open the location; None if one of them can."""
    write_error: str | None = None
    rename_error: str | None = None
    """Why a test file could not be written, and why it could not be renamed; None if it could."""
    conditional_write_error: str | None = None
    """The error if two writers can create the same file in the store, so that one overwrites the commit of the other;
    None if the store refuses the second one (a conditional write)."""
    checkpoint_error: str | None = None
    """Why the checkpoint's folder cannot be written; None if it can."""
    lock_holder: str | None = None
    """The current holder of the writer lock, as text; None if the lock is free."""
    sources_above: tuple[str, ...] = ()
    sources_within: tuple[str, ...] = ()
    """Names of the sources whose folder contains the warehouse's folder, and of those whose folder is within it."""


@dataclass(frozen=True)
class TableFacts:
    """The facts of the tables."""

    epoch: int = -1
    """The newest epoch; -1 without one."""
    table_count: int = 0
    unreadable_tables: Mapping[str, str] = field(default_factory=dict)
    """By name of a table that cannot be read: the reason."""
    newer_release_error: str | None = None
    """The error message if a newer release of the aggregator has written the tables, else None."""
    unknown_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By name of one of the aggregator's own tables: its columns that this release does not know."""
    tables_ahead: tuple[str, ...] = ()
    """Tables with commits of an unfinished batch, after the newest epoch."""
    differences: tuple[TableDifference, ...] = ()
    """The tables that are not as the newest epoch names them."""
    rid: str | None = None
    """The RID (generation and role of the warehouse, docs/rid.md) as text; None without one."""
    is_primary: bool = True
    """Whether the warehouse may be written; a warehouse that is not primary is a copy."""
    id_allocation: str | None = None
    """How the global ids were allocated (`cluster.allocation` of the configuration); None if unknown."""
    checkpoint_error: str | None = None
    """Why the checkpoint cannot be read; None if it can, or does not exist."""
    has_checkpoint: bool = False


def check_store(facts: StoreFacts) -> Iterator[Finding]:
    """Yield the findings about the warehouse's location."""
    if facts.scheme_error is not None:
        yield fail(
            "warehouse_unknown",
            "warehouse",
            facts.scheme_error,
            "name a path, or a store of the table `stores`",
        )
        return
    writable = "let this user write there, or name another folder"
    if facts.write_error is not None:
        yield fail("warehouse_unwritable", "warehouse", facts.write_error, writable)
    elif facts.rename_error is not None:
        advice = "commits need a hard link or a rename: name another file system"
        yield fail("warehouse_no_rename", "warehouse", facts.rename_error, advice)
    elif facts.conditional_write_error is not None:
        advice = f"use another store ({STORES}): two writers could overwrite each other's commits"
        yield fail("no_conditional_writes", "warehouse", facts.conditional_write_error, advice)
    else:
        yield ok("warehouse", "warehouse", f"{facts.location} can be written, renamed and locked")
    if facts.checkpoint_error is not None:
        yield fail("checkpoint_unwritable", "checkpoint", facts.checkpoint_error, writable)
    if facts.lock_holder is not None:
        advice = "nothing, if the holder is the stream: another `run` is refused until it ends"
        yield warn("lock_held", "writer lock", f"held by {facts.lock_holder}", advice)
    elif facts.write_error is None:
        yield ok("lock", "writer lock", "free")
    apart = "give the warehouse and each source folders that do not contain each other"
    if facts.sources_above:
        names = ", ".join(facts.sources_above)
        text = f"it is inside of the log folder of {names}: who cleans that folder removes tables"
        yield warn("warehouse_in_logs", "warehouse", text, apart)
    if facts.sources_within:
        names = ", ".join(facts.sources_within)
        text = f"the log folder of {names} is inside of it: who removes or copies the warehouse does so with the logs"
        yield warn("logs_in_warehouse", "warehouse", text, apart)


def check_tables(facts: TableFacts, allocation: str) -> Iterator[Finding]:
    """Yield the findings about the tables."""
    if facts.epoch < 0:
        yield ok("tables", "tables", "none yet: the first run creates them")
    else:
        yield ok("tables", "tables", f"epoch {facts.epoch} names {facts.table_count} tables")
    for one in facts.differences:
        is_lost = one.state in (TableState.LOST, TableState.OLDER)
        yield fail("table_lost" if is_lost else "table_changed", f"table {one.table}", one.text, one.advice)
    for table, reason in facts.unreadable_tables.items():
        yield fail(
            "table_unreadable",
            f"table {table}",
            reason,
            "restore the table, or correct what the message names",
        )
    newest = "install the release that wrote them, or a newer one"
    if facts.newer_release_error is not None:
        yield fail("tables_newer", "tables", facts.newer_release_error, newest)
    for table, columns in facts.unknown_columns.items():
        text = f"this release does not know the columns {', '.join(columns)}"
        yield warn("tables_newer", f"table {table}", text, newest)
    if facts.id_allocation is not None and facts.id_allocation != allocation:
        yield fail(
            "allocation_changed",
            "tables",
            f"global ids were allocated by {facts.id_allocation!r}, the configuration says {allocation!r}",
            f"set cluster.allocation to {facts.id_allocation}",
        )
    yield from _check_state(facts)


def _check_state(facts: TableFacts) -> Iterator[Finding]:
    if facts.rid is not None:
        text = f"{'primary' if facts.is_primary else 'secondary'}, {facts.rid}"
        if facts.is_primary:
            yield ok("rid", "rid", text)
        else:
            yield fail(
                "not_primary", "rid", text, "write to the primary, or aggregator rid promote (docs/rid.md)"
            )
    if facts.checkpoint_error is not None:
        advice = "delete it: the stream continues after the rows in the tables"
        yield fail("checkpoint_damaged", "checkpoint", facts.checkpoint_error, advice)
    elif facts.epoch >= 0 and not facts.has_checkpoint:
        text = "there is none: the stream will continue after the rows in the tables"
        yield warn(
            "checkpoint_missing", "checkpoint", text, "nothing, unless its path was changed by mistake"
        )
    if facts.tables_ahead:
        text = f"an unfinished batch is in {', '.join(facts.tables_ahead)}"
        yield warn(
            "batch_unfinished",
            "tables",
            text,
            "nothing: a running writer finishes it, or the next start rolls it back",
        )


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

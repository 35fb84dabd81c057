"""`_epochs`: one row per batch. It is appended last, commits the batch, and names the version of every table.

The batch's other tables are written before it, each by commits of its own. What a killed writer has committed after its
last epoch is rolled back when the next writer starts (`roll_back`): each table is taken back to the version that the
epoch names, so a batch takes effect as a whole or not at all. For a consistent snapshot, read the versions that the
newest row names; the newest versions of the tables may contain an unfinished batch.
"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deltalake import DeltaTable

from schemas.names import exact_table
from schemas.tables import SYSTEM_TABLES
from warehouse.delta.commits import OpenTables
from warehouse.delta.foreign_changes import is_of_a_writer
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import EPOCHS as TABLE
from warehouse.delta.newest_epoch import NEVER_ROLLED_BACK, RID, newest_row
from warehouse.delta.read import newest, rows_of
from warehouse.delta.restoration import restore
from warehouse.delta.table_log import read_commit
from warehouse.system_tables.table_differences import (
    TableState,
    compare_table,
    table_differences,
    tables_of_spaces,
)
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Epoch:
    """One committed batch. The fields are the table's columns, with JSON decoded (`schemas.tables` explains them).

    `vclock` has replicaset uuid to {replica id: lsn}; `versions` and `writers` have the table as their key.
    """

    epoch: int
    query_id: str
    batch_id: int
    vclock: Mapping[str, Mapping[int, int]]
    versions: Mapping[str, int]
    writers: Mapping[str, Mapping[str, Any]]
    end_offset: str | None
    settings: str | None = None


def last(warehouse: Warehouse) -> Epoch | None:
    """Return the newest epoch; None if no batch is committed yet."""
    row = newest(warehouse.opened(TABLE), "epoch")
    if row is None:
        return None
    vclock = {uuid: {int(i): lsn for i, lsn in v.items()} for uuid, v in json.loads(row["vclock"]).items()}
    return Epoch(
        row["epoch"],
        row["query_id"],
        row["batch_id"],
        vclock,
        dict(row["versions"]),
        json.loads(row["writers"]),
        row["end_offset"],
        row.get("settings"),
    )


def end_offsets(warehouse: Warehouse, query_id: str) -> dict[int, str | None]:
    """Return batch id to end offset (None if it has none) of the committed batches of a streaming query."""
    rows = rows_of(warehouse.opened(TABLE), ("query_id", "batch_id", "end_offset"))
    return {row["batch_id"]: row["end_offset"] for row in rows if row["query_id"] == query_id}


@dataclass(frozen=True)
class RollBack:
    """What was rolled back since the last epoch, by this start or by an earlier one that did not get further."""

    undone: tuple[str, ...] = ()
    restored: Mapping[str, int] = field(default_factory=dict)
    """The version of each table that is at a later version than the last epoch names, but equal to it."""


def roll_back(warehouse: Warehouse, epoch: Epoch | None, aside: Collection[str] = ()) -> RollBack:
    """Take the tables back that an unfinished batch has changed.

    Args:
        aside: Tables of spaces that are left as they are.

    Raises:
        ForeignChangeError: Somebody else has changed a table since the last epoch.
        WarehouseError: A table cannot be restored.
        LockError: Another writer commits at the same time.
    """
    tables = warehouse.open_tables
    versions = {} if epoch is None else epoch.versions
    left = {*NEVER_ROLLED_BACK, RID, *aside, *map(exact_table, aside)}
    names = [name for name in warehouse.tables() if name not in left]
    found = {name: _roll_back_table(tables, name, versions.get(name)) for name in names}
    undone = tuple(name for name, one in found.items() if one.is_undone)
    lasting = versions.keys() | SYSTEM_TABLES.keys()
    restored = {
        name: one.version for name, one in found.items() if one.version is not None and name in lasting
    }
    for name in NEVER_ROLLED_BACK - {TABLE}:
        _open_for_fence(tables, name)
    if undone:
        log.warning("an unfinished batch was rolled back in %s", ", ".join(undone))
    return RollBack(undone, restored)


def _open_for_fence(tables: OpenTables, name: str) -> DeltaTable | None:
    """Open a table, and pass its mark to the writer's fence; return None if there is no table."""
    opened = tables.location.open(name)
    if opened is not None:
        if tables.fence is not None:
            tables.fence.remember_start(name, opened)
        if name in SYSTEM_TABLES:  # each batch opens most of these, and few of the others
            tables.keep_open(name, opened)
    return opened


class _RolledBack(NamedTuple):
    """What was done to one table."""

    is_undone: bool = False
    version: int | None = None
    """The version with the content of the epoch's, if that is a later one."""


def _roll_back_table(tables: OpenTables, table: str, epoch_version: int | None) -> _RolledBack:
    """Take a table back to the version of the epoch if an unfinished batch has changed it."""
    opened = _open_for_fence(tables, table)
    if opened is None or (epoch_version is None and not _is_made_here(tables, table)):
        return _RolledBack()
    version = epoch_version or 0
    found = compare_table(tables.location, table, version, opened)
    if found.state.is_difference:
        raise found.error()
    if found.state is TableState.RESTORED:
        return _RolledBack(version=int(opened.version()))
    if found.state is not TableState.UNFINISHED:
        return _RolledBack()
    return _RolledBack(is_undone=True, version=restore(tables, table, opened, version))


def _is_made_here(tables: OpenTables, table: str) -> bool:
    """Return whether a table is the aggregator's, although no epoch names it."""
    if table in SYSTEM_TABLES:
        return True
    actions = read_commit(tables.location, table, 0)
    return actions is not None and is_of_a_writer(actions)


def require_tables(location: WarehouseLocation) -> dict[str, str]:
    """Check, before a writer creates missing tables, that the tables are those of the newest epoch.

    Returns:
        The tables of spaces that are not, with what was found: the writer sets them aside.

    Raises:
        ForeignChangeError: Somebody else has changed one of the aggregator's own tables.
        UnsupportedError: Somebody else has enabled a feature of Delta there that the aggregator does not write.
        WarehouseError: Such a table is lost, or is older than the epoch: its folder was restored from a copy.
    """
    differences = list(table_differences(location, newest_row(location)))
    for one in differences:
        if one.stops_job:
            raise one.error()
    aside = tables_of_spaces(location, differences)
    for table, text in aside.items():
        log.error("%s is set aside: %s", table, text)
    return aside

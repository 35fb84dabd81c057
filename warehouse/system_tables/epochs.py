"""`_epochs`: one row per batch. It is appended last, commits the batch, and names the version of every table.

The batch's other tables are written before it, each by commits of its own. What a killed writer has committed after its
last epoch is rolled back when the next writer starts (`roll_back`): each table is restored to the version that the
epoch names, so a batch takes effect as a whole or not at all. For a consistent snapshot, read the versions that the
newest row names; the newest versions of the tables may contain an unfinished batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import CommitProperties, DeltaTable

from schemas.errors import WarehouseError
from schemas.tables import SYSTEM_TABLES
from warehouse.delta.commits import OpenTables
from warehouse.delta.foreign_changes import are_equal, foreign_change_error, foreign_commits
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import EPOCHS as TABLE
from warehouse.delta.newest_epoch import NEVER_ROLLED_BACK, RID
from warehouse.delta.read import newest, rows_of
from warehouse.delta.write import USER_METADATA
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)

VCLOCK = "_vclock"

KEPT_TABLES = frozenset({"_cluster", "_applier_map"})
"""Tables that no epoch names, and whose rows nothing else has."""

LOST_ADVICE = (
    "put the folder back from a copy of the same time (docs/corrections.md, Backups); without one, begin again with an "
    "empty warehouse and a new checkpoint"
)


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


def roll_back(warehouse: Warehouse, epoch: Epoch | None) -> list[str]:
    """Restore the tables that an unfinished batch has changed, and return their names.

    Raises:
        ForeignChangeError: Somebody else has changed a table since the last epoch.
        WarehouseError: A table cannot be restored.
        LockError: Another writer commits at the same time.
    """
    tables = warehouse.open_tables
    versions = {} if epoch is None else epoch.versions
    names = [name for name in warehouse.tables() if name not in NEVER_ROLLED_BACK | {RID}]
    undone = [name for name in names if _roll_back_table(tables, name, versions.get(name, 0))]
    for name in NEVER_ROLLED_BACK - {TABLE}:
        _open_for_fence(tables, name)
    if undone:
        log.warning("an unfinished batch was rolled back in %s", ", ".join(undone))
    return undone


def _is_restoration(commit: Mapping[str, Any], epoch_version: int) -> bool:
    """Whether a commit was made by an earlier start, and restored version `epoch_version`."""
    restored = commit.get("operationParameters", {}).get("version")
    return (
        commit.get("operation") == "RESTORE"
        and commit.get("userMetadata") == USER_METADATA
        and str(restored) == str(epoch_version)
    )


def _open_for_fence(tables: OpenTables, name: str) -> DeltaTable | None:
    """Open a table, and pass its mark to the writer's fence; return None if there is no table."""
    opened = tables.location.open(name)
    if opened is not None:
        if tables.fence is not None:
            tables.fence.remember_start(name, opened)
        if name in SYSTEM_TABLES:  # each batch opens most of these, and few of the others
            tables.keep_open(name, opened)
    return opened


def _roll_back_table(tables: OpenTables, table: str, epoch_version: int) -> bool:
    """Restore a table to version `epoch_version` if an unfinished batch has changed it; return whether it had."""
    opened = _open_for_fence(tables, table)
    if opened is None or not _has_unfinished_batch(tables, opened, table, epoch_version):
        return False
    seen = int(opened.version())

    def restore(current: DeltaTable, properties: CommitProperties) -> None:
        if int(current.version()) != seen:
            raise WarehouseError(
                "somebody commits to it while it is rolled back", table=table, advice="start again"
            )
        # delta-rs refuses the restoration if another commit comes first.
        current.restore(epoch_version, commit_properties=properties)

    tables.forget(table)
    try:
        tables.change(table, restore)
    except WarehouseError as error:
        raise WarehouseError(
            f"version {epoch_version} cannot be restored: {error.reason}", table=table
        ) from error
    tables.forget(table)
    return True


def _has_unfinished_batch(tables: OpenTables, opened: DeltaTable, table: str, epoch_version: int) -> bool:
    """Whether the aggregator has committed to a table after the version that the last epoch names.

    Raises:
        ForeignChangeError: Somebody else has changed the table since that version.
    """
    now = int(opened.version())
    if now <= epoch_version:
        return False
    history = [one for one in opened.history(now - epoch_version) if one["version"] > epoch_version]
    if _is_restoration(history[0], epoch_version):
        return False
    own = [one for one in history if one.get("userMetadata") == USER_METADATA]
    if len(own) == len(history):
        return True
    foreign = foreign_commits(tables.location, table, epoch_version, now)
    harmful = next((commit for commit in foreign if not commit.effect.is_harmless), None)
    if harmful is None:
        return bool(own)
    if are_equal(tables.location, table, epoch_version, now):
        return False
    raise foreign_change_error(table, harmful, epoch_version)


def require_tables(location: WarehouseLocation, epoch: Epoch | None) -> None:
    """Check, before a writer creates missing tables, that the tables of the last epoch are there.

    Raises:
        WarehouseError: A table is lost, or is older than the last epoch: its folder was restored from a copy.
    """
    names = set(location.tables())
    if epoch is None:
        _require_first_batch(location, names)
        return
    lost = sorted((epoch.versions.keys() | KEPT_TABLES) - names)
    if lost:
        raise WarehouseError(
            f"epoch {epoch.epoch} has tables that are not there any more: {', '.join(lost)}",
            warehouse=location.root,
            advice=LOST_ADVICE,
        )
    for name, version in sorted(epoch.versions.items()):
        # A missing version may only be lost at the end of the log: older commits are removed in time.
        opened = None if location.may_have(name, version) and version == 0 else location.open(name)
        if opened is not None and int(opened.version()) < version:
            raise WarehouseError(
                f"the table is at version {opened.version()}, epoch {epoch.epoch} has version {version}: "
                "its folder is an older one",
                table=name,
                advice=LOST_ADVICE,
            )


def _require_first_batch(location: WarehouseLocation, names: set[str]) -> None:
    """Raise WarehouseError if `_epochs` has no row although batches were committed."""
    opened = location.open(VCLOCK) if VCLOCK in names else None
    row = None if opened is None else newest(opened, "epoch")
    if row is not None and int(row["epoch"] or 0) > 0:
        raise WarehouseError(
            f"the table {TABLE} is lost: it has no epoch, but {VCLOCK} has rows of epoch {row['epoch']}",
            warehouse=location.root,
            advice=LOST_ADVICE,
        )

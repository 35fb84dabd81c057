"""The newest epoch of a warehouse, read without Spark.

An epoch names a consistent snapshot: one version of each table, all of them after the same batch. Not here: how an
epoch is written (`warehouse.system_tables.epochs`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import WarehouseError
from schemas.names import is_space_table
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.read import newest

EPOCHS = "_epochs"
RID = "_rid"

NEVER_ROLLED_BACK = frozenset({"_epochs", "_cluster", "_applier_map", "_requests", "_validations"})
"""Tables whose versions no epoch names. They need no rollback: assigned ids never change, a repeated batch writes the
same rows again, or no batch writes them."""

NO_EPOCH = -1
"""Represents the newest epoch of a warehouse that has no epoch yet."""


@dataclass(frozen=True)
class TableVersions:
    """The version of each table in one epoch."""

    epoch: int = NO_EPOCH
    """The number of the newest epoch, `NO_EPOCH` if there is none."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """Table to Delta version, with `_epochs` and without `_rid`."""


def no_batch_error(root: str) -> WarehouseError:
    """Return the error that the warehouse in the folder `root` has no committed batch yet."""
    return WarehouseError(
        "no batch is done yet", warehouse=root, advice="start `aggregator run`, or wait for its first batch"
    )


def no_tables_error(root: str) -> WarehouseError:
    """Return the error that the folder `root` has no tables yet."""
    return WarehouseError("there are no tables yet", warehouse=root, advice="start `aggregator run` first")


def newest_row(location: WarehouseLocation) -> dict[str, Any] | None:
    """Return the newest row of `_epochs`; None if no batch has been committed yet."""
    table = location.open(EPOCHS)
    return None if table is None else newest(table, "epoch")


def newest_epoch_row(location: WarehouseLocation) -> dict[str, Any]:
    """Return the newest row of `_epochs`; raise WarehouseError if no batch has been committed yet."""
    row = newest_row(location)
    if row is None:
        raise no_batch_error(location.root)
    return row


def last_epoch(location: WarehouseLocation) -> int:
    """Return the number of the newest epoch, `NO_EPOCH` if there is none."""
    row = newest_row(location)
    return NO_EPOCH if row is None else int(row["epoch"])


def newest_versions(location: WarehouseLocation) -> TableVersions:
    """Return the version of each table in the consistent snapshot of the newest epoch.

    An epoch names the tables that batches have written. Tables of `NEVER_ROLLED_BACK`, which no epoch names, have their
    newest version. System tables that no batch has written yet have version 0. A space's table that the epoch does not
    name is left out: an unfinished batch made it, or it is not the aggregator's.
    """
    epochs = location.open(EPOCHS)
    if epochs is None:
        return TableVersions()
    row = newest(epochs, "epoch") or {"epoch": NO_EPOCH, "versions": []}
    named = {str(table): int(version) for table, version in row["versions"]}
    versions = {EPOCHS: epochs.version()}
    for name in location.tables():
        if name in named:
            versions[name] = named[name]
        elif name in NEVER_ROLLED_BACK - {EPOCHS}:
            table = location.open(name)
            versions[name] = 0 if table is None else table.version()
        elif not is_space_table(name) and name not in (EPOCHS, RID):
            versions[name] = 0
    return TableVersions(int(row["epoch"]), versions)


def named_tables(location: WarehouseLocation) -> set[str]:
    """Return the tables that the newest epoch names; some may not exist."""
    row = newest_row(location)
    return set() if row is None else {str(table) for table, _ in row["versions"]}

"""The cut of a warehouse that its newest epoch names, read without Spark.

A cut names a version of each table, so that all of them together are what one batch left. Not here: how an epoch is
written (`warehouse.epochs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.names import is_space_table
from warehouse.place import Place
from warehouse.read import newest

EPOCHS = "_epochs"
RID = "_rid"

NEVER_ROLLED_BACK = frozenset({"_epochs", "_cluster", "_applier_map", "_requests", "_validations"})
"""An id once given stays given, rows of these are the same when a batch is repeated, or no batch writes them: no epoch
names them."""

BEFORE_THE_FIRST = -1
"""Stands for the epoch of a warehouse that has none."""


@dataclass(frozen=True)
class TableVersions:
    """One version of each table.

    Parameters
    ----------
    epoch : int
        The newest one, `BEFORE_THE_FIRST` where there is none.
    versions : mapping of str to int
        Table to Delta version, `_epochs` included, `_rid` not.

    """

    epoch: int = BEFORE_THE_FIRST
    versions: Mapping[str, int] = field(default_factory=dict)


def last_epoch(place: Place) -> int:
    """Return the number of the newest epoch, `BEFORE_THE_FIRST` where there is none."""
    table = place.open(EPOCHS)
    row = None if table is None else newest(table, "epoch")
    return BEFORE_THE_FIRST if row is None else int(row["epoch"])


def newest_versions(place: Place) -> TableVersions:
    """Return the newest cut.

    Tables that no epoch ever names (`NEVER_ROLLED_BACK`) are in it as they are now; those that every warehouse has and
    no batch has written yet, as they were made. A table of a space that no epoch names belongs to a batch in the
    making, or is not the aggregator's: it is in no cut.
    """
    epochs = place.open(EPOCHS)
    if epochs is None:
        return TableVersions()
    row = newest(epochs, "epoch") or {"epoch": BEFORE_THE_FIRST, "versions": []}
    named = {str(table): int(version) for table, version in row["versions"]}
    versions = {EPOCHS: epochs.version()}
    for name in place.tables():
        if name in named:
            versions[name] = named[name]
        elif name in NEVER_ROLLED_BACK - {EPOCHS}:
            table = place.open(name)
            versions[name] = 0 if table is None else table.version()
        elif not is_space_table(name) and name not in (EPOCHS, RID):
            versions[name] = 0
    return TableVersions(int(row["epoch"]), versions)


def named_tables(place: Place) -> set[str]:
    """Return the tables that the newest epoch names, whether they are there or not."""
    epochs = place.open(EPOCHS)
    row = None if epochs is None else newest(epochs, "epoch")
    return set() if row is None else {str(table) for table, _ in row["versions"]}

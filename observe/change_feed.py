"""The change feed of a space's table: the winning rows that each epoch inserted, changed or deleted.

Columns are named as in Delta's Change Data Feed (`_change_type`, `_commit_version`), which these tables do not have: a
batch rewrites the whole file of a changed row, so Delta's feed of such commits would have all rows of that file. Here
only files that differ between two versions are compared, and unchanged rows are left out. Reading goes by key range, so
memory is bounded; without Spark and without a lock. `jobs.changes` prints the feed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import ConfigurationError, WarehouseError
from warehouse.kept_epochs import kept
from warehouse.newest_epoch import EPOCHS
from warehouse.place import Place
from warehouse.read import rows_of
from warehouse.version_files import RANGE_ROWS, files_at, ranges_of

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = "insert", "update_preimage", "update_postimage", "delete"

_KEY = "_key"
_VERSION = ("_key", "_replicaset_id", "_global_id", "_lsn", "_tuple")
"""Two rows with equal values in these columns are the same version of a key; a masked table has no `_tuple`."""


@dataclass(frozen=True)
class EpochChanges:
    """Rows of one table that one epoch changed.

    Parameters
    ----------
    epoch : int
    rows : pyarrow.Table
        The table's columns, `_change_type` and `_commit_version`. The two images of an update are adjacent.

    """

    epoch: int
    rows: pa.Table


def table_versions(
    place: Place, table: str, after: int | None, upto: int | None
) -> list[tuple[int, int | None]]:
    """Return the epochs that changed a table, with its versions; the first entry is the epoch `after`.

    Parameters
    ----------
    place : Place
    table : str
    after : int or None
        The last epoch whose changes are known; None: all available epochs, starting with the empty table.
    upto : int or None
        The last epoch; None: the newest.

    Raises
    ------
    ConfigurationError
        The epoch `after` is no longer available, or there is no epoch.

    """
    epochs = place.open(EPOCHS)
    if epochs is None:
        raise ConfigurationError("no batch is done yet", warehouse=place.root)
    _, first = kept(place)
    if after is None and first > 0:
        raise ConfigurationError(
            f"epochs before {first} are no longer available: a feed from the beginning would lack their rows",
            advice=f"read the table as of epoch {first} (aggregator views --epoch {first}), then --after {first}",
        )
    if after is not None and after < first:
        raise ConfigurationError(
            f"epoch {after} is no longer available", advice=f"begin with the table as of epoch {first}"
        )
    known = {
        int(row["epoch"]): dict(row["versions"]).get(table) for row in rows_of(epochs, ["epoch", "versions"])
    }
    if after is not None and after not in known:
        raise ConfigurationError(
            f"there is no epoch {after}", advice="`aggregator status` shows the newest one"
        )
    last = max(known) if upto is None else upto
    start = -1 if after is None else after
    found: list[tuple[int, int | None]] = [(start, known.get(start))]
    found += [(epoch, known[epoch]) for epoch in sorted(known) if start < epoch <= last]
    return found


def changes(
    place: Place, table: str, after: int | None = None, upto: int | None = None, range_rows: int = RANGE_ROWS
) -> Iterator[EpochChanges]:
    """Yield the changes of a table by epochs, in the order of epochs and, within one, of canonical keys.

    Parameters
    ----------
    place : Place
    table : str
        Of a space.
    after, upto : int or None
        See `table_versions`.
    range_rows : int
        About this many rows are compared at a time; an epoch may have several results.

    Raises
    ------
    ConfigurationError
        See `table_versions`.
    WarehouseError
        The table has never existed, or a version of it cannot be read.

    """
    versions = table_versions(place, table, after, upto)
    if not place.has(table):
        raise WarehouseError("there is no such table", table=table, warehouse=place.root)
    held = versions[0][1]
    old = frozenset[str]() if held is None else files_at(place, table, held)
    for epoch, version in versions[1:]:
        if version == held:
            continue
        new = frozenset[str]() if version is None else files_at(place, table, version)
        with ranges_of(place, table, old, new, range_rows=range_rows) as ranges:
            for rows in (compared(*one) for one in ranges):
                if rows.num_rows:
                    yield EpochChanges(epoch, _marked(rows, version))
        held, old = version, new


def compared(old: pa.Table | None, new: pa.Table | None) -> pa.Table:
    """Return the rows that are in one of two tables only, or differ, each with its `_change_type`."""
    before, after = _only_in(old, new), _only_in(new, old)
    had = set() if before is None else set(before[_KEY].to_pylist())
    has = set() if after is None else set(after[_KEY].to_pylist())
    parts = [
        rows.append_column("_change_type", _types(rows, others, changed, alone)).append_column(
            "_image", pa.array([image] * rows.num_rows, pa.int8())
        )
        for rows, others, changed, alone, image in (
            (before, has, UPDATE_BEFORE, DELETE, 0),
            (after, had, UPDATE_AFTER, INSERT, 1),
        )
        if rows is not None
    ]
    if not parts:
        return pa.table({})
    whole = pa.concat_tables(parts, promote_options="default")
    return whole.sort_by([(_KEY, "ascending"), ("_image", "ascending")]).drop_columns(["_image"])


def _only_in(rows: pa.Table | None, others: pa.Table | None) -> pa.Table | None:
    """Return the rows of one table that another table does not have in the same version."""
    if rows is None or others is None or not (rows.num_rows and others.num_rows):
        return rows
    names = [name for name in _VERSION if name in rows.column_names and name in others.column_names]
    numbered = rows.select(names).append_column("_number", pa.array(range(rows.num_rows), pa.int64()))
    # A join never matches NULL, and rows of a snapshot have no lsn.
    filled = [_filled(one, names) for one in (numbered, others.select(names))]
    left = filled[0].join(filled[1], names, join_type="left anti")
    return rows.take(left["_number"].sort())


def _filled(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    for name in names:
        column = rows[name]
        least: bytes | int = b"" if pa.types.is_binary(column.type) else -(1 << 31)
        rows = rows.set_column(
            rows.column_names.index(name), name, pc.fill_null(column, pa.scalar(least, column.type))
        )
    return rows


def _types(rows: pa.Table, others: Collection[bytes], changed: str, alone: str) -> pa.Array:
    return pa.array([changed if key in others else alone for key in rows[_KEY].to_pylist()], pa.string())


def _marked(rows: pa.Table, version: int | None) -> pa.Table:
    return rows.append_column("_commit_version", pa.array([version] * rows.num_rows, pa.int64()))

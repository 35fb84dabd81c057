"""The change feed of a space's table: the winning rows that each epoch inserted, changed or deleted.

Columns are named as in Delta's Change Data Feed (`_change_type`, `_commit_version`). The tables do not use Delta's
feed: a batch rewrites the file of a changed row, so that feed would have all rows of the file. Instead, the files that
differ between two versions are compared by key range, so memory is bounded. The module uses neither Spark nor a lock.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import ConfigurationError, WarehouseError
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.delta.read import rows_of
from warehouse.delta.table_files import TableFile
from warehouse.delta.version_files import RANGE_ROWS, files_at, rows_by_key_range
from warehouse.system_tables.maintenance import retention_horizon

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = "insert", "update_preimage", "update_postimage", "delete"

_KEY = "_key"
_COMPARED_COLUMNS = ("_key", "_replicaset_id", "_global_id", "_lsn", "_tuple")
"""Two rows with equal values in these columns are the same version; a column that a table lacks is ignored."""


@dataclass(frozen=True)
class EpochChanges:
    """Rows of one table that one epoch changed."""

    epoch: int
    rows: pa.Table
    """The columns are those of the table, `_change_type` and `_commit_version`. The row before an update is directly
    followed by the row after it."""


def versions_by_feed_epoch(
    location: WarehouseLocation, table: str, after: int | None, upto: int | None
) -> list[tuple[int, int | None]]:
    """Return (epoch, the table's Delta version in this epoch) for each epoch of a feed, in order.

    The first pair is that of `after`, with which the feed's first epoch is compared, or (-1, None) if
    `after` is None. The version is None if the table does not exist in the epoch.

    Args:
        after: The feed begins with the epoch after this one; None: with the first epoch, which is compared with an
            empty table.
        upto: The last epoch of the feed; None: the newest epoch.

    Raises:
        ConfigurationError: The epoch `after` is no longer available, or there is no epoch.
    """
    epochs = location.open(EPOCHS)
    if epochs is None:
        raise ConfigurationError("no batch is done yet", warehouse=location.root)
    _, first = retention_horizon(location)
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
    versions: list[tuple[int, int | None]] = [(start, known.get(start))]
    versions += [(epoch, known[epoch]) for epoch in sorted(known) if start < epoch <= last]
    return versions


def changes(
    location: WarehouseLocation,
    table: str,
    after: int | None = None,
    upto: int | None = None,
    range_rows: int = RANGE_ROWS,
) -> Iterator[EpochChanges]:
    """Yield the changes of a table by epochs, in the order of epochs and, within one, of canonical keys.

    Args:
        range_rows: Approximate number of rows that are compared at a time; an epoch may have several results.

    Raises:
        ConfigurationError: The epoch `after` is no longer available, or there is no epoch.
        WarehouseError: The table has never existed, or a version of it cannot be read.
    """
    versions = versions_by_feed_epoch(location, table, after, upto)
    if not location.has(table):
        raise WarehouseError("there is no such table", table=table, warehouse=location.root)
    previous = versions[0][1]
    old = frozenset[TableFile]() if previous is None else files_at(location, table, previous)
    for epoch, version in versions[1:]:
        if version == previous:
            continue
        new = frozenset[TableFile]() if version is None else files_at(location, table, version)
        with rows_by_key_range(location, table, old, new, range_rows=range_rows) as ranges:
            for rows in (diff_rows(*old_and_new) for old_and_new in ranges):
                if rows.num_rows:
                    yield EpochChanges(epoch, _with_commit_version(rows, version))
        previous, old = version, new


def diff_rows(old: pa.Table | None, new: pa.Table | None) -> pa.Table:
    """Return the differences between the old and the new rows of a table, each with its `_change_type`."""
    removed_or_old, added_or_new = _rows_missing_in(old, new), _rows_missing_in(new, old)
    keys_before = set() if removed_or_old is None else set(removed_or_old[_KEY].to_pylist())
    keys_after = set() if added_or_new is None else set(added_or_new[_KEY].to_pylist())
    changed_rows = [
        rows.append_column(
            "_change_type", _change_types(rows, other_keys, type_in_both, type_in_one)
        ).append_column("_image", pa.array([image] * rows.num_rows, pa.int8()))
        for rows, other_keys, type_in_both, type_in_one, image in (
            (removed_or_old, keys_after, UPDATE_BEFORE, DELETE, 0),
            (added_or_new, keys_before, UPDATE_AFTER, INSERT, 1),
        )
        if rows is not None
    ]
    if not changed_rows:
        return pa.table({})
    all_rows = pa.concat_tables(changed_rows, promote_options="default")
    return all_rows.sort_by([(_KEY, "ascending"), ("_image", "ascending")]).drop_columns(["_image"])


def _rows_missing_in(rows: pa.Table | None, other_rows: pa.Table | None) -> pa.Table | None:
    """Return those of some rows that are not among `other_rows`, compared by `_COMPARED_COLUMNS`; None: no rows."""
    if rows is None or other_rows is None or not (rows.num_rows and other_rows.num_rows):
        return rows
    names = [
        name for name in _COMPARED_COLUMNS if name in rows.column_names and name in other_rows.column_names
    ]
    left, right = _without_nulls(rows.select(names), names), _without_nulls(other_rows.select(names), names)
    if "_tuple" not in names:
        left, right = (
            one.append_column("_content", _tuple_substitutes(all_rows, other))
            for one, all_rows, other in ((left, rows, other_rows), (right, other_rows, rows))
        )
        names.append("_content")
    left = left.append_column("_number", pa.array(range(rows.num_rows), pa.int64()))
    return rows.take(left.join(right, names, join_type="left anti")["_number"].sort())


def _tuple_substitutes(rows: pa.Table, other_rows: pa.Table) -> pa.Array:
    """Return a text for each row of a masked table, which is compared in place of the missing `_tuple`.

    If the row's instance and lsn identify its tuple, the text is empty. Otherwise (the tuple is from a policy or from a
    snapshot) the text has the values of the row's visible columns. If the two tables have different columns, all texts
    are empty: then the format or the mask has changed.
    """
    columns = [name for name in rows.column_names if not name.startswith("_")]
    if set(columns) != {name for name in other_rows.column_names if not name.startswith("_")}:
        columns = []
    is_made = pc.less(rows["_replicaset_id"], 0)
    is_unnamed = pc.fill_null(pc.or_(is_made, pc.is_null(rows["_global_id"])), True).to_pylist()
    found = [""] * rows.num_rows
    indices = [index for index, unnamed in enumerate(is_unnamed) if unnamed and columns]
    shown = rows.select(sorted(columns)).take(pa.array(indices, pa.int64())).to_pylist()
    for index, row in zip(indices, shown, strict=True):
        found[index] = repr(row)
    return pa.array(found, pa.string())


def _without_nulls(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Replace NULLs in some columns by a value that no row has, since a join never matches NULLs.

    Rows of snapshots have NULL as lsn.
    """
    for name in names:
        column = rows[name]
        least: bytes | int = b"" if pa.types.is_binary(column.type) else -(1 << 31)
        rows = rows.set_column(
            rows.column_names.index(name), name, pc.fill_null(column, pa.scalar(least, column.type))
        )
    return rows


def _change_types(
    rows: pa.Table, other_keys: Collection[bytes], type_in_both: str, type_in_one: str
) -> pa.Array:
    """Return the change type of each row: `type_in_both` if its key is in `other_keys`, else `type_in_one`."""
    return pa.array(
        [type_in_both if key in other_keys else type_in_one for key in rows[_KEY].to_pylist()], pa.string()
    )


def _with_commit_version(rows: pa.Table, version: int | None) -> pa.Table:
    return rows.append_column("_commit_version", pa.array([version] * rows.num_rows, pa.int64()))

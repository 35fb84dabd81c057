"""Reads the rows in which two versions of a table may differ, one range of keys after another.

A file of a table never changes; to change a row, its file is replaced by another file. So all changed rows are in files
that only one of the two versions has. Reads local and remote files, without Spark. Not here: the comparison of the rows
(`pipeline.replication_out.changes`, `observe.change_feed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from schemas.errors import WarehouseError
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import FileKeys, TableFile, active_files, open_file

RANGE_ROWS = 500_000
"""About how many rows are compared at a time."""

_KEY = "_key"


def files_at(location: WarehouseLocation, table: str, version: int) -> frozenset[TableFile]:
    """Return the files of a table at a version.

    Raises:
        WarehouseError: The version cannot be read any more.
    """
    try:
        found = location.open(table, version)
    except DeltaError as error:
        raise WarehouseError(f"version {version} cannot be read: {error}", table=table) from error
    if found is None:
        raise WarehouseError("the table is not there", table=table)
    return frozenset(active_files(found))


@contextmanager
def rows_by_key_range(
    location: WarehouseLocation,
    table: str,
    before: frozenset[TableFile],
    after: frozenset[TableFile],
    columns: Sequence[str] | None = None,
    range_rows: int = RANGE_ROWS,
) -> Iterator[Iterator[tuple[pa.Table | None, pa.Table | None]]]:
    """Open the files that only one of two versions has; yield an iterator over (old rows, new rows) by range of keys.

    Old or new rows are None if no file that only that version has may have keys of the range.

    Args:
        before, after: All files of the old and the new version (`files_at`).
        columns: Columns to read, by default all; `_key` must be among them.
        range_rows: About how many rows a range has.

    Raises:
        WarehouseError: A file does not exist any more.
    """
    with ExitStack() as stack:
        try:
            old = [_KeyedFile(stack, location, table, file) for file in _in_order(before - after)]
            new = [_KeyedFile(stack, location, table, file) for file in _in_order(after - before)]
            bounds = key_ranges([file.keys for file in (*old, *new)], range_rows)
            yield (
                (_rows_in_range(old, low, high, columns), _rows_in_range(new, low, high, columns))
                for low, high in bounds
            )
        except (OSError, pa.ArrowException) as error:
            raise WarehouseError(
                f"a file of an earlier version cannot be read: {error}", table=table
            ) from error


def key_ranges(files: Sequence[FileKeys], range_rows: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield consecutive ranges [first key, end key) with about `range_rows` rows each; None: no bound on that side."""
    groups = sorted(
        (low, count)
        for file in files
        for low, count in zip(file.least, file.rows, strict=True)
        if low is not None
    )
    begin: bytes | None = None
    split = groups[0][0] if groups else None
    rows_so_far = 0
    for low, count in groups:
        if rows_so_far + count > range_rows and low != split:
            yield begin, low
            begin = split = low
            rows_so_far = 0
        rows_so_far += count
    yield begin, None


def _in_order(files: Iterable[TableFile]) -> list[TableFile]:
    return sorted(files, key=lambda file: file.id)


class _KeyedFile:
    """An open file of a table, with the key ranges of its row groups."""

    def __init__(self, stack: ExitStack, location: WarehouseLocation, table: str, file: TableFile) -> None:
        self.file = stack.enter_context(open_file(location, table, file))
        self.keys = self.file.key_ranges(_KEY)

    def row_groups(self, low: bytes | None, high: bytes | None) -> list[int]:
        """Return the numbers of the row groups that may have keys of a range."""
        found = []
        for number, (least, greatest) in enumerate(zip(self.keys.least, self.keys.greatest, strict=True)):
            is_below = low is not None and greatest is not None and greatest < low
            is_above = high is not None and least is not None and least >= high
            if not is_below and not is_above:
                found.append(number)
        return found


def _rows_in_range(
    files: Sequence[_KeyedFile], low: bytes | None, high: bytes | None, columns: Sequence[str] | None
) -> pa.Table | None:
    """Return the rows with keys in [low, high); None if no file may have one."""
    parts = []
    for file in files:
        for group in file.file.read_row_groups(columns, file.row_groups(low, high)):
            rows = group.rows
            if low is not None:
                rows = rows.filter(pc.greater_equal(rows[_KEY], pa.scalar(low, pa.binary())))
            if high is not None:
                rows = rows.filter(pc.less(rows[_KEY], pa.scalar(high, pa.binary())))
            parts.append(rows)
    return pa.concat_tables(parts, promote_options="default") if parts else None

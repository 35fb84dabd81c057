"""Reads the rows in which two versions of a table may differ, one range of keys after another.

A file of a table never changes; to change a row, its file is replaced by another file, or gets another deletion vector.
So all changed rows are in files that only one of the two versions has, or are deleted in one of them. Reads local and
remote files, without Spark. Not here: the comparison of the rows (`pipeline.replication_out.changes`,
`observe.change_feed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from numpy.typing import NDArray

from schemas.errors import WarehouseError
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import FileKeys, TableFile, active_files, open_file

RANGE_ROWS = 500_000
"""About how many rows are compared at a time."""

_KEY = "_key"


def files_at(location: WarehouseLocation, table: str, version: int) -> frozenset[TableFile]:
    """Return the files of a table at a version; raise WarehouseError if it cannot be read any more."""
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
    """Open the files that differ between two versions; yield an iterator over (old rows, new rows) by range of keys.

    Of a file that both versions have with different deletion vectors only the rows that one of them lacks are read.
    Old or new rows are None if no file that differs may have keys of the range.

    Args:
        before, after: All files of the old and the new version (`files_at`).
        columns: Columns to read, by default all; `_key` must be among them.
        range_rows: About how many rows a range has.

    Raises:
        WarehouseError: A file does not exist any more.
    """
    with ExitStack() as stack:
        try:
            old = _keyed_files(stack, location, table, before, after)
            new = _keyed_files(stack, location, table, after, before)
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


def _keyed_files(
    stack: ExitStack,
    location: WarehouseLocation,
    table: str,
    files: frozenset[TableFile],
    others: frozenset[TableFile],
) -> list[_KeyedFile]:
    """Open those files of a version that the other version does not have, or has with another deletion vector."""
    by_path = {file.path: file for file in others - files}
    return [
        _KeyedFile(stack, location, table, file, by_path.get(file.path))
        for file in sorted(files - others, key=lambda file: file.id)
    ]


class _KeyedFile:
    """An open file of a table, with the key ranges of its row groups.

    If the other version has the file too, only the rows that it lacks there count.
    """

    def __init__(
        self,
        stack: ExitStack,
        location: WarehouseLocation,
        table: str,
        file: TableFile,
        other: TableFile | None,
    ) -> None:
        self.file = stack.enter_context(open_file(location, table, file))
        self.keys = self.file.key_ranges(_KEY)
        self._numbers: NDArray[np.int64] | None = None
        if other is not None:
            with open_file(location, table, other) as opened:
                self._numbers = np.setdiff1d(
                    self.file.row_numbers(), opened.row_numbers(), assume_unique=True
                )
            self.keys = _with_rows(self.keys, self._numbers)

    def rows(
        self, low: bytes | None, high: bytes | None, columns: Sequence[str] | None
    ) -> Iterator[pa.Table]:
        """Yield the rows of the row groups that may have keys of a range."""
        for group in self.file.read_row_groups(columns, self.row_groups(low, high)):
            if self._numbers is None:
                yield group.rows
            else:
                yield group.rows.filter(pa.array(np.isin(group.numbers, self._numbers, assume_unique=True)))

    def row_groups(self, low: bytes | None, high: bytes | None) -> list[int]:
        """Return the numbers of the row groups that may have keys of a range."""
        found = []
        ranges = zip(self.keys.rows, self.keys.least, self.keys.greatest, strict=True)
        for number, (count, least, greatest) in enumerate(ranges):
            is_below = low is not None and greatest is not None and greatest < low
            is_above = high is not None and least is not None and least >= high
            if count and not is_below and not is_above:
                found.append(number)
        return found


def _with_rows(keys: FileKeys, numbers: NDArray[np.int64]) -> FileKeys:
    """Return the key ranges of a file's row groups, with the number of some of its rows in each row group."""
    ends = np.cumsum(keys.rows)
    counts = np.diff(np.searchsorted(numbers, ends), prepend=0)
    least = tuple(key if count else None for key, count in zip(keys.least, counts, strict=True))
    return FileKeys(tuple(counts.tolist()), least, keys.greatest)


def _rows_in_range(
    files: Sequence[_KeyedFile], low: bytes | None, high: bytes | None, columns: Sequence[str] | None
) -> pa.Table | None:
    parts: list[pa.Table] = []
    for file in files:
        parts += [_in_range(rows, low, high) for rows in file.rows(low, high, columns)]
    return pa.concat_tables(parts, promote_options="default") if parts else None


def _in_range(rows: pa.Table, low: bytes | None, high: bytes | None) -> pa.Table:
    if low is not None:
        rows = rows.filter(pc.greater_equal(rows[_KEY], pa.scalar(low, pa.binary())))
    return rows if high is None else rows.filter(pc.less(rows[_KEY], pa.scalar(high, pa.binary())))

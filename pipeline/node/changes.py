"""What changed in a space's table between two of its versions: tuples to put, keys to remove.

Files of a table never change, and a changed row's file is written again without it. So only files that are in one
of the versions are read; and any two versions can be compared, in either order. Rows are
compared by key range, so memory is bounded by `RANGE_ROWS`. Local and remote files, without Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from schemas.errors import WarehouseError
from warehouse.data_files import FileKeys, keys_of, opened, read_groups
from warehouse.place import Place

RANGE_ROWS = 500_000
"""About so many rows are compared at a time."""

_KEYS = ["_key", "_tuple"]
_COLUMNS = (*_KEYS, "_replicaset_id")
_SCHEMA = pa.schema([("_key", pa.binary()), ("_tuple", pa.binary()), ("_replicaset_id", pa.int32())])


@dataclass(frozen=True)
class KeyChange:
    """A key whose tuple is another one.

    Parameters
    ----------
    key : bytes
        Canonical.
    before, after : bytes or None
        Tuples; None where there is none.
    is_made : bool
        Whether a policy has made the tuple that there is now, of several versions.

    """

    key: bytes
    before: bytes | None
    after: bytes | None
    is_made: bool = False


def files_at(place: Place, table: str, version: int) -> frozenset[str]:
    """Return the files of a table at a version, relative to its folder.

    Raises
    ------
    WarehouseError
        The version is not there any more.

    """
    try:
        found = place.open(table, version)
    except DeltaError as error:
        raise WarehouseError(f"version {version} cannot be read: {error}", table=table) from error
    if found is None:
        raise WarehouseError("the table is not there", table=table)
    return frozenset(pa.table(found.get_add_actions(flatten=True))["path"].to_pylist())


def digest_of(files: frozenset[str]) -> str:
    """Return a digest of the files of a version: two versions with other files have other digests."""
    return hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()[:16]


def changes_between(
    place: Place,
    table: str,
    before: frozenset[str],
    after: frozenset[str],
    range_rows: int = RANGE_ROWS,
) -> Iterator[KeyChange]:
    """Yield the keys whose tuples differ, in the order of the canonical key.

    Parameters
    ----------
    place : Place
    table : str
    before, after : frozenset of str
        Files of two versions.
    range_rows : int
        About so many rows are compared at a time.

    Raises
    ------
    WarehouseError
        A file is gone.

    """
    with ExitStack() as stack:
        try:
            old = [_File(stack, place, table, path) for path in sorted(before - after)]
            new = [_File(stack, place, table, path) for path in sorted(after - before)]
            for low, high in key_ranges([file.keys for file in (*old, *new)], range_rows):
                yield from _compared(_rows(old, low, high), _rows(new, low, high))
        except (OSError, pa.ArrowException) as error:
            raise WarehouseError(
                f"a file of an earlier version cannot be read: {error}", table=table
            ) from error


def key_ranges(files: Sequence[FileKeys], rows: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield ranges of keys, from the first on and before the second, that have about so many rows each."""
    groups = sorted(
        (low, count)
        for file in files
        for low, count in zip(file.least, file.rows, strict=True)
        if low is not None
    )
    begin: bytes | None = None
    split = groups[0][0] if groups else None
    held = 0
    for low, count in groups:
        if held + count > rows and low != split:
            yield begin, low
            begin = split = low
            held = 0
        held += count
    yield begin, None


class _File:
    def __init__(self, stack: ExitStack, place: Place, table: str, path: str) -> None:
        self.parquet: pq.ParquetFile = stack.enter_context(opened(place, table, path))
        self.keys = keys_of(self.parquet, _COLUMNS[0])

    def groups(self, low: bytes | None, high: bytes | None) -> list[int]:
        """Return the row groups that may have keys of a range."""
        found = []
        for number, (least, greatest) in enumerate(zip(self.keys.least, self.keys.greatest, strict=True)):
            is_below = low is not None and greatest is not None and greatest < low
            is_above = high is not None and least is not None and least >= high
            if not is_below and not is_above:
                found.append(number)
        return found


def _rows(files: Sequence[_File], low: bytes | None, high: bytes | None) -> pa.Table:
    """Return the keys and tuples of a range."""
    parts = []
    for file in files:
        groups = file.groups(low, high)
        if groups:
            rows = read_groups(file.parquet, groups, _COLUMNS)
            if low is not None:
                rows = rows.filter(pc.greater_equal(rows["_key"], pa.scalar(low, pa.binary())))
            if high is not None:
                rows = rows.filter(pc.less(rows["_key"], pa.scalar(high, pa.binary())))
            parts.append(rows)
    return pa.concat_tables(parts) if parts else _SCHEMA.empty_table()


def _compared(old: pa.Table, new: pa.Table) -> Iterator[KeyChange]:
    before, after = _only_in(old, new), _only_in(new, old)
    for key in sorted(before.keys() | after.keys()):
        old_tuple, (new_tuple, replicaset) = before.get(key, _NONE)[0], after.get(key, _NONE)
        yield KeyChange(key, old_tuple, new_tuple, is_made=replicaset is not None and replicaset < 0)


_NONE = (None, None)


def _only_in(rows: pa.Table, others: pa.Table) -> dict[bytes, tuple[bytes, int | None]]:
    """Return by key the tuples, and whose they are, that are in one table and not, under that key, in another."""
    if rows.num_rows and others.num_rows:
        rows = rows.join(others.select(_KEYS), _KEYS, join_type="left anti")
    found = zip(rows["_tuple"].to_pylist(), rows["_replicaset_id"].to_pylist(), strict=True)
    return dict(zip(rows["_key"].to_pylist(), found, strict=True))

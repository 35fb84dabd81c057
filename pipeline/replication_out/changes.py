"""Finds the keys whose tuples differ between two versions of a space's table.

Any two versions can be compared, in either order. Rows are compared by ranges of keys, so `RANGE_ROWS` limits the
memory. `warehouse.delta.version_files` reads the files.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile
from warehouse.delta.version_files import RANGE_ROWS, rows_by_key_range

_KEY_AND_TUPLE = ["_key", "_tuple"]
_COLUMNS = (*_KEY_AND_TUPLE, "_replicaset_id")
_SCHEMA = pa.schema([("_key", pa.binary()), ("_tuple", pa.binary()), ("_replicaset_id", pa.int32())])


@dataclass(frozen=True)
class TupleChange:
    """A key whose tuple differs between two versions of a space's table."""

    key: bytes
    before: bytes | None
    after: bytes | None
    """The tuples in the two versions of the table; None if the table has no row of the key."""
    is_policy_made: bool = False
    """Whether a conflict policy computed the tuple `after` from several versions."""


def files_digest(files: Iterable[TableFile]) -> str:
    """Return a digest of the files of a version; versions with different files have different digests."""
    return hashlib.sha256("\n".join(sorted(file.id for file in files)).encode()).hexdigest()[:16]


def changes_between(
    location: WarehouseLocation,
    table: str,
    before: frozenset[TableFile],
    after: frozenset[TableFile],
    range_rows: int = RANGE_ROWS,
) -> Iterator[TupleChange]:
    """Yield the keys whose tuples differ between two versions of a table, in the order of the canonical key.

    Args:
        range_rows: The approximate number of rows that are compared at a time.

    Raises:
        WarehouseError: A file does not exist any more.
    """
    with rows_by_key_range(location, table, before, after, _COLUMNS, range_rows) as ranges:
        for old, new in ranges:
            yield from _changes_in_range(
                _SCHEMA.empty_table() if old is None else old, _SCHEMA.empty_table() if new is None else new
            )


def _changes_in_range(old: pa.Table, new: pa.Table) -> Iterator[TupleChange]:
    before, after = _only_in(old, new), _only_in(new, old)
    for key in sorted(before.keys() | after.keys()):
        old_tuple, (new_tuple, replicaset) = before.get(key, _NO_ROW)[0], after.get(key, _NO_ROW)
        yield TupleChange(key, old_tuple, new_tuple, is_policy_made=replicaset is not None and replicaset < 0)


_NO_ROW = (None, None)


def _only_in(rows: pa.Table, others: pa.Table) -> dict[bytes, tuple[bytes, int | None]]:
    """Return (tuple, replicaset id), by key, of those rows whose key and tuple are not both in a row of `others`."""
    if rows.num_rows and others.num_rows:
        rows = rows.join(others.select(_KEY_AND_TUPLE), _KEY_AND_TUPLE, join_type="left anti")
    found = zip(rows["_tuple"].to_pylist(), rows["_replicaset_id"].to_pylist(), strict=True)
    return dict(zip(rows["_key"].to_pylist(), found, strict=True))

"""What changed in a space's table between two of its versions: tuples to put, keys to remove.

Any two versions can be compared, in either order. Rows are compared by range of the key, so memory is bounded by
`RANGE_ROWS`. Not here: which files are read (`warehouse.version_files`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from warehouse.place import Place
from warehouse.version_files import RANGE_ROWS, ranges_of

_KEYS = ["_key", "_tuple"]
_COLUMNS = (*_KEYS, "_replicaset_id")
_SCHEMA = pa.schema([("_key", pa.binary()), ("_tuple", pa.binary()), ("_replicaset_id", pa.int32())])


@dataclass(frozen=True)
class KeyChange:
    """A key whose tuple differs between two versions.

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
    with ranges_of(place, table, before, after, _COLUMNS, range_rows) as ranges:
        for old, new in ranges:
            yield from _compared(
                _SCHEMA.empty_table() if old is None else old, _SCHEMA.empty_table() if new is None else new
            )


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

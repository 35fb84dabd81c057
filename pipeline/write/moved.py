"""Follows rows that somebody else has moved to other files between a batch's lookup and its commit.

A compaction changes no row, so what the batch has decided stays right; only the places of the rows that it deletes are
others. They are found again by their keys. New files of the batch stay as they are.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from pipeline.lookup.key_search import CopiedColumns, KeySearch
from pipeline.write.changes import TableWrite, rows_with_keys, write_changes
from pipeline.write.vector_rule import VectorRule
from udfs.buffers import as_array
from warehouse.delta.deletion_vectors import RowNumbers
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile, open_file


def relocated(
    location: WarehouseLocation,
    write: TableWrite,
    files: Iterable[TableFile],
    rule: VectorRule,
    search: KeySearch,
    copied: CopiedColumns,
) -> TableWrite:
    """Return a write with the same effect on the files that a table has now; its rows are the same."""
    live = set(files)
    keys = [_keys(location, write.table, file, None) for file in write.removed if file not in live]
    keys += [
        _keys(location, write.table, file, rows) for file, rows in write.deleted.items() if file not in live
    ]
    known = [file for file in (*write.removed, *write.deleted) if file in live]
    moved = rows_with_keys(location, write.table, live - set(known), pa.concat_arrays(keys), search, copied)
    again = write_changes(location, write.table, None, moved, rule)
    return TableWrite(
        write.table,
        added=[*write.added, *again.added],
        removed=[*(file for file in write.removed if file in live), *again.removed],
        deleted={**{f: rows for f, rows in write.deleted.items() if f in live}, **again.deleted},
        new_rows=write.new_rows,
    )


def _keys(location: WarehouseLocation, table: str, file: TableFile, rows: RowNumbers | None) -> pa.Array:
    """Return the keys of some rows of a file, by default of all its live rows; the table may not have it any more."""
    with open_file(location, table, file) as opened:
        keys = as_array(opened.read(["_key"])["_key"])
        return keys if rows is None else keys.filter(pa.array(np.isin(opened.row_numbers(), rows)))

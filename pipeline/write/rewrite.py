"""Reads files without removed rows, and writes files of rows in key order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.encode.columns import whole_variants
from pipeline.write.lookup import FileCache, WantedKeys
from udfs.buffers import as_array
from warehouse.commits import TableFile
from warehouse.data_files import DataFile, opened, write_file
from warehouse.place import Place

FILE_ROWS = 2_000_000
"""The maximum number of rows in a file."""

FILE_BYTES = 128 * 1024 * 1024
"""The approximate maximum size of a file's rows in memory."""


def remaining_rows(place: Place, table: str, file: TableFile, removed: NDArray[np.int64]) -> pa.Table:
    """Return the rows of a file without the removed ones.

    Parameters
    ----------
    place : Place
    table : str
    file : TableFile
    removed : int64[n]
        Indices of the removed rows in the file.

    """
    with opened(place, table, file.path) as parquet:
        rows = parquet.read()
    keep = np.ones(rows.num_rows, np.bool_)
    keep[removed] = False
    return rows.filter(pa.array(keep))


def rows_with_keys(
    place: Place, table: str, files: Iterable[TableFile], keys: pa.Array, cache: FileCache
) -> Mapping[TableFile, NDArray[np.int64]]:
    """Return the indices of the rows with these keys, for each file that has any."""
    wanted = WantedKeys.of(keys)
    found: dict[TableFile, NDArray[np.int64]] = {}
    for file in files:
        with opened(place, table, file.path) as parquet:
            known = cache.of(parquet, table, file.path, "_key")
            ranges = zip(known.least, known.greatest, strict=True)
            if not any(wanted.may_be_in(least, greatest) for least, greatest in ranges):
                continue
            column = parquet.read(columns=["_key"])["_key"].combine_chunks()
        rows = np.flatnonzero(wanted.find(as_array(column)) >= 0)
        if len(rows):
            found[file] = rows.astype(np.int64)
    return found


def write_rows(place: Place, table: str, rows: pa.Table, *, is_new_data: bool = True) -> list[DataFile]:
    """Write rows of a space's table in key order, as one or more files."""
    if not rows.num_rows:
        return []
    whole = _with_whole_variants(rows).combine_chunks()
    ordered = whole.take(pc.sort_indices(whole, sort_keys=[("_key", "ascending")]))
    count = max(1, -(-rows.num_rows // FILE_ROWS), -(-rows.nbytes // FILE_BYTES))
    size = -(-rows.num_rows // count)
    return [
        write_file(place, table, ordered.slice(begin, size), is_new_data=is_new_data)
        for begin in range(0, rows.num_rows, size)
    ]


def _with_whole_variants(rows: pa.Table) -> pa.Table:
    """Return rows in which the parts of null variants are empty, not null.

    Joining rows of a file without a variant column with rows that have it makes such nulls.
    """
    for number, field in enumerate(rows.schema):
        if pa.types.is_struct(field.type) and rows[number].null_count:
            rows = rows.set_column(number, field.name, whole_variants(rows[number].combine_chunks()))
    return rows

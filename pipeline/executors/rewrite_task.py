"""The third stage of a distributed batch: touched files of tables → new files without the rows that go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.encode.columns import TableEncoding
from pipeline.write.rewrite import FILE_BYTES, remaining_rows, write_rows
from pipeline.write.table_change import encoded_again
from warehouse.commits import TableFile
from warehouse.data_files import DataFile
from warehouse.place import Place

TASK_BYTES = 32 << 20
"""A task rewrites files of so many bytes, or one larger file."""


@dataclass(frozen=True)
class RewriteWork:
    """What one task rewrites: files of one table, which become one file or more.

    Parameters
    ----------
    table : str
    files : sequence of (TableFile, uint8[m])
        With bits of the rows that go (`numpy.packbits`).
    encoding : TableEncoding or None
        Where the columns of the table are made again.

    """

    table: str
    files: Sequence[tuple[TableFile, NDArray[np.uint8]]]
    encoding: TableEncoding | None = None


def rewrite_tasks(
    removed: Mapping[str, Mapping[TableFile, NDArray[np.uint8]]], again: Mapping[str, TableEncoding]
) -> Iterator[RewriteWork]:
    """Yield the tasks that rewrite touched files.

    Parameters
    ----------
    removed : mapping of str to mapping of TableFile to uint8[m]
        By table: the touched files.
    again : mapping of str to TableEncoding
        Tables whose columns are made again.

    """
    for table, files in removed.items():
        own: list[tuple[TableFile, NDArray[np.uint8]]] = []
        size = 0
        for file, bits in files.items():
            if own and size + file.size > TASK_BYTES:
                yield RewriteWork(table, own, again.get(table))
                own, size = [], 0
            own.append((file, bits))
            size += file.size
        if own:
            yield RewriteWork(table, own, again.get(table))


def run_rewrite_task(place: Place, work: RewriteWork) -> list[DataFile]:
    """Write the rows of some files that stay, and return the new files.

    Files are joined as long as their rows are not more than `FILE_BYTES` in memory: how much a file compresses to says
    nothing of that.
    """
    added: list[DataFile] = []
    parts: list[pa.Table] = []
    size = 0
    for file, bits in work.files:
        removed = np.flatnonzero(np.unpackbits(bits)).astype(np.int64)
        rest = remaining_rows(place, work.table, file, removed)
        if parts and size + rest.nbytes > FILE_BYTES:
            added += write_rows(place, work.table, pa.concat_tables(parts, promote_options="default"))
            parts, size = [], 0
        parts.append(rest if work.encoding is None else encoded_again(rest, work.encoding))
        size += rest.nbytes
    return added + write_rows(place, work.table, pa.concat_tables(parts, promote_options="default"))

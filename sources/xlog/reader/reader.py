"""Reads log files: their header, their rows as Arrow batches, and their written end.

`read_rows` is what a Spark task runs; the driver plans with `end_of_whole_blocks` and `block_starts`
(`block_positions`), from block headers alone. All of Tarantool's files are read in the same way: `.xlog`, `.snap`,
`.vylog`, `.run`, `.index`, and those with `.inprogress` at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.fs

from schemas.errors import XlogError, XlogMetaError
from sources.xlog.format.damage import Mode, Skipped, raise_or_count
from sources.xlog.format.decoder import DEFAULT_LIMITS, Batch, BlockGroup, Decoder, Decoding, Limits
from sources.xlog.format.headers import Headers, headers_of
from sources.xlog.format.kernels.row import RowColumns
from sources.xlog.format.meta import DAMAGED_META, Meta
from sources.xlog.format.rows import Labels, batch_of, corrupt_batch
from sources.xlog.format.selection import Selection
from sources.xlog.reader.block_positions import (
    WholeEnd,
    block_boundary,
    block_starts,
    end_of_whole_blocks,
    ends_with_marker,
    read_meta,
)
from sources.xlog.reader.file_buffer import FileBuffer, base_name, open_fs
from sources.xlog.reader.scan import Range, Scanner

__all__ = [
    "Headers",
    "Limits",
    "Mode",
    "Selection",
    "Skipped",
    "WholeEnd",
    "block_boundary",
    "block_starts",
    "end_of_whole_blocks",
    "ends_with_marker",
    "open_fs",
    "read_headers",
    "read_meta",
    "read_rows",
]


def read_rows(
    fs: pa.fs.FileSystem,
    path: str,
    begin: int = 0,
    end: int | None = None,
    selection: Selection | None = None,
    mode: Mode = Mode.FAILFAST,
    *,
    exact: bool = False,
    closed: bool = False,
    ahead: int | None = None,
    meta: Meta | None = None,
    skipped: Skipped | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the blocks that start in `begin <= position < end`, as batches of `XROW_ARROW`.

    Parameters
    ----------
    fs, path
        The file, as `open_fs` returns them.
    begin : int
        Any byte; a position inside the text header means the first block.
    end : int, optional
        None: up to the last whole block.
    selection : Selection, optional
        The wanted rows; all by default.
    mode : Mode
        What to do about damage. In PERMISSIVE the batches have the column `_corrupt_record` too.
    exact : bool
        Whether both ends are block starts (`block_starts`): no block is searched for, and none after `end` is read.
    closed : bool
        Whether the file cannot grow: an incomplete block at its end is damage, otherwise it is being written.
    ahead : int, optional
        Unless `exact`, the block after `end` is checked if it begins before this position; by default wherever it
        begins. The reader of the next range cannot find its damage.
    meta : Meta, optional
        The file's header, if it is known.
    skipped : Skipped, optional
        Counts what DROPMALFORMED and PERMISSIVE leave out.
    limits : Limits
        Sizes of blocks, batches and the buffer.

    Raises
    ------
    XlogError
        In mode FAILFAST for any damage, with file, offset and reason.

    """
    file, permissive = base_name(path), mode is Mode.PERMISSIVE
    how, counted = Decoding(selection, mode, limits), Skipped() if skipped is None else skipped
    known, damaged = (meta, None) if meta is not None else _meta_or_damage(fs, path, begin, how, counted)
    labels = Labels(file, known.instance_uuid)

    def finish(columns: RowColumns, count: int) -> pa.RecordBatch:
        return batch_of(columns, count, labels, permissive)

    def corrupt(error: XlogError) -> pa.RecordBatch:
        return corrupt_batch(error, file)

    if damaged is not None and permissive:
        yield corrupt(damaged)
    decoder = Decoder(file, how, counted, finish, corrupt if permissive else None)
    with FileBuffer(fs, path, limits.window) as buffer:
        part = _range(known, begin, end, buffer.size, exact, closed)
        if ahead is not None:
            part = replace(part, next_block_before=min(part.next_block_before, ahead))
        yield from _read(buffer, part, decoder, how, counted)


def read_headers(
    fs: pa.fs.FileSystem,
    path: str,
    begin: int = 0,
    end: int | None = None,
    selection: Selection | None = None,
    mode: Mode = Mode.FAILFAST,
    *,
    exact: bool = False,
    closed: bool = False,
    meta: Meta | None = None,
    skipped: Skipped | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Iterator[Headers]:
    """Yield the header columns of the rows that `read_rows` would yield, without their tuples."""
    how, counted = Decoding(selection, mode, limits), Skipped() if skipped is None else skipped
    known = meta if meta is not None else _meta_or_damage(fs, path, begin, how, counted)[0]
    decoder = Decoder(base_name(path), how, counted, headers_of, binary=False)
    with FileBuffer(fs, path, limits.window) as buffer:
        yield from _read(buffer, _range(known, begin, end, buffer.size, exact, closed), decoder, how, counted)


def _meta_or_damage(
    fs: pa.fs.FileSystem, path: str, begin: int, how: Decoding, skipped: Skipped
) -> tuple[Meta, XlogError | None]:
    """Return a file's header, and None; for a damaged header in a lenient mode, `DAMAGED_META` and the error.

    Only the reader of the file's first byte gets the error, so that it is reported once.
    """
    try:
        return read_meta(fs, path), None
    except XlogMetaError as error:
        if how.mode is Mode.FAILFAST:
            raise
        return DAMAGED_META, raise_or_count(error, 0, how.mode, skipped) if begin == 0 else None


def _range(meta: Meta, begin: int, end: int | None, size: int, exact: bool, closed: bool) -> Range:
    return Range(
        begin=max(begin, meta.length),
        end=size if end is None else min(end, size),
        # After a damaged header, the start of the first block is unknown.
        begins_at_block=exact and begin > 0 if meta is DAMAGED_META else exact or begin <= meta.length,
        next_block_before=size if end is not None and end > meta.length and not exact else 0,
        is_closed=closed,
    )


def _read(
    buffer: FileBuffer, part: Range, decoder: Decoder[Batch], how: Decoding, skipped: Skipped
) -> Iterator[Batch]:
    for found in Scanner(buffer, how, skipped).groups(part):
        if isinstance(found, BlockGroup):
            yield from decoder.batches(found)
        else:
            yield from decoder.batches_of_error(found)
    yield from decoder.flush()

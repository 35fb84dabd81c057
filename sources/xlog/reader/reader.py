"""Reads log files: their header, their rows as Arrow batches, how far they are written.

`read_rows` is what a Spark task runs; `end_of_whole_blocks` and `block_starts` (`extent`) are what the driver
plans with, from block headers alone. All of Tarantool's files are read alike: `.xlog`, `.snap`, `.vylog`,
`.run`, `.index`, and with `.inprogress` behind.

Not here: directories (which file follows which), the data source, writing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs

from schemas.errors import XlogError, XlogMetaError
from sources.xlog.format.damage import Mode, Skipped, meet
from sources.xlog.format.decoder import DEFAULT_LIMITS, Batch, Decoder, Decoding, Group, Limits
from sources.xlog.format.headers import Headers, headers_of
from sources.xlog.format.kernels.row import Columns
from sources.xlog.format.meta import DAMAGED_META, Meta
from sources.xlog.format.rows import Labels, batch_of, corrupt_batch
from sources.xlog.format.selection import Selection
from sources.xlog.reader.extent import WholeEnd, block_boundary, block_starts, end_of_whole_blocks, read_meta
from sources.xlog.reader.scan import Range, Scanner
from sources.xlog.reader.window import Window, base_name, open_fs

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
        Any byte; up to the header's length, the first block is meant.
    end : int, optional
        None reads to the last whole block.
    selection : Selection, optional
        Rows that are wanted; all by default.
    mode : Mode
        What happens to damage. In PERMISSIVE the batches have the column `_corrupt_record` too.
    exact : bool
        Both ends are starts of blocks (`block_starts`): nothing is searched or looked at behind `end`.
    closed : bool
        The file will not grow: a cut block at its end is damage, otherwise it is not written yet.
    meta : Meta, optional
        The file's header, if it is known.
    skipped : Skipped, optional
        Counts what DROPMALFORMED and PERMISSIVE leave out.
    limits : Limits
        Sizes of blocks, batches and the window.

    Raises
    ------
    XlogError
        One of its classes, with file, offset and reason; in mode FAILFAST for any damage.

    """
    file, permissive = base_name(path), mode is Mode.PERMISSIVE
    how, counted = Decoding(selection, mode, limits), Skipped() if skipped is None else skipped
    known, damaged = (meta, None) if meta is not None else _meta_or_damage(fs, path, begin, how, counted)
    labels = Labels(file, known.instance_uuid)

    def finish(columns: Columns, count: int) -> pa.RecordBatch:
        return batch_of(columns, count, labels, permissive)

    def corrupt(error: XlogError) -> pa.RecordBatch:
        return corrupt_batch(error, file)

    if damaged is not None and permissive:
        yield corrupt(damaged)
    decoder = Decoder(file, how, counted, finish, corrupt if permissive else None)
    with Window(fs, path, limits.window) as window:
        yield from _read(window, _range(known, begin, end, window.size, exact, closed), decoder, how, counted)


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
    """Yield the numbers of the rows that `read_rows` would yield, without their tuples."""
    how, counted = Decoding(selection, mode, limits), Skipped() if skipped is None else skipped
    known = meta if meta is not None else _meta_or_damage(fs, path, begin, how, counted)[0]
    decoder = Decoder(base_name(path), how, counted, headers_of, binary=False)
    with Window(fs, path, limits.window) as window:
        yield from _read(window, _range(known, begin, end, window.size, exact, closed), decoder, how, counted)


def _meta_or_damage(
    fs: pa.fs.FileSystem, path: str, begin: int, how: Decoding, skipped: Skipped
) -> tuple[Meta, XlogError | None]:
    """Return a file's header; for a damaged one in a lenient mode, nothing known, and the error if it is to be told.

    Who reads the file from its first byte tells of it, as for any damage.
    """
    try:
        return read_meta(fs, path), None
    except XlogMetaError as error:
        if how.mode is Mode.FAILFAST:
            raise
        return DAMAGED_META, meet(error, 0, how.mode, skipped) if begin == 0 else None


def _range(meta: Meta, begin: int, end: int | None, size: int, exact: bool, closed: bool) -> Range:
    return Range(
        begin=max(begin, meta.length),
        end=size if end is None else min(end, size),
        # Behind a damaged header, nothing says where the first block starts.
        known=exact and begin > 0 if meta is DAMAGED_META else exact or begin <= meta.length,
        ahead=end is not None and end > meta.length and not exact,
        closed=closed,
    )


def _read(
    window: Window, part: Range, decoder: Decoder[Batch], how: Decoding, skipped: Skipped
) -> Iterator[Batch]:
    for found in Scanner(window, how, skipped).groups(part):
        if isinstance(found, Group):
            yield from decoder.batches(found)
        else:
            yield from decoder.met(found)
    yield from decoder.flush()

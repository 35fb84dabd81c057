"""Writes the files of a spool again without the content of some rows, while no daemon runs.

A row of a log becomes a NOP with the same lsn and time, so that no lsn is missing; a row of a snapshot is left out. A
file is replaced at once when the new one is complete. Blocks stay as they are divided, a log without end marker stays
so. A reader notices that the bytes before its position have changed, and continues behind the rows that it has settled.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.iproto import RequestType
from sources.spool.acks import LOCK_FILE
from sources.spool.spool import lock_file
from sources.spool.state import REWOUND_PREFIX
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import Meta
from sources.xlog.format.writer import Fsync, XlogWriter, sync_directory
from sources.xlog.reader import reader
from sources.xlog.reader.plain_rows import (
    PlainRow,
    decode_rows,
    decode_rows_with_bytes,
    read_blocks,
    read_meta,
)

FORGETTING_FOLDER = ".forgetting"
"""The folder of a spool for files that are being written again."""

IsGone = Callable[[Meta, PlainRow], bool]
"""Whether the content of a row of a file is to be removed."""


@contextmanager
def locked(spool: Path) -> Iterator[None]:
    """Keep daemons from writing a spool; raise SpoolError if one does."""
    lock = lock_file(spool / LOCK_FILE)
    try:
        yield
    finally:
        os.close(lock)


def files_of(spool: Path) -> list[Path]:
    """Return all log files of a spool, with those of the spools that were set aside in it."""
    folders = [spool, *sorted(spool.glob(f"{REWOUND_PREFIX}*"))]
    return [
        path for one in folders for suffix in ("snap", "xlog") for path in sorted(one.glob(f"*.{suffix}"))
    ]


def rewrite(spool: Path, path: Path, is_gone: IsGone, may_have: Callable[[bytes], bool]) -> int:
    """Write a file again without the content of rows, and return their number; without such rows it is not touched.

    Args:
        may_have: Returns whether bytes of rows may have such a row; blocks without one are not decoded.
    """
    with path.open("rb") as stream:
        meta = read_meta(stream, path.name)
        count = sum(
            is_gone(meta, row)
            for block in read_blocks(stream, meta.length, path.name)
            if may_have(block.rows)
            for row in decode_rows(block.rows, block.start, path.name)
        )
    if count:
        _write_again(spool, path, meta, is_gone, may_have)
    return count


def _write_again(
    spool: Path, path: Path, meta: Meta, is_gone: IsGone, may_have: Callable[[bytes], bool]
) -> None:
    folder, stat = spool / FORGETTING_FOLDER, path.stat()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o750)
    is_closed = reader.ends_with_marker(*reader.open_fs(str(path)), meta.length, stat.st_size)
    writer = XlogWriter(folder / path.name, meta, Fsync.CLOSE)
    try:
        with path.open("rb") as stream:
            for block in read_blocks(stream, meta.length, path.name):
                rows = block.rows
                if may_have(rows):
                    rows = _remaining(rows, block.start, path.name, meta, is_gone)
                if rows:
                    writer.write_block(rows)
        if is_closed or meta.filetype != "XLOG":
            writer.close()
    finally:
        writer.abandon()
    shutil.copymode(path, folder / path.name)
    with (folder / path.name).open("rb") as written:
        os.fsync(written.fileno())
    os.utime(folder / path.name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (folder / path.name).replace(path)
    sync_directory(path.parent)
    shutil.rmtree(folder, ignore_errors=True)


def _remaining(data: bytes, begin: int, file: str, meta: Meta, is_gone: IsGone) -> bytes:
    parts = []
    for row, raw in decode_rows_with_bytes(data, begin, file):
        if not is_gone(meta, row):
            parts.append(raw)
        elif meta.filetype == "XLOG":
            parts.append(_nop_in_place_of(row))
    return b"".join(parts)


def _nop_in_place_of(row: PlainRow) -> bytes:
    return encode_row(
        RequestType.NOP,
        timestamp=(row.timestamp or 0) / 1e6,
        replica_id=row.replica_id,
        group_id=row.group_id,
        lsn=row.lsn,
        tsn=row.tsn,
        is_commit=row.is_commit,
        flags=row.flags,
    )

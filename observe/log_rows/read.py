"""Reads the rows of a log file or of a directory's logs in order, with the catalog's knowledge at each row.

A directory's logs are read in the order of their names. Before the first row, the newest snapshot before it is read up
to the first user space (completely, if tuples are requested), and from the logs in between the blocks that define
spaces: so names are known without reading everything.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from observe.log_rows.catalog import DEFINING, LogCatalog, LoggedSpace, Taken
from schemas.errors import SourceError, XlogMetaIncompleteError
from schemas.iproto import SYSTEM_ID_MAX, BodyKey
from sources.xlog.format.meta import Meta
from sources.xlog.format.vclock import not_beyond
from sources.xlog.reader.plain_rows import PlainRow, blocks, read_meta, rows

POLL_SECONDS = 0.2
"""Seconds between two checks of a log for more rows."""

_MARKS = [
    bytes([BodyKey.SPACE_ID, head]) + number.to_bytes(size, "big")
    for number in sorted(DEFINING)
    for head, size in ((0xCD, 2), (0xCE, 4), (0xCF, 8))
]
"""Encoded space ids in the bodies of rows that define spaces."""


@dataclass(frozen=True)
class LoggedRow:
    """One row, with what the catalog adds to it.

    Parameters
    ----------
    file : str
        Base name.
    row : PlainRow
    taken : Taken
        From the catalog.

    """

    file: str
    row: PlainRow
    taken: Taken

    @property
    def definition(self) -> LoggedSpace | None:
        """The row's space, if known."""
        return self.taken.definition


def files_of(path: Path) -> list[Path]:
    """Return the logs of a path: the file itself, or those of a directory.

    Raises
    ------
    SourceError
        There are none.

    """
    found = sorted(path.glob("*.xlog")) if path.is_dir() else [path]
    if not found or not found[0].is_file():
        reason = "there is no log in the directory" if path.is_dir() else "there is no such file"
        raise SourceError(reason, path=str(path), advice="name a .xlog or .snap file, or their directory")
    return found


def found_rows(path: Path, catalog: LogCatalog, *, follow: bool = False) -> Iterator[list[LoggedRow]]:
    """Yield the rows of a path, one block at a time.

    Parameters
    ----------
    path : Path
        A file or a directory.
    catalog : LogCatalog
        Empty; it processes the rows.
    follow : bool
        Whether to wait for more rows at the end, for ever.

    Raises
    ------
    SourceError
        There is no log.
    XlogError
        A file is damaged.

    """
    waiting = files_of(path)
    prepare(waiting[0], catalog)
    while waiting:
        file, *waiting = waiting
        with file.open("rb") as stream:
            begin = 0
            while True:
                # Checked before the file's end: a log with a successor no longer grows.
                if follow and path.is_dir():
                    waiting = [one for one in files_of(path) if one.name > file.name]
                for end, found in _file_rows(stream, file, begin, catalog, follow=follow):
                    begin = end
                    yield found
                if waiting or not follow:
                    break
                yield []
                time.sleep(POLL_SECONDS)


def _file_rows(
    stream: BinaryIO, file: Path, position: int, catalog: LogCatalog, *, follow: bool
) -> Iterator[tuple[int, list[LoggedRow]]]:
    """Yield the rows of each complete block after a position (0: the header), with the position after it."""
    if position == 0:
        stream.seek(0)
        try:
            meta = read_meta(stream, file.name)
        except XlogMetaIncompleteError:
            if follow:
                return
            raise
        catalog.begin_file(meta.other.get("Version"))
        position = meta.length
    for begin, data, end in blocks(stream, position, file.name):
        yield end, [LoggedRow(file.name, row, catalog.take(row)) for row in rows(data, begin, file.name)]


def prepare(first: Path, catalog: LogCatalog) -> None:
    """Fill the catalog with the definitions before a file."""
    meta = _meta_of(first)
    if meta.filetype != "XLOG":
        return
    before = [file for file in sorted(first.parent.glob("*.snap")) if _is_before(file, meta)]
    if not before:
        return
    snapshot = before[-1]
    catalog.is_whole = catalog.with_tuples
    _take_all(snapshot, catalog)
    between = [one for one in sorted(first.parent.glob("*.xlog")) if snapshot.stem <= one.stem < first.stem]
    for file in between:
        _take_all(file, catalog)


def _is_before(snapshot: Path, meta: Meta) -> bool:
    own = _meta_of(snapshot)
    return own.instance_uuid == meta.instance_uuid and not_beyond(own.vclock, meta.vclock)


def _meta_of(file: Path) -> Meta:
    with file.open("rb") as stream:
        return read_meta(stream, file.name)


def _take_all(file: Path, catalog: LogCatalog) -> None:
    """Pass to the catalog those rows of a file that it needs."""
    with file.open("rb") as stream:
        meta = read_meta(stream, file.name)
        catalog.begin_file(meta.other.get("Version"))
        for begin, data, _ in blocks(stream, meta.length, file.name):
            if not catalog.with_tuples and meta.filetype == "XLOG" and not any(m in data for m in _MARKS):
                continue
            for row in rows(data, begin, file.name):
                # A snapshot has its spaces ordered by id.
                is_user = row.space_id is not None and row.space_id > SYSTEM_ID_MAX
                if is_user and meta.filetype == "SNAP" and not catalog.with_tuples:
                    return
                if catalog.with_tuples or row.space_id in DEFINING:
                    catalog.take(row)

"""The log files of one source: which are there, in the order of the log, and where each ends.

Facts about directories, from Tarantool's `src/box/xlog.c` and `src/box/wal.c`: a file is named by the
signature of its header's VClock, 20 digits; `.inprogress` is a file still being made (snapshots) or created
(logs) and is not read; a log is closed, with an EOF marker, before the next one is created
(`wal_opt_rotate`), so a log with a successor does not grow. A log with an EOF marker and no successor may
still grow: a restarted server appends to an empty last log over its marker (`wal_open`).

Listing and asking only. What a stream does with it: `sources.xlog.follow`; the bytes: `sources.xlog.reader`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from schemas.errors import SourceError, XlogError, XlogMetaIncompleteError, XlogMissingError
from schemas.iproto import GROUP_LOCAL, VCLOCK_MAX
from sources.xlog import reader
from sources.xlog.block import EOF_MARKER
from sources.xlog.damage import Mode
from sources.xlog.listing import FileEnd, Listing, LogFile, newest_not_beyond
from sources.xlog.meta import Meta
from sources.xlog.options import Source
from sources.xlog.vclock import joined

CUT_AHEAD = 1 << 20
"""How far behind a wanted cut a block is looked for before the rest of the file is walked, in bytes."""

_NAME = re.compile(r"\d{20}\.(xlog|snap)\Z")


def child_path(path: str, name: str) -> str:
    """Return the path of a file in a directory; the query of a URI stays behind the path."""
    stem, question, query = path.partition("?") if "://" in path else (path, "", "")
    return f"{stem.rstrip('/')}/{name}{question}{query}"


def _name_order(info: pafs.FileInfo) -> str:
    return str(info.base_name)


def _log_file(info: pafs.FileInfo, path: str, meta: Meta) -> LogFile:
    modified = None if info.mtime is None else info.mtime.timestamp()
    return LogFile(
        info.base_name,
        path,
        info.size,
        modified,
        meta.length,
        dict(meta.vclock),
        None if meta.prev_vclock is None else dict(meta.prev_vclock),
        meta.instance_uuid,
    )


@dataclass
class Directory:
    """One source's files; remembers headers and ends, which do not change, between two listings.

    Parameters
    ----------
    source : Source
        What to list.
    mode : Mode
        What happens to damage where blocks are walked or rows are read.

    """

    source: Source
    mode: Mode = Mode.FAILFAST
    _metas: dict[str, Meta] = field(default_factory=dict)
    _ends: dict[str, tuple[int, FileEnd]] = field(default_factory=dict)
    _reached: dict[str, tuple[int, dict[int, int]]] = field(default_factory=dict)

    def listing(self) -> Listing:
        """Return the files.

        The newest file of a kind whose header is not written yet is not there yet; an empty file holds no
        rows.

        Raises
        ------
        SourceError
            If the path cannot be listed.
        XlogMetaError
            If a header is damaged.

        """
        try:
            infos, is_file = self._infos()
        except (OSError, pa.ArrowException, ValueError) as error:
            reason = f"the source cannot be listed: {error}"
            raise SourceError(reason, source=self.source.name, path=self.source.path) from error
        snapshots = self._files(info for info in infos if info.base_name.endswith(".snap"))
        logs = self._files(info for info in infos if info.base_name.endswith(".xlog"))
        return Listing(self.source.name, snapshots, logs, is_file)

    def _infos(self) -> tuple[list[pafs.FileInfo], bool]:
        filesystem, path = reader.open_fs(self.source.path)
        info = filesystem.get_file_info(path)
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(f"{self.source.path} does not exist")
        if info.type == pafs.FileType.File:
            return [info], True
        infos = filesystem.get_file_info(pafs.FileSelector(path))
        files = [i for i in infos if i.type == pafs.FileType.File and _NAME.match(i.base_name)]
        return sorted(files, key=_name_order), False

    def _files(self, infos: Iterable[pafs.FileInfo]) -> tuple[LogFile, ...]:
        filled = [info for info in infos if info.size > 0]
        files = []
        for info in filled:
            path = self._path(info.base_name)
            try:
                meta = self._meta(info.base_name, path)
            except XlogMissingError:
                continue  # removed since it was listed: it was not there
            except XlogMetaIncompleteError:
                if info is not filled[-1]:
                    raise
                continue
            files.append(_log_file(info, path, meta))
        return tuple(files)

    def _path(self, name: str) -> str:
        own = PurePosixPath(self.source.path.partition("?")[0]).name
        return self.source.path if own == name else child_path(self.source.path, name)

    def _meta(self, name: str, path: str) -> Meta:
        if name not in self._metas:
            self._metas[name] = reader.read_meta(*reader.open_fs(path))
        return self._metas[name]

    def end(self, file: LogFile, *, closed: bool, begin: int = 0) -> FileEnd:
        """Return where the whole blocks of a file end; of one that grows, as of now.

        Parameters
        ----------
        file : LogFile
            One of the listing.
        closed : bool
            Whether it cannot grow: a snapshot, or a log with a successor. It is not walked where it ends with
            the EOF marker.
        begin : int
            A position just past a whole block from which to walk, where nothing newer is remembered.

        """
        remembered = self._ends.get(file.name)
        if remembered is not None and remembered[0] == file.size:
            return remembered[1]
        filesystem, path = reader.open_fs(file.path)
        if closed and _ends_with_marker(filesystem, path, file):
            end = FileEnd(file.size - len(EOF_MARKER), has_marker=True)
        else:
            known = remembered[1].position if remembered is not None else 0
            end = self._walked(filesystem, path, max(known, begin, file.header))
        self._ends[file.name] = (file.size, end)
        return end

    def reached(self, file: LogFile) -> dict[int, int]:
        """Return the vclock after the last whole block of a log; reads its rows: ask where it matters."""
        end = self.end(file, closed=False)
        remembered = self._reached.get(file.name)
        if remembered is None or remembered[0] != end.position:
            vclock = joined(file.vclock, _last_lsns(file, end.position, self.mode))
            remembered = self._reached[file.name] = (end.position, vclock)
        return remembered[1]

    def _walked(self, filesystem: pafs.FileSystem, path: str, begin: int) -> FileEnd:
        """Return the end of the blocks from `begin` on; a lenient mode goes on behind damage."""
        while True:
            try:
                return FileEnd(*reader.end_of_whole_blocks(filesystem, path, begin))
            except XlogError as error:
                if self.mode is Mode.FAILFAST or "offset" not in error.fields:
                    raise
                damaged = int(error.fields["offset"])
                following = reader.block_boundary(filesystem, path, damaged + 1)
                if following >= filesystem.get_file_info(path).size:
                    return FileEnd(damaged, has_marker=False)
                begin = following

    def cut(self, file: LogFile, begin: int, near: int, end: int) -> int:
        """Return the first start of a block at or behind `near`, or `end`.

        Parameters
        ----------
        file : LogFile
            One of the listing.
        begin, end : int
            Bytes; a block starts at `begin`, and the blocks in question end at `end`.
        near : int
            Bytes, between them.

        """
        # Walking the headers from a known block cannot be misled by a tuple that holds a block.
        for last in (near + CUT_AHEAD, end):
            starts = self.starts(file.path, begin, min(last, end), near - begin)
            if len(starts) > 1:
                return starts[1]
        return end

    def starts(self, path: str, begin: int, end: int, every: int) -> list[int]:
        """Return starts of blocks that cut [begin, end) into ranges of about `every` bytes."""
        try:
            return reader.block_starts(*reader.open_fs(path), begin, end, every)
        except XlogError:
            if self.mode is Mode.FAILFAST:
                raise
            # Nothing is proven behind damage: one task meets it on its way through the whole range.
            return [begin]

    def oldest_continued(self, listing: Listing) -> LogFile | None:
        """Return the oldest complete snapshot from which the logs go on."""
        for file in listing.snapshots:
            covered = newest_not_beyond(listing.logs, file.vclock, local=True) is not None
            if covered and self.newest_complete([file]) is not None:
                return file
        return None

    def newest_complete(self, snapshots: Sequence[LogFile]) -> LogFile | None:
        """Return the newest of the snapshots that has an EOF marker: a copy may still be under way."""
        for file in reversed(snapshots):
            if _ends_with_marker(*reader.open_fs(file.path), file):
                return file
        return None


def _ends_with_marker(filesystem: pafs.FileSystem, path: str, file: LogFile) -> bool:
    if file.size < file.header + len(EOF_MARKER):
        return False
    with filesystem.open_input_file(path) as stream:
        return bool(stream.read_at(len(EOF_MARKER), file.size - len(EOF_MARKER)) == EOF_MARKER)


def _last_lsns(file: LogFile, end: int, mode: Mode) -> dict[int, int]:
    """Return the highest lsn per vclock component among the rows of a log."""
    highest = np.zeros(VCLOCK_MAX, np.int64)
    filesystem, path = reader.open_fs(file.path)
    for headers in reader.read_headers(filesystem, path, file.header, end, mode=mode, exact=True):
        ids = np.where(headers.group_id == GROUP_LOCAL, 0, np.maximum(headers.replica_id, 0))
        np.maximum.at(highest, ids, headers.lsn)
    return {id_: int(lsn) for id_, lsn in enumerate(highest) if lsn > 0}

"""Lists the log files of one source, in the order of the log.

Facts about directories, from Tarantool's `src/box/xlog.c` and `src/box/wal.c`: a file is named by the signature of its
header's VClock, 20 digits; `.inprogress` is a file that is still being written (snapshots) or created (logs) and is not
read; a log is closed, with an EOF marker, before the next one is created (`wal_opt_rotate`), so a log with a successor
does not grow. A log with an EOF marker and no successor may still grow: a restarted server appends to an empty last log
over its marker (`wal_open`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.fs as pafs

from schemas.errors import SourceError, XlogMetaError, XlogMetaIncompleteError, XlogMissingError
from sources.xlog.directory.file_ends import FileEnds, Opened
from sources.xlog.directory.listing import Listing, LogFile, generations_of, newest_not_beyond
from sources.xlog.format.block import BLOCK_LIMIT, EOF_MARKER
from sources.xlog.format.damage import Mode
from sources.xlog.format.meta import DAMAGED_META, REPLICASET_KEY, Meta
from sources.xlog.options import Source
from sources.xlog.reader import reader

logger = logging.getLogger(__name__)

_NAME = re.compile(r"\d{20}\.(xlog|snap)\Z")
_TYPES = {"xlog": "XLOG", "snap": "SNAP"}


def child_path(path: str, name: str) -> str:
    """Return the path of a file in a directory; the query of a URI stays at the end."""
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
        meta.other.get(REPLICASET_KEY),
        meta.filetype,
        meta.has_vclock,
    )


@dataclass
class Directory:
    """One source's files; caches their headers, which do not change once a file has rows.

    Parameters
    ----------
    source : Source
        What to list.
    mode : Mode
        What to do about damage.
    bridges : bool
        Whether snapshots after a gap in a spool are listed as generations.
    block : int
        The longest block, in bytes.
    is_final : bool
        Whether files are read once, as they are now (`FileEnds`).
    is_file : bool
        Whether the source is one file, as of the last listing.

    Attributes
    ----------
    ends : FileEnds
        Where the files end.

    """

    source: Source
    mode: Mode = Mode.FAILFAST
    bridges: bool = False
    block: int = BLOCK_LIMIT
    is_final: bool = False
    ends: FileEnds = field(init=False)
    _metas: dict[str, Meta] = field(default_factory=dict)
    _root: Opened | None = None
    is_file: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.ends = FileEnds(self.opened, self.mode, self.block, self.is_final)

    def listing(self) -> Listing:
        """Return the files.

        Empty files are left out, and so is the newest file of a kind if its header is incomplete. A damaged header is
        an error. A lenient `mode` leaves such a file out of a directory, since its place in the order is unknown; a
        source of one file is read for the blocks that it has.

        Raises
        ------
        SourceError
            If the path cannot be listed.
        XlogMetaError
            If a header is damaged.

        """
        try:
            infos = self._infos()
        except (OSError, pa.ArrowException, ValueError) as error:
            self._root = None  # connect again the next time
            reason = f"the source cannot be listed: {error}"
            raise SourceError(
                reason,
                source=self.source.name,
                path=self.source.path,
                advice="bring it back, remove the source, or continue without it by on_source_error=skip",
            ) from error
        names = {info.base_name for info in infos}
        self.ends.forget_all_but(names)
        self._metas = {name: meta for name, meta in self._metas.items() if name in names}
        if self.is_file:
            files = self._files(infos)
            snapshots = tuple(file for file in files if file.is_snapshot)
            logs = tuple(file for file in files if not file.is_snapshot)
            return Listing(self.source.name, snapshots, logs, is_file=True)
        snapshots = self._files(info for info in infos if info.base_name.endswith(".snap"))
        logs = self._files(info for info in infos if info.base_name.endswith(".xlog"))
        found = generations_of(snapshots, logs) if self.bridges else ()
        generations = tuple(file for file in found if self.ends.is_complete(file))
        return Listing(self.source.name, snapshots, logs, generations=generations)

    def opened(self, name: str) -> Opened:
        """Return the file system of a file, and its path in it; a source of one file has that path for every name."""
        filesystem, path = self._opened_root()
        return filesystem, path if self.is_file else f"{path.rstrip('/')}/{name}"

    def oldest_continued(self, listing: Listing) -> LogFile | None:
        """Return the oldest complete snapshot that the logs continue."""
        for file in listing.snapshots:
            covered = newest_not_beyond(listing.logs, file.vclock, local=True) is not None
            if covered and self.ends.is_complete(file):
                return file
        return None

    def newest_complete(self, snapshots: Sequence[LogFile]) -> LogFile | None:
        """Return the newest snapshot that has an EOF marker: one without it may still be being copied."""
        return next((file for file in reversed(snapshots) if self.ends.is_complete(file)), None)

    def complete(self, snapshots: Sequence[LogFile]) -> tuple[LogFile, ...]:
        """Return the snapshots that have an EOF marker."""
        return tuple(file for file in snapshots if self.ends.is_complete(file))

    def _opened_root(self) -> Opened:
        if self._root is None:
            self._root = reader.open_fs(self.source.path)
        return self._root

    def _infos(self) -> list[pafs.FileInfo]:
        filesystem, path = self._opened_root()
        info = filesystem.get_file_info(path)
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(f"{self.source.path} does not exist")
        self.is_file = info.type == pafs.FileType.File
        if self.is_file:
            return [info]
        infos = filesystem.get_file_info(pafs.FileSelector(path))
        files = [i for i in infos if i.type == pafs.FileType.File and _NAME.match(i.base_name)]
        return sorted(files, key=_name_order)

    def _files(self, infos: Iterable[pafs.FileInfo]) -> tuple[LogFile, ...]:
        filled = [info for info in infos if info.size > 0]
        files = []
        for info in filled:
            try:
                meta = self._meta(info.base_name)
            except XlogMissingError:
                continue  # removed since it was listed
            except XlogMetaError as error:
                if isinstance(error, XlogMetaIncompleteError) and info is filled[-1]:
                    continue
                if self.mode is Mode.FAILFAST:
                    raise
                if not self.is_file:
                    logger.warning("%s: %s is left out: %s", self.source.name, info.base_name, error)
                    continue
                meta = DAMAGED_META
            if info.size <= meta.length + len(EOF_MARKER):
                # A log without rows may be replaced by a restarted server.
                self._metas.pop(info.base_name, None)
            path = self.source.path if self.is_file else child_path(self.source.path, info.base_name)
            files.append(_log_file(info, path, meta))
        return tuple(files)

    def _meta(self, name: str) -> Meta:
        if name not in self._metas:
            meta = reader.read_meta(*self.opened(name))
            if not self.is_file and meta.filetype != _TYPES[name.rpartition(".")[2]]:
                raise XlogMetaError(
                    f"the header says that this is a file of type {meta.filetype}", file=name, offset=0
                )
            self._metas[name] = meta
        return self._metas[name]

    @property
    def limits(self) -> reader.Limits:
        """The limits for reading a file of this source."""
        return reader.Limits(block=self.block)

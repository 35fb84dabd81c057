"""Lists the log files of one source, in the order of the log.

Facts about directories, from Tarantool's `src/box/xlog.c` and `src/box/wal.c`:

- A file is named by the signature of its header's VClock (the sum of its lsns), with 20 digits.
- A file `*.inprogress` is not read: it is a snapshot that is being written, or a log that is being created.
- A server closes a log with an EOF marker before it creates the next one (`wal_opt_rotate`), so a log with a successor
  does not grow. The last log may grow in spite of its marker: if it has no rows, a restarted server overwrites the
  marker with the next row (`wal_open`).

`FileEnds` finds where the files end and where their blocks start. It caches the ends: a closed file does not change,
and only the new part of a growing file is walked. It reads block headers only, except in `FileEnds.end_vclock`.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from schemas.errors import (
    AggregatorError,
    SourceError,
    XlogError,
    XlogMetaError,
    XlogMetaIncompleteError,
    XlogMissingError,
    XlogRewrittenError,
)
from schemas.iproto import GROUP_LOCAL, VCLOCK_MAX
from sources.xlog.directory.listing import FileEnd, Listing, LogFile, generations_of, newest_index_at_most
from sources.xlog.directory.source import Source
from sources.xlog.format.block import BLOCK_LIMIT, EOF_MARKER
from sources.xlog.format.damage import Mode
from sources.xlog.format.meta import DAMAGED_META, REPLICASET_KEY, Meta
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import Vclock, are_equal, vclock_maximum
from sources.xlog.reader import reader
from sources.xlog.reader.fingerprint import checksum_before

SEARCH_AHEAD_BYTES = 1 << 20
"""Number of bytes after a position that are searched for a block start, before the rest of the file is searched."""

PROBE_BYTES = 1 << 16
"""Number of bytes at the beginning of a range that show how large its blocks are."""

REWRITTEN_ADVICE = (
    "the server lost the end of its log, or was restored from an older state: start again from a snapshot, "
    "or bring the old file back"
)

LARGE_BLOCK_BYTES = 1 << 12
"""If blocks have at least this many bytes on average, a file is split at block starts, found by a walk over headers."""

SOURCE_ERRORS = (AggregatorError, OSError, pa.ArrowException)
"""Exceptions that mean that a source cannot be read."""

logger = logging.getLogger(__name__)

FileLocation = tuple[pafs.FileSystem, str]


@dataclass
class FileEnds:
    """Finds and caches where the complete blocks of one source's files end."""

    locate: Callable[[str], FileLocation]
    """Returns the location of a file, by its base name."""
    mode: Mode = Mode.FAILFAST
    """What to do about damage."""
    max_block_bytes: int = BLOCK_LIMIT
    ignores_growth: bool = False
    """Whether files are read once and their growth is ignored. Then an incomplete snapshot counts as damaged; otherwise
    it may still be being copied."""
    _end_by_file: dict[str, tuple[int, FileEnd]] = field(default_factory=dict)
    """By file: its size when the end was found, and the end."""
    following_vclocks: dict[str, Vclock] = field(default_factory=dict)
    """By log: the VClock in the header of the next log, as of the last listing."""
    _end_vclock_by_file: dict[str, tuple[int, dict[int, int]]] = field(default_factory=dict)
    """By file: the end of its complete blocks, in bytes, and the vclock there."""
    _is_complete_by_file: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """By file: its size when it was checked, and whether the EOF marker ends it."""
    _followed_end_by_file: dict[str, tuple[int, FileEnd]] = field(default_factory=dict)
    """By log that another one follows, without EOF marker: its size when its rows were read, and its end."""
    _checksum_by_file: dict[str, tuple[tuple[int, int, float | None], int]] = field(default_factory=dict)
    """By file: a position with the file's size and time of writing, and the checksum of the bytes before it."""

    def forget_all_but(self, names: Collection[str]) -> None:
        """Drop the cached ends of removed files, so that memory does not grow with the log."""
        for known in (
            self._end_by_file,
            self._end_vclock_by_file,
            *(self._is_complete_by_file, self._checksum_by_file, self._followed_end_by_file),
        ):
            for name in [name for name in known if name not in names]:
                del known[name]

    def end_of(self, file: LogFile, *, closed: bool, begin: int = 0) -> FileEnd:
        """Return where the complete blocks of a file end now.

        The blocks of a file that ends with the EOF marker are not walked, since damage is found when the rows are read.
        If `ignores_growth`, a snapshot without the marker ends with its last byte: then the incomplete block at its end
        is found when the rows are read.

        Args:
            begin: Where the walk over blocks begins, unless a later position is cached: the end of a complete block, or
                0.

        Raises:
            XlogError: If the file is damaged and `mode` is FAILFAST.
        """
        if closed and self.mode is Mode.FAILFAST and file.name in self.following_vclocks:
            followed = self._end_of_followed(file)
            if followed is not None:
                return followed
        remembered = self._end_by_file.get(file.name)
        if remembered is not None and remembered[0] == file.size:
            return remembered[1]
        if remembered is not None and remembered[0] > file.size:
            remembered = None  # a spool's log became shorter
        if (closed or remembered is None) and self.is_complete(file):
            end = FileEnd(file.size - len(EOF_MARKER), has_marker=True)
        else:
            known = remembered[1].position if remembered is not None else 0
            end = self._walk_from(file.name, known, max(begin, file.header_bytes))
            if self.ignores_growth and file.is_snapshot and not file.name.endswith(".inprogress"):
                end = FileEnd(file.size, has_marker=False)
        self._end_by_file[file.name] = (file.size, end)
        return end

    def _end_of_followed(self, file: LogFile) -> FileEnd | None:
        """Return the end of a damaged log that another log follows; None if the log is not damaged at its end.

        A server that was killed may leave a torn or zeroed block at the end of its log. With `force_recovery` it
        leaves the block out and begins the next log; so the next log's VClock is what the rows before the block give.
        Then the block and what follows it were never a part of the server's data. Otherwise the result has `damage`.

        Only logs without the EOF marker can be so. Their rows are read anyway, to see whether the next log follows
        without a gap.
        """
        remembered = self._followed_end_by_file.get(file.name)
        if remembered is not None and remembered[0] == file.size:
            return remembered[1]
        if self.is_complete(file):
            return None
        try:
            self._last_lsns(file, file.size)
            return None
        except XlogError as error:
            if "offset" not in error.fields:
                raise
            damage, position = error, int(error.fields["offset"])
        reached = vclock_maximum(file.vclock, self._last_lsns(file, position))
        if are_equal(reached, self.following_vclocks[file.name]):
            logger.warning(
                "%s: the server itself left out what is at byte %d and behind it (%s): its next log continues at %s",
                *(file.path, position, damage.reason, reached),
            )
            end = FileEnd(position, has_marker=False)
            self._end_vclock_by_file[file.name] = (position, reached)
        else:
            end = FileEnd(position, has_marker=False, damage=damage)
        self._followed_end_by_file[file.name] = (file.size, end)
        return end

    def vclock_at(self, file: LogFile, position: int) -> dict[int, int]:
        """Return the vclock at the end of a block of a log; this reads the headers of all rows before it."""
        return vclock_maximum(file.vclock, self._last_lsns(file, position))

    def _walk_from(self, name: str, cached_end: int, begin: int) -> FileEnd:
        """Return the end of the blocks, by a walk from `cached_end`, or from `begin` if the walk finds an error."""
        try:
            return self._walk_to_end(name, max(cached_end, begin))
        except XlogError:
            if cached_end <= begin:
                raise
            return self._walk_to_end(name, begin)

    def _walk_to_end(self, name: str, begin: int) -> FileEnd:
        """Return the end of the blocks from `begin` on; all modes but FAILFAST continue after damage."""
        filesystem, path = self.locate(name)
        while True:
            try:
                return FileEnd(*reader.end_of_complete_blocks(filesystem, path, begin, self.max_block_bytes))
            except XlogError as error:
                if self.mode is Mode.FAILFAST or "offset" not in error.fields:
                    raise
                damaged = int(error.fields["offset"])
                following = reader.first_block_start(
                    filesystem, path, damaged + 1, max_block_bytes=self.max_block_bytes
                )
                size = filesystem.get_file_info(path).size
                if following >= size:
                    # A file without any block is damaged from its first byte on.
                    return FileEnd(damaged if begin else size, has_marker=False)
                begin = following

    def checksum_before(self, file: LogFile, position: int) -> int:
        """Return the checksum of the bytes before a position at which a block ends (`reader.fingerprint`)."""
        key = (position, file.size, file.modified_time)
        remembered = self._checksum_by_file.get(file.name)
        if remembered is None or remembered[0] != key:
            value = checksum_before(*self.locate(file.name), position)
            remembered = self._checksum_by_file[file.name] = (key, value)
        return remembered[1]

    def refuse_rewritten(self, file: LogFile, position: int, checksum: int) -> None:
        """Raise an error if the bytes before a position are not those that were read, which had this checksum."""
        if self.checksum_before(file, position) != checksum:
            raise XlogRewrittenError(
                "what was read of the file is no longer in it: it was written again, with another history",
                file=file.name,
                offset=position,
                advice=REWRITTEN_ADVICE,
            )

    def is_complete(self, file: LogFile) -> bool:
        """Return whether a file ends with the EOF marker."""
        remembered = self._is_complete_by_file.get(file.name)
        if remembered is None or remembered[0] != file.size:
            is_marked = reader.ends_with_marker(
                *self.locate(file.name), file.header_bytes, file.size, self.max_block_bytes
            )
            remembered = self._is_complete_by_file[file.name] = (file.size, is_marked)
        return remembered[1]

    def end_vclock(self, file: LogFile) -> dict[int, int]:
        """Return the vclock after the last complete block of a log; slow, since it reads the headers of all rows."""
        end = self.end_of(file, closed=file.name in self.following_vclocks)
        remembered = self._end_vclock_by_file.get(file.name)
        if remembered is None or remembered[0] != end.position:
            vclock = vclock_maximum(file.vclock, self._last_lsns(file, end.position))
            remembered = self._end_vclock_by_file[file.name] = (end.position, vclock)
        return remembered[1]

    def _last_lsns(self, file: LogFile, end: int) -> dict[int, int]:
        highest = np.zeros(VCLOCK_MAX, np.int64)
        limits = reader.Limits(max_block_bytes=self.max_block_bytes)
        where = (*self.locate(file.name), file.header_bytes, end, self.mode)
        for rows in reader.read_headers(*where, at_block_starts=True, limits=limits):
            ids = np.where(rows.group_id == GROUP_LOCAL, 0, np.maximum(rows.replica_id, 0))
            np.maximum.at(highest, ids, rows.lsn)
        return {id_: int(lsn) for id_, lsn in enumerate(highest) if lsn > 0}

    def block_start_from(self, file: LogFile, begin: int, target: int, end: int) -> int:
        """Return the position of the first block start at or after `target`; `end` if there is none before it."""
        for last in (target + SEARCH_AHEAD_BYTES, end):
            starts = self.block_starts(file.name, begin, min(last, end), target - begin)
            if len(starts) > 1:
                return starts[1]
        return end

    def has_large_blocks(self, name: str, begin: int, end: int) -> bool:
        """Return whether the first blocks from `begin` are so large that a walk over headers skips most bytes."""
        probed = min(end - begin, PROBE_BYTES)
        return len(self.block_starts(name, begin, begin + probed, 1)) * LARGE_BLOCK_BYTES <= probed

    def block_starts(self, name: str, begin: int, end: int, min_distance: int) -> list[int]:
        """Return block starts that split [begin, end) into ranges of about `min_distance` bytes.

        Starts are found by a walk over block headers, so bytes of a tuple that look like a block are no start. If a
        header is damaged and `mode` is not FAILFAST, the only start is `begin`.
        """
        try:
            return reader.block_starts(*self.locate(name), begin, end, min_distance, self.max_block_bytes)
        except XlogError:
            if self.mode is Mode.FAILFAST:
                raise
            # Block starts after damage are not certain, so one task reads the whole range.
            return [begin]


_FILE_NAME = re.compile(r"\d{20}\.(xlog|snap)\Z")
_FILETYPE_BY_SUFFIX = {"xlog": "XLOG", "snap": "SNAP"}


def child_path(path: str, name: str) -> str:
    """Return the path of a file in the directory `path`; if that is a URI, its query stays at the end."""
    stem, question, query = path.partition("?") if "://" in path else (path, "", "")
    return f"{stem.rstrip('/')}/{name}{question}{query}"


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
    """Lists one source's files, and caches the headers of those with rows, which do not change any more."""

    source: Source
    mode: Mode = Mode.FAILFAST
    """What to do about damage."""
    with_generations: bool = False
    """Whether the listing has `generations`: snapshots from which a spool continues after a gap."""
    max_block_bytes: int = BLOCK_LIMIT
    ignores_growth: bool = False
    """Whether files are read once and their growth is ignored (`FileEnds`)."""
    ends: FileEnds = field(init=False)
    _meta_by_file: dict[str, Meta] = field(default_factory=dict)
    _root_location: FileLocation | None = None
    is_file: bool = field(default=False, init=False)
    """Whether the source is one file, as of the last listing."""

    def __post_init__(self) -> None:
        self.ends = FileEnds(self.locate, self.mode, self.max_block_bytes, self.ignores_growth)

    def listing(self) -> Listing:
        """Return the files.

        Empty files are left out, and so are the newest log and the newest snapshot if their headers are incomplete. A
        damaged header is an error in mode FAILFAST. In the other modes the file is left out of a directory's listing,
        since its place in the order is unknown; if the source is this one file, its blocks are read nevertheless.

        Raises:
            SourceError: If the path cannot be listed.
            XlogMetaError: If a header is damaged and `mode` is FAILFAST.
        """
        try:
            infos = self._file_infos()
        except (OSError, pa.ArrowException, ValueError) as error:
            self._root_location = None  # connect again the next time
            reason = f"the source cannot be listed: {error}"
            raise SourceError(
                reason,
                source=self.source.name,
                path=self.source.path,
                advice="bring it back (`aggregator subscribe` begins a spool), remove the source, or continue "
                "without it by on_source_error=skip",
            ) from error
        names = {info.base_name for info in infos}
        self.ends.forget_all_but(names)
        self._meta_by_file = {name: meta for name, meta in self._meta_by_file.items() if name in names}
        if self.is_file:
            files = self._readable_files(infos)
            snapshots = tuple(file for file in files if file.is_snapshot)
            logs = tuple(file for file in files if not file.is_snapshot)
            return Listing(self.source.name, snapshots, logs, is_file=True)
        snapshots = self._readable_files(info for info in infos if info.base_name.endswith(".snap"))
        logs = self._readable_files(info for info in infos if info.base_name.endswith(".xlog"))
        self.ends.following_vclocks = {log.name: after.vclock for log, after in pairwise(logs)}
        found = generations_of(snapshots, logs) if self.with_generations else ()
        generations = tuple(file for file in found if self.ends.is_complete(file))
        return Listing(self.source.name, snapshots, logs, generations=generations)

    def locate(self, name: str) -> FileLocation:
        """Return the location of a file; if the source is one file, its location for any name."""
        filesystem, path = self._locate_root()
        return filesystem, path if self.is_file else f"{path.rstrip('/')}/{name}"

    def read_rows(
        self, name: str, begin: int, end: int, selection: Selection | None = None, *, closed: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file between two block starts (`reader.read_rows`), with the source's mode and limits."""
        return reader.read_rows(
            *(*self.locate(name), begin, end, selection, self.mode),
            at_block_starts=True,
            closed=closed,
            limits=self.limits,
        )

    def read_headers(
        self, name: str, begin: int, end: int, *, closed: bool = False
    ) -> Iterator[reader.Headers]:
        """Yield the header columns of the rows of a file between two block starts."""
        where = (*self.locate(name), begin, end, self.mode)
        return reader.read_headers(*where, at_block_starts=True, closed=closed, limits=self.limits)

    def oldest_snapshot_before_logs(self, listing: Listing) -> LogFile | None:
        """Return the oldest complete snapshot that the logs continue, or None."""
        for file in listing.snapshots:
            covered = newest_index_at_most(listing.logs, file.vclock, with_local=True) is not None
            if covered and self.ends.is_complete(file):
                return file
        return None

    def newest_complete(self, snapshots: Sequence[LogFile]) -> LogFile | None:
        """Return the newest of the snapshots that has an EOF marker, or None; others may still be being copied."""
        return next((file for file in reversed(snapshots) if self.ends.is_complete(file)), None)

    def complete_snapshots(self, snapshots: Sequence[LogFile]) -> tuple[LogFile, ...]:
        """Return the snapshots that have an EOF marker."""
        return tuple(file for file in snapshots if self.ends.is_complete(file))

    def _locate_root(self) -> FileLocation:
        if self._root_location is None:
            self._root_location = reader.open_fs(self.source.path)
        return self._root_location

    def _file_infos(self) -> list[pafs.FileInfo]:
        filesystem, path = self._locate_root()
        info = filesystem.get_file_info(path)
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(f"{self.source.path} does not exist")
        self.is_file = info.type == pafs.FileType.File
        if self.is_file:
            return [info]
        infos = filesystem.get_file_info(pafs.FileSelector(path))
        files = [i for i in infos if i.type == pafs.FileType.File and _FILE_NAME.match(i.base_name)]
        return sorted(files, key=lambda info: str(info.base_name))

    def _readable_files(self, infos: Iterable[pafs.FileInfo]) -> tuple[LogFile, ...]:
        filled = [info for info in infos if info.size > 0]
        files = []
        for info in filled:
            try:
                meta = self._cached_meta(info.base_name)
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
                self._meta_by_file.pop(info.base_name, None)
            path = self.source.path if self.is_file else child_path(self.source.path, info.base_name)
            files.append(_log_file(info, path, meta))
        return tuple(files)

    def _cached_meta(self, name: str) -> Meta:
        if name not in self._meta_by_file:
            meta = reader.read_meta(*self.locate(name))
            if not self.is_file and meta.filetype != _FILETYPE_BY_SUFFIX[name.rpartition(".")[2]]:
                raise XlogMetaError(
                    f"the header says that this is a file of type {meta.filetype}", file=name, offset=0
                )
            self._meta_by_file[name] = meta
        return self._meta_by_file[name]

    @property
    def limits(self) -> reader.Limits:
        """The limits for reading a file of this source."""
        return reader.Limits(max_block_bytes=self.max_block_bytes)

"""Reads the rows of a log file or of a directory's logs in order, adds names of spaces and instances, and selects rows.

A directory's logs are read in the order of their names. To know the definitions before the first row, two things are
read first: the newest earlier snapshot up to the first user space (the whole snapshot, if tuples are requested), and,
of the logs between it and the first row, the blocks that may define spaces. `PrintedRowFilter` selects rows by space,
key, type, origin, lsn and time.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from observe.log_rows.catalog import DEFINING_SPACES, LogCatalog, LoggedSpace, RowContext, comparable_value
from schemas.errors import SourceError, XlogMetaIncompleteError
from schemas.iproto import SYSTEM_SPACE_ID_MAX, BodyKey
from sources.xlog.format.meta import Meta
from sources.xlog.format.vclock import is_at_most
from sources.xlog.reader.plain_rows import PlainRow, decode_rows, read_blocks, read_meta
from udfs.before_replace.row import decode

POLL_SECONDS = 0.2
"""Seconds between two checks of a log for more rows."""

_ENCODED_DEFINING_IDS = [
    bytes([BodyKey.SPACE_ID, head]) + number.to_bytes(size, "big")
    for number in sorted(DEFINING_SPACES)
    for head, size in ((0xCD, 2), (0xCE, 4), (0xCF, 8))
]
"""All encodings of the ids of `DEFINING_SPACES` in a row's body; a block with none of them defines no space."""


@dataclass(frozen=True)
class RowWithContext:
    """A row of a log, with its file and what the catalog knows about it: its space and the instance that wrote it."""

    file: str
    """Name of the file, without folders."""
    row: PlainRow
    context: RowContext

    @property
    def definition(self) -> LoggedSpace | None:
        """The definition of the row's space; None if it is unknown."""
        return self.context.definition


def log_files_of(path: Path) -> list[Path]:
    """Return the logs of a directory, or the path itself if it is a file; raise SourceError if there are none."""
    files = sorted(path.glob("*.xlog")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        reason = "there is no log in the directory" if path.is_dir() else "there is no such file"
        raise SourceError(reason, path=str(path), advice="name a .xlog or .snap file, or their directory")
    return files


def read_rows(path: Path, catalog: LogCatalog, *, follow: bool = False) -> Iterator[list[RowWithContext]]:
    """Yield the rows of a file or a directory's logs, one block at a time.

    Args:
        follow: Whether to wait for more rows at the end; then the iterator never ends, and yields [] while it waits.

    Raises:
        SourceError: There is no file or no log.
        XlogError: A file is damaged.
    """
    waiting = log_files_of(path)
    prepare_catalog(waiting[0], catalog)
    while waiting:
        file, *waiting = waiting
        with file.open("rb") as stream:
            begin = 0
            while True:
                # Listed before the file is read to its end: a log with a successor no longer grows.
                if follow and path.is_dir():
                    waiting = [later for later in log_files_of(path) if later.name > file.name]
                for end, block_rows in _rows_by_block(stream, file, begin, catalog, follow=follow):
                    begin = end
                    yield block_rows
                if waiting or not follow:
                    break
                yield []
                time.sleep(POLL_SECONDS)


def _rows_by_block(
    stream: BinaryIO, file: Path, position: int, catalog: LogCatalog, *, follow: bool
) -> Iterator[tuple[int, list[RowWithContext]]]:
    """Yield (byte offset of the block's end, its rows) for each complete block after the byte offset `position`."""
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
    for begin, data, end in read_blocks(stream, position, file.name):
        yield (
            end,
            [
                RowWithContext(file.name, row, catalog.process(row))
                for row in decode_rows(data, begin, file.name)
            ],
        )


def prepare_catalog(first_file: Path, catalog: LogCatalog) -> None:
    """Fill the catalog from the snapshot and the logs before a file, so that it is as at the beginning of the file."""
    meta = _meta_of(first_file)
    if meta.filetype != "XLOG":
        return
    earlier = [file for file in sorted(first_file.parent.glob("*.snap")) if _is_snapshot_before(file, meta)]
    if not earlier:
        return
    snapshot = earlier[-1]
    catalog.has_all_rows = catalog.stores_all_tuples
    _update_catalog(snapshot, catalog)
    for file in sorted(first_file.parent.glob("*.xlog")):
        if snapshot.stem <= file.stem < first_file.stem:
            _update_catalog(file, catalog)


def _is_snapshot_before(snapshot: Path, meta: Meta) -> bool:
    """Return whether a snapshot is of the instance of the log with the header `meta`, and not newer than the log."""
    snapshot_meta = _meta_of(snapshot)
    is_same = snapshot_meta.instance_uuid == meta.instance_uuid
    return is_same and is_at_most(snapshot_meta.vclock, meta.vclock)


def _meta_of(file: Path) -> Meta:
    with file.open("rb") as stream:
        return read_meta(stream, file.name)


def _update_catalog(file: Path, catalog: LogCatalog) -> None:
    with file.open("rb") as stream:
        meta = read_meta(stream, file.name)
        catalog.begin_file(meta.other.get("Version"))
        for begin, data, _ in read_blocks(stream, meta.length, file.name):
            if (
                not catalog.stores_all_tuples
                and meta.filetype == "XLOG"
                and not any(id_ in data for id_ in _ENCODED_DEFINING_IDS)
            ):
                continue
            for row in decode_rows(data, begin, file.name):
                # The rows of a snapshot are ordered by space id.
                is_user = row.space_id is not None and row.space_id > SYSTEM_SPACE_ID_MAX
                if is_user and meta.filetype == "SNAP" and not catalog.stores_all_tuples:
                    return
                if catalog.stores_all_tuples or row.space_id in DEFINING_SPACES:
                    catalog.process(row)


@dataclass(frozen=True)
class PrintedRowFilter:
    """Conditions on rows; a row must fulfil all of them. Conditions that are not set are always fulfilled."""

    spaces: Collection[str] = ()
    """Names or ids of spaces."""
    key: Sequence[Any] | None = None
    """The values of the primary key's parts."""
    types: Collection[str] = ()
    """Types of requests, such as INSERT."""
    origins: Collection[str] = ()
    """Replica ids or uuids of instances."""
    first_lsn: int | None = None
    last_lsn: int | None = None
    """Range of lsns, both inclusive."""
    since_microseconds: int | None = None
    until_microseconds: int | None = None
    """Microseconds since 1970; `until_microseconds` is exclusive."""

    def matches(self, logged_row: RowWithContext, catalog: LogCatalog) -> bool:
        """Return whether a row fulfils all conditions; the catalog has the names as of this row."""
        row = logged_row.row
        return (
            (not self.types or row.type in self.types)
            and _is_in_lsn_range(row.lsn, self.first_lsn, self.last_lsn)
            and self._is_in_time_range(row.timestamp)
            and (not self.spaces or self._is_of_spaces(row.space_id, catalog))
            and (not self.origins or self._is_of_origins(row.replica_id, catalog))
            and (self.key is None or self._has_key(logged_row))
        )

    def _is_in_time_range(self, moment: int | None) -> bool:
        if self.since_microseconds is None and self.until_microseconds is None:
            return True
        since, until = self.since_microseconds, self.until_microseconds
        return moment is not None and (since is None or moment >= since) and (until is None or moment < until)

    def _is_of_spaces(self, space_id: int | None, catalog: LogCatalog) -> bool:
        return any(number == space_id for name in self.spaces for number in catalog.space_ids_of(name))

    def _is_of_origins(self, replica_id: int | None, catalog: LogCatalog) -> bool:
        id_ = 0 if replica_id is None else replica_id
        return str(id_) in self.origins or catalog.uuid_by_replica_id.get(id_, "").lower() in self.origins

    def _has_key(self, logged_row: RowWithContext) -> bool:
        values, key = key_values(logged_row), self.key or ()
        return values is not None and len(values) == len(key) and all(map(is_same_value, values, key))


def key_values(logged_row: RowWithContext) -> list[Any] | None:
    """Return the values of a row's key; None for an INSERT, REPLACE or UPSERT of an unknown space."""
    if logged_row.definition is not None:
        return logged_row.definition.key_values_of_row(logged_row.row.key, logged_row.row.tuple)
    return None if logged_row.row.key is None else list(decode(logged_row.row.key))


def is_same_value(key_part: Any, requested: Any) -> bool:
    """Return whether a part of a key equals a requested value, or, if a text is requested, has this text.

    The text of a datetime is in ISO 8601 (`2026-11-26T04:25:00Z`), in any time zone; without one it is UTC.
    """
    if isinstance(requested, str) and isinstance(key_part, datetime):
        return _moment(requested) == key_part
    if isinstance(requested, str) and not isinstance(key_part, str | bytes):
        return str(key_part) == requested
    return bool(comparable_value(key_part) == comparable_value(requested))


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _is_in_lsn_range(lsn: int | None, first: int | None, last: int | None) -> bool:
    if first is None and last is None:
        return True
    return lsn is not None and (first is None or lsn >= first) and (last is None or lsn <= last)

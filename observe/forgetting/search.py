"""Searches all files below some folders for keys, decompressed: the proof that nothing holds them any more.

Folders may be on any file system that `pyarrow.fs` opens: an object store is listed and read, too.
Parquet files, of tables and of checkpoints of their logs, are searched in all columns and in their footers; logs block
by block; any other file, such as a commit, a deletion vector or a key copy, by its bytes. Rows of the space
with the key are found whatever the key's length; bytes only of keys that are long enough (`ForgottenKeys.searched`).
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import zstandard

from observe.forgetting.keys import ForgottenKeys
from observe.forgetting.marks import Marks
from pipeline.retention.forgotten import COLUMNS, SPACE_COLUMNS
from schemas.errors import XlogError
from schemas.names import exact_table
from sources.xlog.reader.plain_rows import decode_rows, read_blocks, read_meta
from warehouse.delta.stored_rows import stored_batches

LOG_SUFFIXES = (".xlog", ".snap", ".vylog", ".run", ".index")
CHUNK_BYTES = 1 << 24

_COMPRESSED = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}


@dataclass(frozen=True)
class KeyFinding:
    """A file that holds one of the keys."""

    path: str
    """As `shown_path` returns it."""
    what: str
    """`rows`, `bytes`, or why the file could not be searched."""


def shown_path(fs: pafs.FileSystem, path: str) -> str:
    """Return a path of a file system as users write it, such as `s3://lake/warehouse`."""
    return path if isinstance(fs, pafs.LocalFileSystem) else f"{fs.type_name}://{path}"


@dataclass
class Search:
    """A search of folders for keys."""

    keys: ForgottenKeys
    files: int = 0
    size: int = 0
    """Their size, in bytes."""

    def folder(self, fs: pafs.FileSystem, folder: str) -> Iterator[KeyFinding]:
        """Yield the files below a folder, which may be missing, that hold one of the keys."""
        selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
        for info in sorted(fs.get_file_info(selector), key=lambda info: info.path):
            if info.type == pafs.FileType.File:
                self.files, self.size = self.files + 1, self.size + info.size
                what = self._file(fs, info.path)
                if what is not None:
                    yield KeyFinding(shown_path(fs, info.path), what)

    def _file(self, fs: pafs.FileSystem, path: str) -> str | None:
        """Return what a file holds of the keys, None if nothing."""
        try:
            if path.endswith(LOG_SUFFIXES):
                return self._log(fs, path)
            if path.endswith(".parquet"):
                return self._parquet(fs, path)
            return self._bytes(fs, path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, pa.ArrowException, XlogError) as error:
            return self._bytes(fs, path) or f"not searched: {error}"

    def _has(self, data: bytes) -> bool:
        pattern = self.keys.pattern
        return pattern is not None and pattern.search(data) is not None

    def _log(self, fs: pafs.FileSystem, path: str) -> str | None:
        ids = {space_id for _, space_id in self.keys.space.replicaset_and_space_ids}
        marks, name = Marks(self.keys), PurePosixPath(path).name
        with fs.open_input_file(path) as stream:
            meta = read_meta(stream, name)
            for block in read_blocks(stream, meta.length, name):
                if self._has(block.rows):
                    return "bytes"
                if not self.keys.may_be_in(block.rows):
                    continue
                for row in decode_rows(block.rows, block.start, name):
                    if row.space_id in ids and marks.is_read(row):
                        return "rows"
        return None

    def _parquet(self, fs: pafs.FileSystem, path: str) -> str | None:
        table = PurePosixPath(path).parent.name
        columns = self._compared_columns(table)
        for batch in stored_batches(fs, path):
            if columns and set(columns) <= set(batch.schema.names):
                rows = pa.Table.from_batches([batch.select(list(columns))])
                if pc.any(Marks(self.keys).mark(table, rows)).as_py():
                    return "rows"
            if any(self._has(data) for column in batch.columns for data in _contents(column)):
                return "bytes"
        return self._bytes(fs, path)  # also what is not in a row: the footer, with the bounds of pages

    def _compared_columns(self, table: str) -> tuple[str, ...]:
        own = {name for one in self.keys.space.tables for name in (one, exact_table(one))}
        return SPACE_COLUMNS if table in own else tuple(COLUMNS.get(table, ()))

    def _bytes(self, fs: pafs.FileSystem, path: str) -> str | None:
        longest = max(map(len, self.keys.searched), default=0)
        with fs.open_input_file(path) as stream:
            begin = stream.read(4)
            kind = next((kind for magic, kind in _COMPRESSED.items() if begin.startswith(magic)), None)
            stream.seek(0)
            source: Any = stream
            if kind == "zstd":
                source = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
            elif kind == "gzip":
                source = gzip.GzipFile(fileobj=stream)
            rest = b""
            while data := source.read(CHUNK_BYTES):
                whole = rest + data
                if self._has(whole):
                    return "bytes"
                rest = whole[-longest:] if longest else b""
        return None


def _contents(column: pa.Array) -> Iterator[bytes]:
    """Yield the bytes of all values of a column of any type, of nested ones too; values stay in their order."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        yield from _contents(column.dictionary)
    elif pa.types.is_struct(column.type):
        for child in column.flatten():
            yield from _contents(child)
    elif pa.types.is_map(column.type):
        yield from _contents(column.keys)
        yield from _contents(column.items)
    elif pa.types.is_nested(column.type):
        yield from _contents(column.flatten())
    else:
        # The values of a text column are one buffer: it is searched as a whole.
        for buffer in pa.concat_arrays([column]).buffers()[1:]:
            if buffer is not None:
                yield buffer.to_pybytes()

"""The data files of a table, and the only door to their rows: no other package opens Parquet below a table.

A file's rows have *physical* numbers: their places in the Parquet file, which never change. A deletion vector names the
physical rows of a file that the table no longer has. Every function that returns rows leaves these out, all by
`_LiveRows`, so a caller meets them only as numbers that are missing. Not here: writing files
(`warehouse.delta.data_files`) and commits (`warehouse.delta.commits`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from numpy.typing import NDArray

from schemas.errors import UnsupportedError
from warehouse.delta.deletion_vectors import FEATURE, Descriptor
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_log import LogState, read_log
from warehouse.delta.vector_files import read_vector

SUPPORTED_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        FEATURE,
        "generatedColumns",
        "invariants",
        "variantType",
    }
)
"""The features of Delta that files written by the aggregator support.

Those of constraints and generated columns only as long as the table has none: delta-rs lists them together with others.
"""

COLUMN_MAPPING_READER_VERSION = 2
"""The `minReaderVersion` that shows column mapping in a table whose protocol has no list of features."""

GENERATION_KEY = "delta.generationExpression"
"""The key in the metadata of a generated column that has its expression."""


@dataclass(frozen=True)
class TableFile:
    """A data file of a table, as one version of the table has it: equal if path and deletion vector are equal."""

    path: str
    """Relative to the table's folder, as in the log: a URI, so special characters are percent-encoded."""
    size: int = field(compare=False)
    """In bytes."""
    num_records: int | None = field(compare=False)
    """The number of physical rows, deleted ones too; None if the log does not have it. Most callers want `rows`."""
    vector: Descriptor | None = field(default=None, hash=False)
    """The deletion vector; None if the table has all rows of the file."""

    @property
    def rows(self) -> int | None:
        """The number of rows without deleted ones; None if the log does not have it."""
        if self.num_records is None or self.vector is None:
            return self.num_records
        return self.num_records - self.vector.cardinality

    @property
    def id(self) -> str:
        """The file's path with the id of its vector: two versions with the same ids have the same rows."""
        return self.path if self.vector is None else f"{self.path}#{self.vector.id}"


@dataclass(frozen=True)
class FileKeys:
    """The ranges of keys of a file's row groups, from its footer; keys of deleted rows may be their bounds."""

    rows: tuple[int, ...]
    """The number of physical rows of each row group."""
    least: tuple[bytes | None, ...]
    """The least key of each row group; None for a row group without it in the footer."""
    greatest: tuple[bytes | None, ...]
    """The greatest key of each row group; None for a row group without it in the footer."""


@dataclass(frozen=True)
class NumberedRows:
    """Rows of a file with their physical numbers."""

    numbers: NDArray[np.int64]
    """Ascending; the numbers of deleted rows are missing."""
    rows: pa.Table


LiveFiles = dict[str, tuple[Mapping[str, Any], TableFile]]
"""By path: the action of the log that adds a file, and the file."""


def files_of(table: DeltaTable, name: str) -> list[TableFile]:
    """Return the files of a table at its open version; raise UnsupportedError for unknown features of Delta."""
    check_features(table, name)
    return active_files(table)


def active_files(table: DeltaTable) -> list[TableFile]:
    """Return the files of a table at its open version, whose features are checked or do not matter."""
    return [file for file, _, _ in files_with_bounds(table, "")]


def files_with_bounds(table: DeltaTable, column: str) -> list[tuple[TableFile, int | None, int | None]]:
    """Return (file, least value of a column, greatest value) for each file; None if the log does not have a value."""
    actions = pa.table(table.get_add_actions(flatten=True))
    low, high = f"min.{column}", f"max.{column}"
    names = ("path", "size_bytes", "num_records", low, high)
    unknown = [None] * actions.num_rows
    columns = [actions[name].to_pylist() if name in actions.column_names else unknown for name in names]
    vectors = _vectors(table)
    return [
        (TableFile(path, size, records, vectors.get(path)), least, greatest)
        for path, size, records, least, greatest in zip(*columns, strict=True)
    ]


def _vectors(table: DeltaTable) -> dict[str, Descriptor]:
    """Return the deletion vectors of a table's files at its open version, by path; delta-rs does not show them."""
    if FEATURE not in (table.protocol().reader_features or ()):
        return {}
    root, _, name = unquote(table.table_uri).rstrip("/").rpartition("/")
    return read_log(_folder(root.removeprefix("file://")), name, int(table.version())).vectors()


def _folder(root: str) -> WarehouseLocation:
    if "://" not in root:
        return WarehouseLocation(root, pafs.LocalFileSystem(), root)
    fs, path = pafs.FileSystem.from_uri(quote(root.replace("s3a://", "s3://", 1), safe=":/"))
    return WarehouseLocation(root, fs, path)


def live_files(state: LogState, known: LiveFiles | None = None) -> list[TableFile]:
    """Return the files of a table as its log has them; those of an earlier version, `known`, are not made again."""
    before = {} if known is None else dict(known)
    found: LiveFiles = {}
    for path, add in state.adds.items():
        old = before.get(path)
        if old is None or old[0] is not add:
            # A data file never changes, so its statistics are parsed once.
            known_records = None if old is None else old[1].num_records
            records = _num_records(add) if known_records is None else known_records
            old = add, TableFile(path, int(add["size"]), records, state.vector_of(path))
        found[path] = old
    if known is not None:
        known.clear()
        known.update(found)
    return [file for _, file in found.values()]


def _num_records(add: Mapping[str, Any]) -> int | None:
    stats = add.get("stats")
    found = None if not stats else json.loads(stats).get("numRecords")
    return None if found is None else int(found)


def check_features(table: DeltaTable, name: str) -> None:
    """Raise UnsupportedError if a table has features of Delta that files written by the aggregator do not support."""
    protocol = table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    unsupported = sorted(features - SUPPORTED_FEATURES)
    if protocol.min_reader_version == COLUMN_MAPPING_READER_VERSION:
        unsupported.append("columnMapping")
    properties = table.metadata().configuration
    unsupported += [key for key in properties if key.startswith("delta.constraints.")]
    if properties.get("delta.appendOnly") == "true":
        unsupported.append("delta.appendOnly")
    if any(GENERATION_KEY in column.metadata for column in table.schema().fields):
        unsupported.append("generatedColumns")
    if unsupported:
        raise UnsupportedError(
            f"somebody has enabled {', '.join(unsupported)}, which the aggregator's files do not support",
            table=name,
            advice="`aggregator rebuild SPACE` takes it back (docs/foreign-changes.md)",
        )


class OpenFile:
    """An open data file: for several reads of one file. All other callers use `read_file`."""

    def __init__(self, location: WarehouseLocation, table: str, file: TableFile) -> None:
        self._live = _LiveRows.of(location, table, file)
        stream = location.fs.open_input_file(location.at(table, unquote(file.path)))
        self._parquet = _PlainFile(stream, pre_buffer=False)

    @property
    def footer(self) -> pq.FileMetaData:
        """The file's footer: its counts and bounds are of physical rows."""
        return self._parquet.metadata

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows that are read."""
        return _with_plain_types(self._parquet.schema_arrow.empty_table()).schema

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read columns, by default all, of the rows that are not deleted."""
        return self._live.of_rows(0, self._parquet.read(columns=_names(columns))).rows

    def read_row_groups(
        self, columns: Sequence[str] | None = None, groups: Iterable[int] | None = None
    ) -> Iterator[NumberedRows]:
        """Yield columns, by default all, of row groups, by default all of them, with the rows' physical numbers."""
        wanted = None if groups is None else frozenset(groups)
        first = 0
        for number in range(self.footer.num_row_groups):
            if wanted is None or number in wanted:
                rows = self._parquet.read_row_groups([number], columns=_names(columns))
                yield self._live.of_rows(first, rows)
            first += self.footer.row_group(number).num_rows

    def row_numbers(self) -> NDArray[np.int64]:
        """Return the physical numbers of the rows that `read` returns."""
        return self._live.numbers(0, self.footer.num_rows)

    def key_ranges(self, column: str) -> FileKeys:
        """Return the least and the greatest value of a key column in each row group, from the file's footer."""
        index = self.footer.schema.names.index(column)
        groups = [self.footer.row_group(number) for number in range(self.footer.num_row_groups)]
        bounds = [_bounds(group.column(index).statistics) for group in groups]
        least, greatest = (tuple(one[end] for one in bounds) for end in (0, 1))
        return FileKeys(tuple(group.num_rows for group in groups), least, greatest)

    def close(self) -> None:
        """Close the file."""
        self._parquet.close(force=True)


@contextmanager
def open_file(location: WarehouseLocation, table: str, file: TableFile) -> Iterator[OpenFile]:
    """Open a data file for several reads."""
    opened = OpenFile(location, table, file)
    try:
        yield opened
    finally:
        opened.close()


def read_file(
    location: WarehouseLocation, table: str, file: TableFile, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return columns, by default all, of a file's rows that are not deleted, in the order of the file."""
    with open_file(location, table, file) as opened:
        return opened.read(columns)


def read_row_groups(
    location: WarehouseLocation,
    table: str,
    file: TableFile,
    columns: Sequence[str] | None = None,
    groups: Iterable[int] | None = None,
) -> Iterator[NumberedRows]:
    """Yield columns, by default all, of a file's row groups, by default all, with the rows' physical numbers."""
    with open_file(location, table, file) as opened:
        yield from opened.read_row_groups(columns, groups)


def open_footer(location: WarehouseLocation, table: str, file: TableFile) -> pq.FileMetaData:
    """Return a file's footer, for its statistics: its counts and bounds are of physical rows."""
    with location.fs.open_input_file(location.at(table, unquote(file.path))) as stream:
        return pq.read_metadata(stream)


def date_removals(
    location: WarehouseLocation,
    table: str,
    removed: Iterable[TableFile],
    with_new_vectors: Iterable[TableFile],
) -> None:
    """Set the time of removed files and replaced vectors to now, on a local disk.

    VACUUM removes a file by its age once the log has forgotten its removal. So earlier versions stay readable for as
    long as VACUUM keeps files, although the log of a table with deletion vectors forgets after an hour.
    """
    if not location.is_local:
        return
    gone = list(removed)
    # Many vectors lie in one file, which `place` names.
    vectors = {
        file.vector.place: file.vector for file in (*gone, *with_new_vectors) if file.vector is not None
    }
    for path in (*(file.path for file in gone), *(vector.path for vector in vectors.values())):
        if path is not None:
            with contextlib.suppress(OSError):
                os.utime(location.at(table, unquote(path)))


@dataclass(frozen=True)
class _LiveRows:
    """Which rows of a file are not deleted: the one place where deleted rows are left out."""

    deleted: NDArray[np.int64] | None
    """The physical numbers of deleted rows, ascending; None if there are none."""

    @classmethod
    def of(cls, location: WarehouseLocation, table: str, file: TableFile) -> _LiveRows:
        return cls(None if file.vector is None else read_vector(location, table, file.vector))

    def numbers(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the physical numbers of the rows from `first` on that are not deleted."""
        numbers = np.arange(first, first + count, dtype=np.int64)
        return numbers if self.deleted is None else numbers[self._keep(first, count)]

    def of_rows(self, first: int, rows: pa.Table) -> NumberedRows:
        """Return those of some physical rows, which begin with `first`, that are not deleted."""
        numbers = self.numbers(first, rows.num_rows)
        if len(numbers) < rows.num_rows:
            rows = rows.filter(pa.array(self._keep(first, rows.num_rows)))
        return NumberedRows(numbers, rows)

    def _keep(self, first: int, count: int) -> NDArray[np.bool_]:
        keep = np.ones(count, np.bool_)
        if self.deleted is not None:
            begin, end = np.searchsorted(self.deleted, (first, first + count))
            keep[self.deleted[begin:end] - first] = False
        return keep


def _names(columns: Collection[str] | None) -> list[str] | None:
    return None if columns is None else list(columns)


def _bounds(statistics: pq.Statistics | None) -> tuple[bytes | None, bytes | None]:
    if statistics is None or not statistics.has_min_max:
        return None, None
    return bytes(statistics.min), bytes(statistics.max)


class _PlainFile(pq.ParquetFile):  # type: ignore[misc]
    """A Parquet file that is read with Arrow's plain binary and string types, where delta-rs wrote view types."""

    def read(self, *arguments: Any, **named: Any) -> pa.Table:
        return _with_plain_types(super().read(*arguments, **named))

    def read_row_groups(self, *arguments: Any, **named: Any) -> pa.Table:
        return _with_plain_types(super().read_row_groups(*arguments, **named))


def _with_plain_types(rows: pa.Table) -> pa.Table:
    plain = pa.schema([field.with_type(_plain_type(field.type)) for field in rows.schema])
    return rows if plain.types == rows.schema.types else rows.cast(plain)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    return kind

"""The writer's open tables, and its commits of data files that tasks have written: one per table, in milliseconds.

Tables stay open between batches, so that a table's log is read once; only the holder of the writer lock keeps them. Its
commits have the marks of its fence (`warehouse.fence`), and a table with another writer's mark is not opened.
Not here: writing the files (`warehouse.data_files`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction
from pyspark.sql.types import StructField, StructType, VariantType

from schemas.errors import UnsupportedError, WarehouseError
from warehouse.data_files import DataFile, now_millis
from warehouse.fence import SHARED_TABLES, Fence, marked_commit, newest_mark
from warehouse.location import WarehouseLocation
from warehouse.read import size_of
from warehouse.write import AGGREGATOR_COMMIT, SUPPORTED_FEATURES

COLUMN_MAPPING_READER_VERSION = 2
"""The `minReaderVersion` that shows column mapping in a table whose protocol has no list of features."""

COMMITS_PER_LOG_CLEANUP = 100
"""Expired log files are removed once per this many commits of a table: delta-rs lists all commits each time."""


@dataclass(frozen=True)
class TableFile:
    """A data file of a table."""

    path: str
    """Relative to the table's folder."""
    size: int
    """In bytes."""
    rows: int | None
    """The number of rows; None if the log does not have it."""


@dataclass
class OpenTables:
    """The tables of a warehouse that its writer has open."""

    location: WarehouseLocation
    fence: Fence | None = None
    """The writer's fence; None for reading, and in tests, which commit without marks."""
    before_epoch: Callable[[], None] = lambda: None
    """Called before each commit of an epoch."""
    _tables: dict[str, DeltaTable] = field(default_factory=dict)
    _checked_tables: set[str] = field(default_factory=set)
    _refreshed_tables: set[str] | None = None

    def has(self, table: str) -> bool:
        """Return whether a table exists; an open one does, so that a batch does not list the log of each table."""
        return table in self._tables or self.location.has(table)

    def read(self, table: str) -> DeltaTable | None:
        """Open a table at its newest version, for reading; return None if there is no table.

        Raises:
            LockError: Another writer has committed to it.
        """
        return self._read(table, must_refresh=True)

    def open(self, table: str) -> DeltaTable:
        """Open a table at its newest version, to be written.

        Raises:
            WarehouseError: The table does not exist.
            UnsupportedError: It has features of Delta that the aggregator's files do not support.
            LockError: Another writer has committed to it.
        """
        return self._open(
            table, must_refresh=self._refreshed_tables is None or table not in self._refreshed_tables
        )

    @contextmanager
    def refreshed_once_per_table(self) -> Iterator[None]:
        """Inside, read new commits of a table's log only at its first use and before each commit to it.

        Each reading lists a folder of the store. `SHARED_TABLES` are still read at each use.
        """
        before, self._refreshed_tables = self._refreshed_tables, set()
        try:
            yield
        finally:
            self._refreshed_tables = before

    def _open(self, table: str, *, must_refresh: bool) -> DeltaTable:
        if self._refreshed_tables is not None and table not in SHARED_TABLES:
            self._refreshed_tables.add(table)
        found = self._read(table, must_refresh=must_refresh)
        if found is None:
            raise WarehouseError("the table is not there", table=table, warehouse=self.location.root)
        if table not in self._checked_tables:
            _check_features(found, table)
            self._checked_tables.add(table)
        return found

    def _read(self, table: str, *, must_refresh: bool) -> DeltaTable | None:
        found = self._tables.get(table)
        if found is None:
            found = self.location.open(table)
            if found is None:
                return None
        elif must_refresh and self.location.may_have(table, int(found.version()) + 1):
            found.update_incremental()
        if self.fence is not None:
            self.fence.check(table, found)
        self._tables[table] = found
        return found

    def change(self, table: str, make: Callable[[DeltaTable, CommitProperties], object]) -> int:
        """Make one commit to a table, and return the table's version after it.

        Args:
            make: Makes the commit: called with the open table and the properties that the commit must have.

        Raises:
            WarehouseError: The commit failed.
            LockError: The lock is lost.
        """
        opened, fence = self._open(table, must_refresh=True), self.fence
        if fence is None or table in SHARED_TABLES:
            mark, properties = None, AGGREGATOR_COMMIT
        else:
            fence.check_lock()
            mark = fence.next_mark()
            properties = marked_commit(mark)
        base = int(opened.version())
        try:
            make(opened, properties)
            if self.location.may_have(table, base + 2):
                opened.update_incremental()
                version = int(opened.version())
            else:  # nobody else has committed; the new version is read at its first use
                version = base + 1
                if self._refreshed_tables is not None:
                    self._refreshed_tables.discard(table)
        except (DeltaError, OSError) as error:
            self.forget(table)
            opened = self._open_if_committed(table, mark, error)
            version = int(opened.version())
        if fence is not None and mark is not None:
            fence.remember_commit(table, mark, version, base)
            if version != base + 1:
                fence.check(table, opened)
        return version

    def _open_if_committed(self, table: str, mark: int | None, error: Exception) -> DeltaTable:
        """Open a table after the error of a commit that was made nevertheless: only the store's answer was lost.

        Raises:
            WarehouseError: The commit was not made.
        """
        refused = WarehouseError(f"the table cannot be written: {error}", table=table)
        if mark is None or self.fence is None:
            raise refused from error
        try:
            found = self.location.open(table)
        except (DeltaError, OSError):
            found = None
        if found is None:
            raise refused from error
        if newest_mark(found) != mark:
            self.fence.check(table, found)
            raise refused from error
        return found

    def keep_open(self, table: str, opened: DeltaTable) -> None:
        """Keep a table open that the caller has opened at its newest version."""
        self._tables[table] = opened

    def forget(self, table: str | None = None) -> None:
        """Close a table, by default all tables: its next use reads the log again."""
        if table is None:
            self._tables.clear()
            self._checked_tables.clear()
        else:
            self._tables.pop(table, None)
            self._checked_tables.discard(table)

    def version(self, table: str) -> int:
        """Return the newest version of a table."""
        return int(self.open(table).version())

    def files(self, table: str) -> list[TableFile]:
        """Return the files of a table."""
        return _files(pa.table(self.open(table).get_add_actions(flatten=True)))

    def files_between(self, table: str, column: str, first: int, last: int) -> list[TableFile]:
        """Return the files that may have rows with a value from `first` to `last` in a column, by statistics."""
        actions = pa.table(self.open(table).get_add_actions(flatten=True))
        low, high = f"min.{column}", f"max.{column}"
        if low in actions.column_names and high in actions.column_names:
            beyond = pc.or_(pc.less(actions[high], first), pc.greater(actions[low], last))
            actions = actions.filter(pc.invert(pc.fill_null(beyond, False)))
        return _files(actions)

    def column_bounds(self, table: str, column: str) -> list[tuple[TableFile, int | None, int | None]]:
        """Return (file, least value of a column, greatest value) for each file; an unknown value is None."""
        actions = pa.table(self.open(table).get_add_actions(flatten=True))
        unknown = [None] * actions.num_rows
        low, high = (
            actions[name].to_pylist() if name in actions.column_names else unknown
            for name in (f"min.{column}", f"max.{column}")
        )
        return list(zip(_files(actions), low, high, strict=True))

    def size(self, table: str) -> int:
        """Return the total size of a table's files, in bytes."""
        return size_of(self.open(table))

    def commit(
        self, table: str, added: Iterable[DataFile], removed: Iterable[tuple[TableFile, bool]] = ()
    ) -> int:
        """Add files to a table and remove others in one commit, if there are any; return the table's version.

        Args:
            removed: Files to remove, each with Delta's `dataChange`: False if all rows of the file are in added files.

        Raises:
            WarehouseError: The commit failed.
        """
        moment = now_millis()
        actions: list[AddAction | RemoveAction] = [
            AddAction(one.path, one.size, {}, moment, one.is_new_data, one.stats) for one in added
        ]
        actions += [RemoveAction(one.path, changes, moment, one.size, {}) for one, changes in removed]
        if not actions:
            return self.version(table)

        def write(opened: DeltaTable, properties: CommitProperties) -> None:
            opened.create_write_transaction(
                actions,
                "append",
                opened.schema(),
                commit_properties=properties,
                post_commithook_properties=_after_commit(opened),
            )

        return self.change(table, write)

    def columns(self, table: str) -> StructType:
        """Return the columns of a table."""
        return columns_of(self.open(table))

    def add_columns(self, table: str, wanted: StructType) -> bool:
        """Add those of the wanted columns that a table lacks, and return whether it lacked any."""
        known = set(self.columns(table).names)
        new = StructType([field for field in wanted if field.name not in known])
        if not new.fields:
            return False
        self._add_columns(table, new)
        return True

    def set_properties(self, table: str, values: Mapping[str, str]) -> int:
        """Set properties of a table, and return its version; raise WarehouseError if the commit failed."""

        def write(opened: DeltaTable, properties: CommitProperties) -> None:
            opened.alter.set_table_properties(
                dict(values), raise_if_not_exists=False, commit_properties=properties
            )

        version = self.change(table, write)
        self.forget(table)
        return version

    def _add_columns(self, table: str, new: StructType) -> None:
        fields = Schema.from_json(new.json()).fields

        def write(opened: DeltaTable, properties: CommitProperties) -> None:
            opened.alter.add_columns(fields, commit_properties=properties)

        self.change(table, write)
        self.forget(table)

    def replace(self, table: str, added: Iterable[DataFile], schema: StructType) -> int:
        """Replace all files and the columns of a table, and return its version.

        Raises:
            WarehouseError: The commit failed.
        """
        wanted = Schema.from_json(schema.json())
        actions = [AddAction(one.path, one.size, {}, now_millis(), True, one.stats) for one in added]
        features = self.open(table).protocol().writer_features or ()
        if _has_variant(schema) and "variantType" not in features:
            # An overwrite changes the columns of a table, but not its protocol's features; adding a column does.
            self._add_columns(table, StructType([StructField("_variant", VariantType())]))

        def write(opened: DeltaTable, properties: CommitProperties) -> None:
            opened.create_write_transaction(actions, "overwrite", wanted, commit_properties=properties)

        self.change(table, write)
        self.forget(table)
        return self.version(table)


def _after_commit(opened: DeltaTable) -> PostCommitHookProperties:
    """Return what delta-rs does after a commit: it writes checkpoints as due, and sometimes removes old commits."""
    is_due = (int(opened.version()) + 1) % COMMITS_PER_LOG_CLEANUP == 0
    return PostCommitHookProperties(cleanup_expired_logs=None if is_due else False)


def _has_variant(schema: StructType) -> bool:
    return any(isinstance(field.dataType, VariantType) for field in schema)


def columns_of(table: DeltaTable) -> StructType:
    """Return the columns of an open table."""
    return StructType.fromJson(json.loads(table.schema().to_json()))


def files_of(table: DeltaTable, name: str) -> list[TableFile]:
    """Return the files of a table at its open version.

    Raises:
        UnsupportedError: It has features of Delta beyond plain files, such as deletion vectors.
    """
    _check_features(table, name)
    return _files(pa.table(table.get_add_actions(flatten=True)))


def _files(actions: pa.Table) -> list[TableFile]:
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    return [TableFile(*one) for one in zip(*columns, strict=True)]


def _check_features(table: DeltaTable, name: str) -> None:
    protocol = table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    unsupported = sorted(features - SUPPORTED_FEATURES)
    if protocol.min_reader_version == COLUMN_MAPPING_READER_VERSION:
        unsupported.append("columnMapping")
    unsupported += [key for key in table.metadata().configuration if key.startswith("delta.constraints.")]
    if unsupported:
        raise UnsupportedError(
            f"somebody has enabled {', '.join(unsupported)}, which the aggregator's files do not support",
            table=name,
            advice="remove it by ALTER TABLE ... DROP FEATURE or DROP CONSTRAINT, or restore the table",
        )

"""The writer's open tables, and its commits of data files that tasks have written: one per table, in milliseconds.

Tables stay open between batches, so that a table's log is read once; only the holder of the writer lock keeps them. Its
commits have the marks of its fence (`warehouse.delta.fence`), and a table with another writer's mark is not opened.

A commit of files is made at exactly the version after the one that the writer has read. If others have committed
meanwhile, their commits are read: commits that change no rows are accepted, and the others are refused by name
(`warehouse.delta.foreign_commits`). Not here: writing the files (`warehouse.delta.data_files`).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructType

from schemas.errors import ForeignChangeError, TableMovedError, WarehouseError
from warehouse.delta.commit_actions import (
    WRITE,
    Operation,
    add_again,
    add_file,
    commit_info,
    metadata_with,
    protocol_for,
    remove_file,
    transaction,
    vectors_enabled,
    with_users_columns,
)
from warehouse.delta.data_files import DataFile, now_millis
from warehouse.delta.deletion_vectors import ENABLING_PROPERTY, FEATURE, RowNumbers, bitmap_of
from warehouse.delta.fence import APP_ID, SHARED_TABLES, Fence, marked_commit, newest_mark
from warehouse.delta.foreign_changes import refuse_foreign_changes
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.log_commit import VersionTakenError, put_commit
from warehouse.delta.open_logs import OpenLogs
from warehouse.delta.read import columns_of, size_of
from warehouse.delta.table_files import (
    TableFile,
    active_files,
    check_features,
    date_removals,
    files_with_bounds,
)
from warehouse.delta.table_log import Action, LogState
from warehouse.delta.vector_files import vector_reader, write_vectors
from warehouse.delta.write import AGGREGATOR_COMMIT, CHECKPOINT_INTERVAL, COMMITS_PER_CHECKPOINT

log = logging.getLogger(__name__)

PutCommit = Callable[[WarehouseLocation, str, int, Iterable[Action]], None]
"""Writes the commit of a version of a table, if the table does not have the version yet."""

COMMIT_ATTEMPTS = 10
"""How often a commit is tried while others, whose commits change no rows, commit first."""

COMMITS_PER_LOG_CLEANUP = 100
"""Expired log files are removed once per this many commits of a table: delta-rs lists all commits each time."""


@dataclass
class OpenTables:
    """The tables of a warehouse that its writer has open."""

    location: WarehouseLocation
    fence: Fence | None = None
    """The writer's fence; None for reading, and in tests, which commit without marks."""
    before_epoch: Callable[[], None] = lambda: None
    """Called before each commit of an epoch."""
    put: PutCommit = put_commit
    """Writes the commit of a version (`warehouse.delta.log_commit.put_commit`)."""
    vector_bytes: int = 0
    """The size of the deletion vectors that this writer has written."""
    _tables: dict[str, DeltaTable] = field(default_factory=dict)
    _heads: dict[str, int] = field(default_factory=dict)
    """The versions of this writer's last commits, which the open tables may not have read yet."""
    _listed_versions: dict[str, int] = field(default_factory=dict)
    _refused: dict[str, int] = field(default_factory=dict)
    """The last version without changes of others, of tables that somebody else has changed."""
    _checked_tables: set[str] = field(default_factory=set)
    _refreshed_tables: set[str] | None = None

    def __post_init__(self) -> None:
        self._logs = OpenLogs(self.location)

    def has(self, table: str) -> bool:
        """Return whether a table exists; an open one does, so that a batch does not list the log of each table."""
        return table in self._tables or self.location.has(table)

    def read(self, table: str) -> DeltaTable | None:
        """Open a table at its newest version, for reading; None if there is none. LockError: see `open`."""
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
            check_features(found, table)
            self._checked_tables.add(table)
        return found

    def _read(self, table: str, *, must_refresh: bool) -> DeltaTable | None:
        found = self._tables.get(table)
        if found is None:
            found = self.location.open(table)
            if found is None:
                return None
            before = self._refused.get(table, None if self.fence is None else self.fence.last_version(table))
            if before is not None:
                self._refuse_foreign_changes(table, before, int(found.version()))
        elif must_refresh and self.location.may_have(table, int(found.version()) + 1):
            self._refresh(table, found)
        if self.fence is not None:
            self.fence.check(table, found)
        self._tables[table] = found
        return found

    def _refresh(self, table: str, opened: DeltaTable) -> None:
        """Read the new commits of an open table; raise ForeignChangeError if somebody else's changed its rows."""
        before = self._head(table, opened)
        try:
            opened.update_incremental()
        except DeltaError as error:  # such as: newest commits that this writer has read are gone
            self.forget(table)
            raise WarehouseError(f"its log cannot be read any more: {error}", table=table) from error
        self._refuse_foreign_changes(table, before, int(opened.version()))

    def _head(self, table: str, opened: DeltaTable) -> int:
        """Return the newest version of a table that this writer knows."""
        return max(int(opened.version()), self._heads.get(table, -1))

    def _refuse_foreign_changes(self, table: str, before: int, after: int) -> None:
        if after > before:  # others may have enabled a feature
            self._checked_tables.discard(table)
        if self.fence is None or table in SHARED_TABLES:
            return
        try:
            refuse_foreign_changes(self.location, table, before, after)
        except ForeignChangeError:
            self._refused[table] = before
            self.forget(table)
            raise
        self._refused.pop(table, None)

    def change(self, table: str, make: Callable[[DeltaTable, CommitProperties], object]) -> int:
        """Make one commit to a table by delta-rs, and return the table's version after it.

        Raises:
            WarehouseError: The commit failed.
            LockError: The lock is lost.
        """
        opened = self._open(table, must_refresh=True)

        def with_mark(_version: int, mark: int | None) -> None:
            make(opened, AGGREGATOR_COMMIT if mark is None else marked_commit(mark))

        return self._change(table, opened, with_mark)

    def _change(self, table: str, opened: DeltaTable, make: Callable[[int, int | None], None]) -> int:
        """Make one commit on top of the newest known version; return the table's version after it."""
        fence, mark = self.fence, None
        if fence is not None and table not in SHARED_TABLES:
            fence.check_lock()
            mark = fence.next_mark()
        base = self._head(table, opened)
        if not self.location.has_version(table, base):
            self.forget(table)
            raise WarehouseError(f"version {base} of the table is not there any more", table=table)
        try:
            make(base + 1, mark)
            if self.location.may_have(table, base + 2):
                opened.update_incremental()
                version = int(opened.version())
            else:  # nobody else has committed; the new version is read at its first use
                version = base + 1
                if self._refreshed_tables is not None:
                    self._refreshed_tables.discard(table)
        except (DeltaError, OSError, VersionTakenError) as error:
            self.forget(table)
            opened = self._open_if_committed(table, mark, error)
            version = int(opened.version())
        self._heads[table] = version
        if fence is not None and mark is not None:
            fence.remember_commit(table, mark, version, base)
            if version != base + 1:
                fence.check(table, opened)
                self._refuse_foreign_changes(table, base, version)
        return version

    def _open_if_committed(self, table: str, mark: int | None, error: Exception) -> DeltaTable:
        """Open a table after the error of a commit that was made nevertheless: only the store's answer was lost."""
        refused = (
            TableMovedError("somebody else has committed to it meanwhile", table=table)
            if isinstance(error, VersionTakenError)
            else WarehouseError(f"the table cannot be written: {error}", table=table)
        )
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
            self._logs.forget()
            self._heads.clear()
            self._checked_tables.clear()
        else:
            self._tables.pop(table, None)
            self._logs.forget(table)
            self._heads.pop(table, None)
            self._checked_tables.discard(table)

    def version(self, table: str) -> int:
        """Return the newest version of a table."""
        own = self._own_version(table)
        return int(self.open(table).version()) if own is None else own

    def _own_version(self, table: str) -> int | None:
        """Return a table's version if this writer made it and knows its log: then nothing need be read."""
        head = self._heads.get(table)
        if head is None or table in SHARED_TABLES or not self._logs.is_at(table, head):
            return None
        return None if self.location.may_have(table, head + 1) else head

    def files(self, table: str) -> list[TableFile]:
        """Return the files of a table."""
        version = self._own_version(table)
        if version is None:
            opened = self.open(table)
            version = int(opened.version())
            if not _has_vectors(opened):
                self._listed_versions[table] = version
                return active_files(opened)
        self._listed_versions[table] = version
        return self._logs.files(table, version)

    def log(self, table: str) -> LogState:
        """Return what the log says about the open version of a table."""
        return self._logs.state(table, self.version(table))

    def allows_vectors(self, table: str) -> bool:
        """Return whether a table allows deletion vectors already."""
        if self._own_version(table) is None and not _has_vectors(self.open(table)):
            return False
        state = self.log(table)
        return FEATURE in state.features and state.properties.get(ENABLING_PROPERTY) == "true"

    def files_between(self, table: str, column: str, first: int, last: int) -> list[TableFile]:
        """Return the files that may have rows with a value from `first` to `last` in a column, by statistics."""
        return [
            file
            for file, low, high in self.column_bounds(table, column)
            if (low is None or low <= last) and (high is None or high >= first)
        ]

    def column_bounds(self, table: str, column: str) -> list[tuple[TableFile, int | None, int | None]]:
        """Return (file, least value of a column, greatest value) for each file; an unknown value is None."""
        return files_with_bounds(self.open(table), column)

    def size(self, table: str) -> int:
        """Return the total size of a table's files, in bytes."""
        return size_of(self.open(table))

    def commit(
        self,
        table: str,
        added: Iterable[DataFile],
        removed: Iterable[tuple[TableFile, bool]] = (),
        deleted: Mapping[TableFile, RowNumbers] | None = None,
    ) -> int:
        """Add files to a table, remove others and delete rows in one commit; return the table's version.

        Without a change there is no commit.

        Args:
            removed: Files to remove, each with Delta's `dataChange`: False if all rows of the file are in added files.

        Raises:
            WarehouseError: The commit failed.
            TableMovedError: Somebody else has moved rows of these files to other files.
            ForeignChangeError: Somebody else has changed the table.
        """
        new, gone, vectors = list(added), list(removed), dict(deleted or {})
        if not (new or gone or vectors):
            return self.version(table)
        named = [*(file for file, _ in gone), *vectors]
        for _ in range(COMMIT_ATTEMPTS):
            opened = self._tables.get(table) or self.open(table)
            self._require_live(table, opened, named)  # it may read new commits of others
            base = self._head(table, opened)
            changes = self._file_actions(table, base, new, gone, vectors)

            def write(version: int, mark: int | None, changes: Sequence[Action] = changes) -> None:
                self._put(table, version, mark, changes)

            try:
                version = self._change(table, opened, write)
            except TableMovedError:
                self._refuse_foreign_changes(table, base, int(self.open(table).version()))
                continue
            date_removals(self.location, table, [file for file, _ in gone], vectors)
            self._after_commit(table, version)
            return version
        raise TableMovedError(
            f"others committed to it first, {COMMIT_ATTEMPTS} times",
            table=table,
            advice="let them wait while the job runs, then start again",
        )

    def _require_live(self, table: str, opened: DeltaTable, named: Sequence[TableFile]) -> None:
        if not named or self._listed_versions.get(table) == self._head(table, opened):
            return
        live = set(self.files(table))
        lost = next((file for file in named if file not in live), None)
        if lost is not None:
            raise TableMovedError("somebody has moved rows to other files", table=table, file=lost.path)

    def _file_actions(
        self,
        table: str,
        base: int,
        added: Sequence[DataFile],
        removed: Sequence[tuple[TableFile, bool]],
        deleted: Mapping[TableFile, RowNumbers],
    ) -> list[Action]:
        moment = now_millis()
        found: list[Action] = []
        if deleted:
            state = self._logs.state(table, base)
            found += vectors_enabled(state, forgets_soon=self.location.is_local)
            reader, whole = vector_reader(self.location), {}
            for file, rows in deleted.items():
                whole[file.path] = bitmap_of(rows)
                if file.vector is not None:
                    whole[file.path] |= reader.bitmap(table, file.path, file.vector)
            descriptors = write_vectors(self.location, table, whole)
            self.vector_bytes += sum(one.size for one in descriptors.values())
            for path, descriptor in descriptors.items():
                reader.keep(table, path, descriptor, whole[path])
                found.append(remove_file(state.adds[path], moment, is_change=True))
                found.append(add_again(state.adds[path], descriptor))
        for file, is_change in removed:
            old: dict[str, Any] = {"path": file.path, "size": file.size}
            if file.vector is not None:
                old["deletionVector"] = file.vector.as_action()
            found.append(remove_file(old, moment, is_change=is_change))
        found += [add_file(one.path, one.size, one.stats, moment, is_change=one.is_new_data) for one in added]
        return found

    def _put(
        self,
        table: str,
        version: int,
        mark: int | None,
        changes: Sequence[Action],
        operation: Operation = WRITE,
    ) -> None:
        """Write a commit with the information and the mark of each of the aggregator's commits."""
        moment = now_millis()
        is_append = not any(change.get("remove") or change.get("metaData") for change in changes)
        head = [commit_info(*operation, moment, is_append=is_append)]
        if mark is not None:
            head.append(transaction(APP_ID, mark, moment))
        actions = [*head, *changes]
        self.put(self.location, table, version, actions)
        self._logs.continue_by(table, version, actions)

    def _after_commit(self, table: str, version: int) -> None:
        """Write a checkpoint of a table's log if one is due, and sometimes remove expired commits."""
        opened = self._tables.get(table)
        if opened is None or version % int(COMMITS_PER_CHECKPOINT) != 0:
            return
        interval = int(opened.metadata().configuration.get(CHECKPOINT_INTERVAL, COMMITS_PER_CHECKPOINT))
        try:
            if version % interval == 0:
                opened.update_incremental()
                opened.create_checkpoint()
            if version % COMMITS_PER_LOG_CLEANUP == 0:
                opened.cleanup_metadata()
        except (DeltaError, OSError) as error:
            log.warning("a checkpoint of the log of %s cannot be written: %s", table, error)

    def columns(self, table: str) -> StructType:
        """Return the columns of a table."""
        own = self._own_version(table)
        return columns_of(self.open(table)) if own is None else self._logs.columns(table, own)

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
        """Replace all files and the columns of a table, and return its version; raise WarehouseError if that fails."""
        state, moment = self.log(table), now_millis()
        changes = [
            *protocol_for(state, schema),
            metadata_with(state, schema=with_users_columns(state, schema)),
            *(remove_file(add, moment, is_change=True) for add in state.adds.values()),
            *(add_file(one.path, one.size, one.stats, moment, is_change=True) for one in added),
        ]
        return self.put_changes(table, changes)

    def put_changes(self, table: str, changes: Sequence[Action], operation: Operation = WRITE) -> int:
        """Commit actions to a table after the version that is open, and return the new version."""
        opened = self._tables.get(table) or self.open(table)
        version = self._change(table, opened, lambda v, mark: self._put(table, v, mark, changes, operation))
        self.forget(table)
        self._refused.pop(table, None)
        return version


def _has_vectors(opened: DeltaTable) -> bool:
    return FEATURE in (opened.protocol().reader_features or ())

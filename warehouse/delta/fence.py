"""The fence: it stops a writer that has lost the lock, but does not know it yet, from committing an epoch.

Each writer has a number, one more than the writer before it, and each of its commits has a *mark*: its number and a
count of its commits, as a `txn` action of Delta under the application id `APP_ID` (Delta protocol, "Transaction
Identifiers"). Two rules give one history of epochs, even if a writer sleeps at any step, and whatever clocks show:

1. A commit with a mark succeeds only if the table's last mark is the one that the writer has seen: delta-rs refuses it
   after any other commit with the same application id. Users' commits have no mark, and do not matter here.
2. A writer takes its number by a commit to `_epochs`, before it reads the last epoch. So no earlier writer commits an
   epoch after that. It remembers each table's mark when it rolls tables back at its start, and stops if a table has
   another mark: what a woken writer has committed there is not read, and is rolled back at the next start.

Not here: the lock, which lets others wait instead of failing (`warehouse.lock.lock`), and rolling back
(`warehouse.system_tables.epochs`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from schemas.errors import LockError, WarehouseError
from warehouse.delta.commit_actions import USER_METADATA
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import EPOCHS, RID

log = logging.getLogger(__name__)

APP_ID = "tarantool-aggregator-writer"

SHARED_TABLES = frozenset({"_cluster", "_requests", "_validations", RID})
"""Tables to which processes without the lock commit, too: their commits do not depend on an epoch."""

NUMBER_ATTEMPTS = 10
"""How often a writer tries to take a number before other writers do."""

_COUNT_BITS = 32
"""The low bits of a mark, which have the count of the writer's commits; the bits above have its number."""


def newest_mark(table: DeltaTable) -> int | None:
    """Return the newest mark in the log of an open table; None if no commit has one."""
    found: int | None = table.transaction_version(APP_ID)
    return found


def writer_of(mark: int | None) -> int:
    """Return the number of the writer in a mark; 0 for None."""
    return 0 if mark is None else mark >> _COUNT_BITS


def marked_commit(mark: int) -> CommitProperties:
    """Return the properties with which a commit gets a mark."""
    return CommitProperties(
        custom_metadata={"userMetadata": USER_METADATA}, app_transactions=[Transaction(APP_ID, mark, None)]
    )


@dataclass
class Fence:
    """The marks that one writer has seen in the tables, to notice commits of another writer."""

    writer: int
    check_lock: Callable[[], None]
    """Raises if the writer has lost the lock."""
    _commit_count: int = 0
    _mark_by_table: dict[str, int | None] = field(default_factory=dict)
    _version_by_table: dict[str, int] = field(default_factory=dict)
    _has_ended: bool = False

    def next_mark(self) -> int:
        """Return the mark for the next commit of this writer."""
        self._commit_count += 1
        return (self.writer << _COUNT_BITS) | self._commit_count

    def remember_start(self, table: str, opened: DeltaTable) -> None:
        """Remember the mark and the version of a table before this writer's first commit to it."""
        if table not in SHARED_TABLES:
            self._mark_by_table[table] = newest_mark(opened)
            self._version_by_table[table] = int(opened.version())

    def remember_commit(self, table: str, mark: int, version: int, base_version: int) -> None:
        """Remember a commit of this writer on top of `base_version`, after which the table is at `version`.

        If `version` is not `base_version` + 1, somebody else has committed, too: the caller then calls `check`.
        """
        self._mark_by_table[table] = mark
        if version == base_version + 1:
            self._version_by_table[table] = version

    def last_version(self, table: str) -> int | None:
        """Return the last version of a table that this writer has seen or made; None if it has seen none."""
        return self._version_by_table.get(table)

    def forget(self, table: str) -> None:
        """Forget the mark of a removed table, since a new table may get its name."""
        self._mark_by_table.pop(table, None)
        self._version_by_table.pop(table, None)

    def end(self) -> None:
        """Stop checking marks: the writer has released the lock, commits no more, and only reads."""
        self._has_ended = True

    def check(self, table: str, opened: DeltaTable) -> None:
        """Check an open table for what others did to it since this writer saw it.

        Raises:
            LockError: Another writer has committed to it.
            WarehouseError: It is at an earlier version: its folder was lost, or an older one is in its place.
        """
        version, seen = int(opened.version()), self._version_by_table.get(table)
        # A version never changes, and looking up a mark reads the log.
        if self._has_ended or table in SHARED_TABLES or seen == version:
            return
        if seen is not None and version < seen:
            raise WarehouseError(f"the table is at version {version}, and was at version {seen}", table=table)
        mark = newest_mark(opened)
        if table not in self._mark_by_table:
            # Created since the start: by this writer, or by another one that has not written to it.
            self._mark_by_table[table] = mark if writer_of(mark) == self.writer else None
        if mark != self._mark_by_table[table]:
            raise LockError(
                f"writer {writer_of(mark)} has committed to {table} while this one, writer {self.writer}, runs",
                advice="start again: that rolls back what the other one left unfinished",
            )
        self._version_by_table[table] = version


def take_writer_number(location: WarehouseLocation, check_lock: Callable[[], None]) -> Fence:
    """Take the next number of a writer, and return the fence with it: earlier writers commit no epoch after that.

    Raises:
        LockError: Other writers took the number first, `NUMBER_ATTEMPTS` times.
        DeltaError, OSError: Nobody took it, but it could not be written: a full disk, or one that is read-only.
    """
    # Columns have Spark's types, which commands that only look at commits do not need.
    from schemas.tables import SYSTEM_TABLES
    from warehouse.delta.write import create

    create(location, EPOCHS, SYSTEM_TABLES[EPOCHS])
    failures: dict[int, Exception] = {}
    for _ in range(NUMBER_ATTEMPTS):
        table = location.open(EPOCHS)
        if table is None:
            break
        fence = Fence(writer_of(newest_mark(table)) + 1, check_lock)
        check_lock()
        mark = fence.next_mark()
        try:
            table.create_write_transaction(
                [], "append", table.schema(), commit_properties=marked_commit(mark)
            )
        except (DeltaError, OSError) as error:
            failures[int(table.version())] = error
            log.debug("writer number %d is taken, or the store's answer was lost: %s", fence.writer, error)
        else:
            base = int(table.version())
            table.update_incremental()
            fence.remember_commit(EPOCHS, mark, int(table.version()), base)
            fence.check(EPOCHS, table)
            return fence
    if len(failures) == 1:  # the table has stayed as it was
        raise failures.popitem()[1]
    raise LockError(
        f"other writers took each number first, in {NUMBER_ATTEMPTS} attempts", advice="start again"
    )

"""The fence: it stops a writer that lost the lock, and does not know it yet, from committing an epoch.

Each writer has a number, one more than the one before it, and each of its commits has a *mark*: its number and a count
of its commits, as a `txn` action of Delta under the application id `APP` (Delta protocol, "Transaction Identifiers").
Two rules give one history of epochs, whichever writer sleeps at whichever step, and whatever clocks show:

1. A commit with a mark succeeds only on top of the mark that it was made from. delta-rs refuses it where a commit with
   the same application id came in between; commits without a mark, of users, are no obstacle.
2. A writer takes its number by a commit to `_epochs`, before it reads the last epoch. So no writer before it commits an
   epoch any more. It remembers the mark of each table as it rolled it back, and goes no further where a table shows
   another one: what a woken writer has left there is neither read nor built upon, and rolled back at the next start.

Not here: the lock, which lets others wait instead of failing (`warehouse.lock`), and rolling back (`warehouse.epochs`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from schemas.errors import LockError
from schemas.tables import SYSTEM_TABLES
from warehouse.newest_epoch import EPOCHS, RID
from warehouse.place import Place
from warehouse.write import MARK, create

log = logging.getLogger(__name__)

APP = "tarantool-aggregator-writer"

SHARED = frozenset({"_cluster", "_requests", "_validations", RID})
"""Tables to which others than the holder of the lock commit; each such commit is right whoever makes it."""

ATTEMPTS = 10

_COUNT_BITS = 32


def mark_of(table: DeltaTable) -> int | None:
    """Return the mark of the last commit with one, as the open table shows it."""
    found: int | None = table.transaction_version(APP)
    return found


def writer_of(mark: int | None) -> int:
    """Return the number of the writer that made a commit; 0 where there was none."""
    return 0 if mark is None else mark >> _COUNT_BITS


def marked(mark: int) -> CommitProperties:
    """Return the properties of a commit with a mark."""
    return CommitProperties(
        custom_metadata={"userMetadata": MARK}, app_transactions=[Transaction(APP, mark, None)]
    )


@dataclass
class Fence:
    """What one writer knows of the marks of the tables.

    Parameters
    ----------
    writer : int
        Its number.
    holds : callable
        Raises where the lock is not the writer's any more.

    """

    writer: int
    holds: Callable[[], None]
    _count: int = 0
    _marks: dict[str, int | None] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)
    _is_over: bool = False

    def next_mark(self) -> int:
        """Return a mark that no other commit has."""
        self._count += 1
        return (self.writer << _COUNT_BITS) | self._count

    def starts_from(self, table: str, opened: DeltaTable) -> None:
        """Remember that a table is, as it is open, what the last epoch names."""
        if table not in SHARED:
            self._marks[table] = mark_of(opened)
            self._versions[table] = int(opened.version())

    def committed(self, table: str, mark: int, version: int, base: int) -> None:
        """Remember a commit of this writer, made from version `base`, after which the table is at `version`.

        If that is not the next one, the caller checks who has committed besides.
        """
        self._marks[table] = mark
        if version == base + 1:
            self._versions[table] = version

    def forget(self, table: str) -> None:
        """Forget a table that is removed: another one may get its name."""
        self._marks.pop(table, None)
        self._versions.pop(table, None)

    def end(self) -> None:
        """Stop checking marks: the writer has released the lock, commits no more, and only reads."""
        self._is_over = True

    def check(self, table: str, opened: DeltaTable) -> None:
        """Raise where an open table has a commit of another writer since this one has seen it.

        Raises
        ------
        LockError

        """
        version = int(opened.version())
        # A version never changes, and looking up a mark reads the log.
        if self._is_over or table in SHARED or self._versions.get(table) == version:
            return
        mark = mark_of(opened)
        if table not in self._marks:
            # Created since the start: by this writer, or by one that has put nothing into it.
            self._marks[table] = mark if writer_of(mark) == self.writer else None
        if mark != self._marks[table]:
            raise LockError(
                f"writer {writer_of(mark)} has committed to {table} beside this one, writer {self.writer}",
                advice="start again: what it left unfinished is rolled back then",
            )
        self._versions[table] = version


def take_number(place: Place, holds: Callable[[], None]) -> Fence:
    """Return the fence of a new writer, behind which no earlier one commits an epoch.

    Parameters
    ----------
    place : Place
    holds : callable
        Raises where the lock is not the writer's any more.

    Raises
    ------
    LockError
        Other writers did the same each time.

    """
    create(place, EPOCHS, SYSTEM_TABLES[EPOCHS])
    for _ in range(ATTEMPTS):
        table = place.open(EPOCHS)
        if table is None:
            break
        fence = Fence(writer_of(mark_of(table)) + 1, holds)
        holds()
        mark = fence.next_mark()
        try:
            table.create_write_transaction([], "append", table.schema(), commit_properties=marked(mark))
        except (DeltaError, OSError) as error:
            log.debug("writer %d: its number is taken, or the answer was lost: %s", fence.writer, error)
        else:
            base = int(table.version())
            table.update_incremental()
            fence.committed(EPOCHS, mark, int(table.version()), base)
            fence.check(EPOCHS, table)
            return fence
    raise LockError(f"no number was left for this writer in {ATTEMPTS} attempts", advice="start again")

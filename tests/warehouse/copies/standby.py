"""A primary and the location of its standby, as real Delta tables with RIDs, without Spark."""

from pathlib import Path
from typing import Any, cast

from pyspark.sql import SparkSession

from tests.warehouse.warehouses import Made
from udfs.rid import operations
from warehouse.copies import files
from warehouse.copies.primary import PrimaryLock
from warehouse.copies.rid import RidTable, new_ulid
from warehouse.copies.sync import SyncOptions, SyncResult, sync
from warehouse.delta.newest_epoch import last_epoch
from warehouse.warehouse import Warehouse


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours catches it."""


class Pair:
    """Two locations; the first is a primary with three epochs.

    Args:
        of: A warehouse that exists, instead of a new one.
    """

    def __init__(self, folder: Path, of: Made | None = None) -> None:
        self.a = of or Made(folder / "a")
        self.b = Made(folder / "b")
        if of is None:
            self.a.create()
            self.batch_a("first", "accounts")
            self.batch_a("second")
            self.batch_a("third", "accounts", "ledger_of_a")

    def batch_a(self, value: str, *tables: str) -> int:
        """Commit a batch on the primary, guarded as a job is."""
        return batch(self.a, value, *tables)

    def batch_b(self, value: str, *tables: str) -> int:
        """Commit a batch on the standby, guarded as a job is."""
        return batch(self.b, value, *tables)

    def mark_a(self) -> None:
        """Set the mark on the primary, as a copy elsewhere does."""
        epoch = last_epoch(self.a.location)
        RidTable(self.a.location).update(
            "copy", epoch, lambda n: operations.mark_unconnected_copy(n, new_ulid()), peer="c"
        )

    def crash_a(self) -> None:
        """Leave the lock of the primary in its RID, and find it so."""
        RidTable(self.a.location).update("lock", last_epoch(self.a.location), operations.lock)
        with guarded(self.a):
            pass

    def sync(self, **options: Any) -> SyncResult:
        """Copy the primary onto the standby."""
        return sync(self.a.location, self.b.location, SyncOptions(**options))

    def start(self) -> None:
        """Begin a copy that is killed at once."""
        kept = files.log_step_done

        def reached(step: str) -> None:
            raise Killed(step)

        files.log_step_done = reached
        try:
            self.sync()
        except Killed:
            pass
        finally:
            files.log_step_done = kept


def guarded(made: Made) -> PrimaryLock:
    """Return the lock of a warehouse's writer."""
    return PrimaryLock(Warehouse(cast("SparkSession", None), str(made.folder.parent)), "a test")


def batch(made: Made, value: str, *tables: str) -> int:
    """Commit a batch under the lock of a primary."""
    with guarded(made) as lock:
        lock.check()
        return made.batch(value, *tables)

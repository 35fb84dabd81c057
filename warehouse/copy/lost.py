"""Epochs of a target that its source does not have: a copy over the target would lose them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warehouse.newest_epoch import BEFORE_THE_FIRST, EPOCHS
from warehouse.place import Place
from warehouse.read import rows_of


@dataclass(frozen=True)
class Lost:
    """The epochs of one warehouse after a point.

    Parameters
    ----------
    after : int
        The last epoch that is not lost, `BEFORE_THE_FIRST` where all are.
    epochs, rows : int
        How many, and how many rows of the logs they settled.
    first, last : datetime or None
        When they were committed.
    tables : tuple of str
        The tables that they wrote, sorted.

    """

    after: int
    epochs: int
    rows: int
    first: datetime | None
    last: datetime | None
    tables: tuple[str, ...]

    def __str__(self) -> str:
        if not self.epochs:
            return f"no epoch after {self.after}: nothing would be lost"
        whole = self.after == BEFORE_THE_FIRST
        since = "all of it" if whole else f"epochs {self.after + 1} to {self.after + self.epochs}"
        return (
            f"lost would be {since}: {self.rows} rows of the logs, committed {self.first} to {self.last}, "
            f"in {len(self.tables)} tables: {', '.join(self.tables)}"
        )


def lost_after(place: Place, epoch: int) -> Lost:
    """Return the epochs of a warehouse after one of them, with their rows."""
    table = place.open(EPOCHS)
    if table is None:
        return Lost(epoch, 0, 0, None, None, ())
    columns = ["epoch", "rows", "committed_at", "versions"]
    rows = sorted(rows_of(table, columns), key=lambda row: int(row["epoch"]))
    kept = [row for row in rows if row["epoch"] <= epoch]
    given_up = [row for row in rows if row["epoch"] > epoch]
    before = dict(kept[-1]["versions"]) if kept else {}
    after = dict(given_up[-1]["versions"]) if given_up else {}
    changed = sorted(name for name, version in after.items() if before.get(name) != version)
    times = [row["committed_at"] for row in given_up if row["committed_at"] is not None]
    return Lost(
        epoch,
        # Maintenance may have removed rows of old epochs: they are lost all the same.
        int(given_up[-1]["epoch"]) - epoch if given_up else 0,
        sum(row["rows"] or 0 for row in given_up),
        min(times, default=None),
        max(times, default=None),
        tuple(changed),
    )

"""The gaps of a warehouse that are open, from the rows of `_gaps`; the newest row of a gap has its state. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.states import GapState

TABLE = "_gaps"
CLOSED = (GapState.FILLED, GapState.HEALED)
KEY = ("replicaset_id", "local_id", "first_lsn", "last_lsn", "kind")
"""Columns that identify a gap; `local_id` is the replica id whose rows are missing."""


@dataclass(frozen=True)
class Gap:
    """One row of `_gaps`: the fields are its columns."""

    replicaset_id: int
    source: str | None
    local_id: int | None
    first_lsn: int | None
    last_lsn: int | None
    kind: str
    state: str
    file: str | None

    def __str__(self) -> str:
        origin = f"replicaset {self.replicaset_id}, source {self.source}, replica id {self.local_id}"
        return f"{self.kind}: {origin}: lsns {self.first_lsn} to {self.last_lsn}"

    @property
    def key(self) -> tuple[object, ...]:
        """The values that all rows of one gap share."""
        return tuple(getattr(self, name) for name in KEY)


def gap_of(row: Mapping[str, Any]) -> Gap:
    """Convert a row of the table."""
    return Gap(**{name: row[name] for name in Gap.__dataclass_fields__})


def open_gaps(rows: Iterable[Mapping[str, Any]]) -> tuple[Gap, ...]:
    """Return the gaps that are open, from all rows of the table in any order."""
    newest: dict[object, Gap] = {}
    for row in sorted(rows, key=lambda row: int(row["epoch"])):
        gap = gap_of(row)
        newest[gap.key] = gap
    return tuple(gap for gap in newest.values() if gap.state == GapState.OPEN)

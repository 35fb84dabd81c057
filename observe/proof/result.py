"""What came of comparing one space of one replicaset, and how people and `_validations` read it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from observe.tuple_text import tuple_text

EXAMPLES = 5
"""So many differing keys are shown with both tuples; all are counted."""


@dataclass(frozen=True)
class Difference:
    """A key whose tuple on the server is another one than in the tables; None: there is no tuple."""

    key: bytes
    server: bytes | None
    tables: bytes | None

    def __str__(self) -> str:
        return f"key {shown(self.key)}: server {shown(self.server)}, tables {shown(self.tables)}"


@dataclass(frozen=True)
class SpaceProof:
    """What came of one space of one replicaset.

    Parameters
    ----------
    table, replicaset, peer : str
        The space's table, the replicaset's uuid, and the server that was asked.
    epoch : int
        The tables' epoch at which the comparison began.
    rows : int
        Tuples of the server that were compared.
    looked_again : int
        Keys that differed at the first look.
    differences : tuple of Difference
    moving : int
        Keys that changed at each look: nothing can be said of them.
    error : str or None
        Why the space was not compared, or not to the end.
    seconds : float

    """

    table: str
    replicaset: str
    peer: str
    epoch: int
    rows: int = 0
    looked_again: int = 0
    differences: tuple[Difference, ...] = ()
    moving: int = 0
    error: str | None = None
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the tables have what the server has."""
        return not self.differences and self.error is None

    def __str__(self) -> str:
        told = f"{self.table} of replicaset {self.replicaset}, asked {self.peer}: "
        if self.differences:
            told += f"{len(self.differences)} of {self.rows} keys differ"
        elif self.error is None:
            told += f"{self.rows} tuples are equal"
        if self.error is not None:
            told += f"{', and then ' if self.differences else ''}not compared: {self.error}"
        if self.moving:
            told += f"; {self.moving} keys changed at each look and are not compared"
        return "\n  ".join([told, *map(str, self.differences[:EXAMPLES])])

    def row(self) -> dict[str, Any]:
        """Return it as a row of `_validations`."""
        return {
            "table": self.table,
            "expectation": f"each key is as the servers of replicaset {self.replicaset} have it",
            "holds": self.holds,
            "rows": self.rows,
            "unexpected": len(self.differences),
            "examples": json.dumps([str(one) for one in self.differences[:EXAMPLES]])
            if self.differences
            else None,
            "error": self.error,
            "source": None,
        }


def shown(data: bytes | None) -> str:
    """Return MessagePack as text; what is not MessagePack as hexadecimal digits."""
    if data is None:
        return "none"
    return tuple_text(data)

"""The result of comparing one space of one replicaset, as text and as a row of `_validations`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from observe.tuple_text import tuple_text

EXAMPLES = 5
"""Maximum number of differing keys that a result shows; it counts all of them."""


@dataclass(frozen=True)
class Difference:
    """A key with different tuples on the server and in the tables; None if the key has no tuple."""

    key: bytes
    server: bytes | None
    tables: bytes | None

    def __str__(self) -> str:
        return (
            f"key {value_text(self.key)}: server {value_text(self.server)}, tables {value_text(self.tables)}"
        )


@dataclass(frozen=True)
class SpaceProof:
    """The result of comparing one space of one replicaset.

    Parameters
    ----------
    table, replicaset, peer : str
        The space's table, the replicaset's uuid, and the server.
    epoch : int
        The newest epoch when the comparison began.
    rows : int
        Number of tuples that were read from the server.
    looked_again : int
        Number of keys that differed at the first comparison, and were compared again.
    differences : tuple of Difference
    moving : int
        Number of keys without a result, since they changed during each comparison.
    error : str or None
        Why the space was compared only in part or not at all.
    skipped : str or None
        What cannot be compared in such a space, and why; unlike an error, the proof holds without it.
    seconds : float
        Duration of the comparison.

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
    skipped: str | None = None

    @property
    def holds(self) -> bool:
        """Whether no key differs and no error occurred."""
        return not self.differences and self.error is None

    def __str__(self) -> str:
        text = f"{self.table} of replicaset {self.replicaset}, asked {self.peer}: "
        if self.differences:
            text += f"{len(self.differences)} of {self.rows} keys differ"
        elif self.error is None:
            text += f"{self.rows} tuples {'were read, no key differs' if self.moving else 'are equal'}"
        if self.error is not None:
            text += f"{', and then ' if self.differences else ''}not compared: {self.error}"
        if self.skipped is not None:
            text += f"; skipped: {self.skipped}"
        if self.moving:
            text += f"; {self.moving} keys changed during each comparison and have no result"
        return "\n  ".join([text, *map(str, self.differences[:EXAMPLES])])

    def row(self) -> dict[str, Any]:
        """Return the result as a row of `_validations`."""
        return {
            "table": self.table,
            "expectation": f"each key is as the servers of replicaset {self.replicaset} have it",
            "holds": self.holds,
            "rows": self.rows,
            "unexpected": len(self.differences),
            "examples": json.dumps([str(difference) for difference in self.differences[:EXAMPLES]])
            if self.differences
            else None,
            "error": self.error,
            "source": None,
        }


def value_text(data: bytes | None) -> str:
    """Return a key or tuple as text (bytes that are not MessagePack in hex); "none" for None."""
    return "none" if data is None else tuple_text(data)

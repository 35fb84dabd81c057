"""What one replicaset holds under a key, and the rows of its log that changed it: plain data.

Not here: what a row does to a version (`udfs.versions.fold_state`, `udfs.versions.fold`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class RowChange(NamedTuple):
    """One row of the log, about one key.

    Parameters
    ----------
    kind : str
        INSERT, REPLACE, UPDATE, UPSERT or DELETE.
    tuple : bytes or None
        MessagePack of INSERT, REPLACE and UPSERT.
    operations : bytes or None
        MessagePack of UPDATE and UPSERT; an UPDATE's may stand in `tuple`, as in the log.
    index_base : int or None
        Body key 0x15; None, which means 0, where it is absent.
    global_id, lsn : int
        Who made the change, and its number.
    timestamp : int or None
        Microseconds since 1970; None for a row without a usable time.
    layout : int
        Which of the formats was valid at the row.

    """

    kind: str
    tuple: bytes | None
    operations: bytes | None
    index_base: int | None
    global_id: int
    lsn: int
    timestamp: int | None
    layout: int = 0


class Version(NamedTuple):
    """What one replicaset holds under a key.

    Parameters
    ----------
    tuple : bytes or None
        None where it was deleted.
    global_id, lsn : int
        The last change that counted.
    timestamp : int or None
        Its time in microseconds, never behind that of a version of the same life that it replaced: a life begins
        with an insertion where there was no tuple, and a deletion ends it.
    created : int or None
        Time of the life's insertion; None where deleted or unknown.
    layout : int
        Format of the tuple.

    """

    tuple: bytes | None
    global_id: int
    lsn: int
    timestamp: int | None
    created: int | None
    layout: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that cannot be applied, and why; `code` is Tarantool's, None where the refusal is ours."""

    global_id: int
    lsn: int
    code: int | None
    reason: str

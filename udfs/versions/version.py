"""The version of a key in one replicaset, and the rows of the log that change it: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class RowChange(NamedTuple):
    """One row of the log that changes one key.

    Parameters
    ----------
    kind : str
        INSERT, REPLACE, UPDATE, UPSERT or DELETE.
    tuple : bytes or None
        MessagePack of INSERT, REPLACE and UPSERT.
    operations : bytes or None
        MessagePack of UPDATE and UPSERT; an UPDATE's may be in `tuple`, as in the log.
    index_base : int or None
        Body key 0x15; None if it is absent, which means 0.
    global_id, lsn : int
        The instance that made the change, and the number of the change there.
    timestamp : int or None
        Microseconds since 1970; None for a row without a usable time.
    layout : int
        Index of the format that was valid at the row.

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
    """A version of a key: its tuple in one replicaset, or its deletion.

    Parameters
    ----------
    tuple : bytes or None
        None if it was deleted.
    global_id, lsn : int
        The last change that had an effect.
    timestamp : int or None
        Time of that change in microseconds. It never goes back within a life, which begins with the insertion of a
        missing tuple and ends with its deletion.
    created : int or None
        Time of the life's insertion; None if deleted or unknown.
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
    """A row that cannot be applied, and why; `code` is Tarantool's, or None if only the aggregator refuses it."""

    global_id: int
    lsn: int
    code: int | None
    reason: str

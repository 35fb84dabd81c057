"""One replicaset's version of a key, and the order of such versions: plain data.

The order is (sequence, replicaset uuid, instance uuid, lsn); unknown values come first. It depends on the
versions alone, never on when they arrived.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Candidate(NamedTuple):
    """One replicaset's version of a key.

    Parameters
    ----------
    tuple : bytes or None
        Exact MessagePack; None for a deleted version.
    replicaset, instance : str
        Uuids of the replicaset that has the version and of the instance that wrote it ("" for a snapshot's row).
    lsn : int
    timestamp : int or None
        Microseconds since 1970; None for a snapshot's row.
    created : int or None
        When the tuple was inserted; same unit.
    sequence : bytes or None
        The configured sequence fields as comparable bytes (`udfs.keys.sequence`); None if none are configured.
    value : bytes or None
        The field that `max` or `min` compares, as comparable bytes; it begins with 0 if there is no value.
    global_id : int
        Global id of `instance`; 0 if not known.
    layout : int
        Index of the tuple's format among the table's formats.

    """

    tuple: bytes | None
    replicaset: str
    instance: str
    lsn: int
    timestamp: int | None = None
    created: int | None = None
    sequence: bytes | None = None
    value: bytes | None = None
    global_id: int = 0
    layout: int = 0


Place = tuple[Any, ...]
"""The sort key of a version; comparable within one policy."""


def known(value: Any) -> Place:
    """Return a value as a sort key that puts None below all others."""
    return (value is not None, value) if value is not None else (False,)


def place(candidate: Candidate) -> Place:
    """Return the sort key of a version; the greatest one of a key is its last writer's.

    If a version has no user's sequence, either it is deleted or no version has one and the timestamps decide.
    """
    when = known(candidate.sequence), known(candidate.timestamp if candidate.sequence is None else None)
    return (*when, candidate.replicaset, candidate.instance, candidate.lsn)

"""One replicaset's version of a key as a policy sees it, and the order in which versions meet: plain data.

The order is (sequence, replicaset uuid, instance uuid, lsn), with what is unknown below all else. It depends on the
versions alone, never on when they came. Not here: what a policy makes of it (`udfs.before_replace.policies`).
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Candidate(NamedTuple):
    """One replicaset's version of a key.

    Parameters
    ----------
    tuple : bytes or None
        Exact MessagePack; None where the version was deleted.
    replicaset, instance : str
        Uuids: whose version it is, and who changed it last ("" for a snapshot's row).
    lsn : int
    timestamp : int or None
        Microseconds since 1970; None for a snapshot's row.
    created : int or None
        When the tuple was inserted, likewise.
    sequence : bytes or None
        The fields that the user named, as bytes in order (`udfs.keys.sequence`); None where none were named.
    value : bytes or None
        The field that `max` or `min` compares, likewise; it begins with 0 where there is no value.
    global_id : int
        Of `instance`; 0 where it is not known.
    layout : int
        Which of the table's formats the tuple has.

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
"""Where a version stands in the order; comparable with those of the same policy."""


def known(value: Any) -> Place:
    """Return a value so that an unknown one is below all others."""
    return (value is not None, value) if value is not None else (False,)


def place(candidate: Candidate) -> Place:
    """Return where a version stands: the last one of a key is its last writer's.

    A version without the user's sequence is a deleted one, or every version has none and the timestamps decide.
    """
    when = known(candidate.sequence), known(candidate.timestamp if candidate.sequence is None else None)
    return (*when, candidate.replicaset, candidate.instance, candidate.lsn)

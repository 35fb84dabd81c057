"""One replicaset's version of a key: plain data.

Versions are ordered by (sequence, replicaset uuid, instance uuid, lsn); if none is configured, the sequence is the
timestamp. Unknown values come first. The order depends on the versions alone, never on when they arrived.
"""

from __future__ import annotations

from typing import NamedTuple


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

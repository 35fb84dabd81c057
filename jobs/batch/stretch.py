"""One segment as the plan needs it: a part of a file, or rows that waited. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Stretch:
    """One segment as the plan needs it: a file's part, or rows that waited.

    Parameters
    ----------
    vclock : mapping of int to int
        The header's VClock of a file; empty for rows that waited.
    server : str or None
        The version of the server that wrote it.
    vinyl : frozenset of int
        Of a snapshot: ids of the vinyl spaces whose rows are read with it.
    is_spool : bool
        Whether the daemon wrote it: a snapshot then has the rows of vinyl spaces too.
    announced : mapping of int to str, or None
        The source's `_cluster` where the stretch begins, replica id to instance uuid; None where nobody asked.
    heals : bool
        Of a snapshot: it is a generation although the tables are ahead of it.

    """

    segment: int
    replicaset_uuid: str
    source: str
    file: str
    instance_uuid: str | None
    is_snapshot: bool
    vclock: Mapping[int, int]
    server: str | None = None
    vinyl: frozenset[int] = frozenset()
    announced: Mapping[int, str] | None = None
    is_spool: bool = False
    heals: bool = False

"""Which server wrote the rows of a log whose header names the one before: an upgrade is found by its own rows.

A server that stops behind a snapshot leaves a log without rows. The one that starts next, perhaps of another version,
writes its rows into that log and keeps the header (seen with 2.6.0, 2.11.9 and 3.9.0). But `box.schema.upgrade` writes
the version of the schema into `_schema`, and no server writes one that is newer than itself: from such a row on, the
rows of the file are of that version at least. In the next file the header says it.

Pure. Headers of spools are exact: the daemon asks the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgpack

from pipeline.plan.position import LogPosition, LogSegment
from pipeline.plan.summary import ControlRow
from schemas.iproto import SystemSpace
from udfs.operations.update_rules import release_number

Upgrade = tuple[LogPosition, str]
"""From which row on the rows of a file are of a version."""

_VERSION_LENGTH = 3


def schema_version(tuple_: bytes | None) -> str | None:
    """Return the version that a tuple of `_schema` names; None for one about something else."""
    fields = msgpack.unpackb(tuple_, strict_map_key=False, raw=True) if tuple_ is not None else []
    numbers = fields[1 : 1 + _VERSION_LENGTH]
    if fields[:1] != [b"version"] or len(numbers) < _VERSION_LENGTH:
        return None
    return ".".join(map(str, numbers)) if all(isinstance(one, int) for one in numbers) else None


def find_upgrades(segment: LogSegment, control: Iterable[ControlRow]) -> tuple[Upgrade, ...]:
    """Return where the version of the server rises within a segment.

    Parameters
    ----------
    segment : LogSegment
        Its `server` is that of its first row.
    control : iterable of ControlRow
        Of its replicaset, in the order of the log.

    """
    if segment.is_snapshot or segment.is_spool or segment.has_waited or segment.server_version is None:
        return ()
    found: list[Upgrade] = []
    version = segment.server_version
    for row in control:
        if row.position.segment != segment.segment or row.space_id != SystemSpace.SCHEMA:
            continue
        said = schema_version(row.tuple)
        if said is not None and release_number(said) > release_number(version):
            version = said
            found.append((row.position, said))
    return tuple(found)


def last_server_version(parts: Sequence[LogSegment], control: Sequence[ControlRow] = ()) -> str | None:
    """Return the version of the server that wrote the last row of the last file of some segments.

    None where no header says a version.
    """
    for part in reversed(parts):
        if part.server_version is not None and not part.has_waited:
            return [part.server_version, *(version for _, version in find_upgrades(part, control))][-1]
    return None

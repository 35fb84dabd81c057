"""Detects upgrades of the Tarantool server within a log file, from rows of `_schema`.

A server that stops right after a snapshot leaves a log without rows. The next server, perhaps of a newer version,
writes its rows into that log and keeps the old header (seen with 2.6.0, 2.11.9 and 3.9.0). But `box.schema.upgrade`
writes the schema's version into `_schema`, and no server writes a version newer than its own. So the rows from there on
were written by that version or a later one. The header of the next file names the new version.

Pure, but for a warning. Headers of spools are always right: the daemon asks the server.
"""

import logging
from collections.abc import Iterable, Sequence
from itertools import pairwise

from pipeline.plan.rows.position import LogPosition, LogSegment
from pipeline.plan.rows.summary import ControlRow
from schemas.errors import TupleError
from schemas.iproto import SystemSpace
from schemas.system_tuples import field_at, fields_of, integer_of
from udfs.operations.update_rules import release_number, release_text, rules_of

log = logging.getLogger(__name__)

Upgrade = tuple[LogPosition, str]
"""The position of the first row of a newer server, and the server's version."""

_TOLD_UPGRADES: set[tuple[str, str]] = set()
"""(Replicaset, file) of upgrades within files that were logged. `box.schema.upgrade` writes each version on the way,
perhaps read in several batches; the server's own version is known with its next file."""

_VERSION_NUMBERS = 3
_NUMBER_MAX = 999
"""The greatest number in a version, such as 11 in 2.11.9 (`udfs.operations.update_rules.release_number`)."""


def server_version_in_schema(tuple_: bytes | None) -> str | None:
    """Return the version in the `version` tuple of `_schema`; None for another or a malformed tuple."""
    try:
        fields = fields_of(tuple_, "a row of _schema")
        if fields[:1] != ["version"]:
            return None
        indices = range(1, 1 + _VERSION_NUMBERS)
        numbers = [integer_of(field_at(fields, i, "a number"), "a number", 0, _NUMBER_MAX) for i in indices]
    except TupleError:
        return None
    return ".".join(map(str, numbers))


def find_upgrades(segment: LogSegment, control: Iterable[ControlRow]) -> tuple[Upgrade, ...]:
    """Return the positions in a segment where the server's version rises."""
    if segment.is_snapshot or segment.is_spool or segment.has_waited or segment.server_version is None:
        return ()
    found: list[Upgrade] = []
    version = segment.server_version
    for row in control:
        if row.position.segment != segment.number or row.space_id != SystemSpace.SCHEMA:
            continue
        logged = server_version_in_schema(row.tuple)
        if logged is not None and release_number(logged) > release_number(version):
            version = logged
            found.append((row.position, logged))
    return tuple(found)


def last_server_version(segments: Sequence[LogSegment], control: Sequence[ControlRow] = ()) -> str | None:
    """Return the server version that wrote the last row of some segments; None if no header names a version."""
    for part in reversed(segments):
        if part.server_version is not None and not part.has_waited:
            return [part.server_version, *(version for _, version in find_upgrades(part, control))][-1]
    return None


def log_upgrade(
    replicaset: str, version_before: str | None, segments: Sequence[LogSegment], control: Sequence[ControlRow]
) -> None:
    """Warn if a replicaset's log changes to a Tarantool version with other rules for operations."""
    known: list[tuple[str, str | None]] = [] if version_before is None else [(version_before, None)]
    for part in segments:
        if part.server_version is not None and not part.has_waited:
            known.append((part.server_version, None))
            known += [(version, part.file) for _, version in find_upgrades(part, control)[-1:]]
    for (old, _), (new, file) in pairwise(known):
        is_told = file is not None and (replicaset, file) in _TOLD_UPGRADES
        if file is not None:
            _TOLD_UPGRADES.add((replicaset, file))
        if rules_of(old) != rules_of(new) and not is_told:
            log.warning(
                "replicaset %s: Tarantool %s writes its logs from here on, and %s wrote them before: their UPSERTs "
                "work differently. Each row is applied by the rules of the server that wrote it; but when the new "
                "server starts, it applies the rows since its last snapshot again, by its own rules. If there was "
                "no snapshot just before the upgrade: aggregator snapshot SPACE",
                *(
                    replicaset,
                    release_text(new) + (" or newer" if file is not None else ""),
                    release_text(old),
                ),
            )

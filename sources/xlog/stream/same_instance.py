"""Finds sources whose files are of one instance, but of two histories.

Two sources may be copies of one instance's directory: then each can take over from the other one. If one was restored
or written to on its own, they differ, and it depends on the leader which rows are in the tables.
"""

from itertools import combinations

from schemas.errors import SourceError, XlogError
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import Listing, LogFile

Listed = tuple[Directory, Listing]
"""A source's directory and its files."""


def contradictory_sources(sources: list[Listed]) -> dict[str, SourceError]:
    """Return an error for each source whose logs differ from those of an earlier source of the same instance."""
    found: dict[str, SourceError] = {}
    for (first, listing), (second, other) in combinations(sources, 2):
        name = second.source.name
        file = None if name in found else first_different_log(first, listing, second, other)
        if file is not None:
            found[name] = SourceError(
                f"it has other rows in {file.name} than the source {first.source.name}, "
                f"and both are of the instance {file.instance_uuid}",
                source=name,
                file=file.name,
                advice="name the directory of each instance once, the one that its server writes",
            )
    return found


def first_different_log(
    first: Directory, listing: Listing, second: Directory, other: Listing
) -> LogFile | None:
    """Return the oldest log that both sources have of one instance and whose common part differs; None if none does."""
    theirs = {log.name: log for log in other.logs}
    for log in listing.logs:
        twin = theirs.get(log.name)
        if twin is None or twin.instance_uuid is None or twin.instance_uuid != log.instance_uuid:
            continue
        try:
            ends = (first.ends.end_of(log, closed=False), second.ends.end_of(twin, closed=False))
            common = min(end.position for end in ends)
            if max(log.header_bytes, twin.header_bytes) >= common:
                continue
            if first.ends.checksum_before(log, common) != second.ends.checksum_before(twin, common):
                return twin
        except XlogError:
            continue  # reading the rows reports the damage
    return None

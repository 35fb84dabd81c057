"""Reads a source's own `_cluster` as it is where a segment begins: instance uuids by replica id.

A server sends `_cluster` to a new subscriber before any row (document 000, steps 5 and 6). The files hold the same:
the newest complete snapshot that is not beyond the segment's file, and the `_cluster` rows of the logs from there on.
Deleted members are left out.
"""

from __future__ import annotations

from schemas.iproto import SystemSpace
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import Listing, LogFile
from sources.xlog.format.selection import Selection
from sources.xlog.reader import reader
from sources.xlog.stream.origins import expelled, files_before, registration
from sources.xlog.stream.segment import Segment

_CLUSTER = Selection(spaces=frozenset({int(SystemSpace.CLUSTER)}))


def members_at(directory: Directory, listing: Listing, segment: Segment) -> dict[int, str]:
    """Return a source's `_cluster` as it is before the first row of a segment.

    Parameters
    ----------
    directory, listing
        The source's.
    segment : Segment
        A segment of a log.

    Returns
    -------
    dict of int to str
        Instance uuids by replica id; empty if there is neither a snapshot nor an older log.

    """
    file = next(log for log in listing.logs if log.name == segment.file)
    members: dict[int, str] = {}
    for before in files_before(directory, listing, file):
        _follow(members, directory, before, directory.ends.of(before, closed=True).position)
    _follow(members, directory, file, segment.begin)
    return members


def _follow(members: dict[int, str], directory: Directory, file: LogFile, end: int) -> None:
    if end <= file.header:
        return
    filesystem, path = directory.opened(file.name)
    for batch in reader.read_rows(
        filesystem, path, file.header, end, _CLUSTER, directory.mode, exact=True, limits=directory.limits
    ):
        for row in batch.to_pylist():
            if row["type"] == "DELETE":
                members.pop(expelled(row) or 0, None)
                continue
            found = registration(row) if row["type"] is not None else None
            if found is not None:
                members[found.replica_id] = found.instance_uuid

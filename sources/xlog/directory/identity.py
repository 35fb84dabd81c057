"""Finds the replicaset that a source belongs to, from the source's own files.

The uuid of a replicaset is a tuple of `_schema` (272): `{'cluster', uuid}` in Tarantool 1.6 to 2.x,
`{'replicaset_uuid', uuid}` in 3.x (`box_set_replicaset_uuid` in `src/box/box.cc`). A snapshot has it in its first
block, since spaces are written in the order of their ids; a log has it only if it began before the instance's first
snapshot. Files of a spool name it in their headers, since a spool may have no snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from schemas.errors import SourceError, TupleError
from schemas.iproto import SystemSpace
from schemas.system_tuples import fields_of, uuid_of
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import Listing, LogFile
from sources.xlog.format.selection import Selection
from sources.xlog.reader import reader

_KEYS = ("cluster", "replicaset_uuid")


def uuids_in(directory: Directory, file: LogFile) -> Iterator[str]:
    """Yield the replicaset uuids in a file's `_schema` rows; lazy, so the first one needs only the first blocks."""
    selection = Selection(spaces=frozenset({int(SystemSpace.SCHEMA)}))
    for batch in reader.read_rows(*directory.locate(file.name), selection=selection, limits=directory.limits):
        for packed in batch["tuple"].to_pylist():
            fields = fields_of(packed, "a row of _schema") if packed is not None else []
            if len(fields) > 1 and fields[0] in _KEYS:
                yield uuid_of(fields[1], "the uuid of the replicaset in _schema")


def _uuid_in_files(directory: Directory, listing: Listing) -> str | None:
    for file in (*listing.logs[-1:], *listing.snapshots[-1:]):
        if file.replicaset_uuid is not None:
            return uuid_of(file.replicaset_uuid, f"the uuid of the replicaset in the header of {file.name}")
    snapshot = directory.newest_complete(listing.snapshots)
    files = ([snapshot] if snapshot is not None else []) + list(listing.logs[:1])
    return next(chain.from_iterable(uuids_in(directory, file) for file in files), None)


def identity_of(directory: Directory, listing: Listing, path_uuid: str | None = None) -> str:
    """Return the uuid of the replicaset that a source belongs to.

    Parameters
    ----------
    directory, listing
        Of the source.
    path_uuid : str, optional
        The uuid that offsets use for a path that is read by itself; then its files are not searched.

    Raises
    ------
    SourceError
        If neither the files nor the source's key `replicaset` name the replicaset, or they contradict each other.

    """
    source = directory.source
    if path_uuid is not None:
        return source.replicaset or path_uuid
    try:
        found = _uuid_in_files(directory, listing)
    except TupleError as error:
        raise SourceError(error.reason, source=source.name) from None
    if source.replicaset is not None and found is not None and found != source.replicaset:
        raise SourceError(
            f"the files are of replicaset {found}, not {source.replicaset}",
            source=source.name,
            advice="correct the source's key replicaset, or its path",
        )
    uuid = found or source.replicaset
    if uuid is None:
        raise SourceError(
            "no file names the replicaset: there is no complete snapshot",
            source=source.name,
            advice="name it with the source's key replicaset",
        )
    return uuid

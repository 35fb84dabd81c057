"""Translates a whitelist of instances into the replica ids of one log, for each part of the log.

Rows name their origin by replica id; `_cluster` (320) maps it to an instance. The ids at the beginning of a file are
those in the newest complete snapshot whose vclock is at most the file's, changed by the `_cluster` rows of the logs
between this snapshot and the file; without such a snapshot, those in the logs from the first one on. An id may get a
new instance
(`box_register_replica` in `src/box/box.cc` inserts a row, or updates its uuid): the old instance is valid up to the
block of that row. A deleted id keeps its last instance until another instance gets the id.

A malformed row of `_cluster`, which no Tarantool server would write, registers nothing.

A row of `_cluster` that an unwanted instance wrote is left out like all rows of this instance. But the registration in
the row must be known: the segment is split there, and its second part names the registration (`Segment.left_out_registrations`).

Rows of a snapshot have no origin and are not filtered. Rows of local spaces belong to the instance that wrote the file.

`members_at` reads `_cluster` where a segment begins, without deleted members, as a server sends it to a new subscriber
before any row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from schemas.errors import TupleError, UnknownInstanceError
from schemas.iproto import VCLOCK_MAX, SystemSpace
from schemas.system_tuples import field_at, fields_of, replica_id_of, uuid_of
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import Listing, LogFile
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import is_at_most
from sources.xlog.stream.segment import OriginSpan, Segment

_ID_FIELD, _UUID_FIELD = 0, 1
_CLUSTER_ROWS = Selection(space_ids=frozenset({int(SystemSpace.CLUSTER)}))


@dataclass(frozen=True)
class IdAssignment:
    """A row of `_cluster` that assigns a replica id to an instance, valid from the block at `position` on.

    `origin_id` and `lsn` are those of the row itself; `origin_id` is 0 in a snapshot.
    """

    position: int
    origin_id: int
    lsn: int
    replica_id: int
    instance_uuid: str


def _updated_uuid(operations: Sequence[Any], index_base: int) -> str | None:
    """Return the uuid that the operations of an UPDATE of `_cluster` assign, or None."""
    for operation in operations:
        name, field_, value = operation if isinstance(operation, list) and len(operation) == 3 else [None] * 3
        if name == "=" and (field_ == "uuid" or field_ == _UUID_FIELD + index_base):
            return uuid_of(value, "the uuid")
    return None


def id_assignment_of(row: Mapping[str, Any]) -> IdAssignment | None:
    """Return the replica id that a row of `_cluster` assigns to an instance; None for a DELETE and a malformed row."""
    origin = (row["position"], row.get("replica_id") or 0, row.get("lsn") or 0)
    try:
        if row["type"] in ("INSERT", "REPLACE"):
            fields = fields_of(row["tuple"], "a row of _cluster")
            uuid = uuid_of(field_at(fields, _UUID_FIELD, "the uuid"), "the uuid")
            return IdAssignment(*origin, _replica_id(fields), uuid)
        if row["type"] == "UPDATE":
            operations = fields_of(row["operations"], "operations on _cluster")
            found = _updated_uuid(operations, row["index_base"] or 0)
            key = fields_of(row["key"], "a key of _cluster")
            return None if found is None else IdAssignment(*origin, _replica_id(key), found)
    except TupleError:
        return None
    return None


def expelled_replica_id(row: Mapping[str, Any]) -> int | None:
    """Return the replica id that a DELETE of `_cluster` removes, or None."""
    try:
        return _replica_id(fields_of(row["key"], "a key of _cluster"))
    except TupleError:
        return None


def first_owners(rows: Iterable[Mapping[str, Any]]) -> dict[int, str | None]:
    """Return which instance a replica id means before the rows of `_cluster` that follow.

    An INSERT names the instance also of rows before it, since the id was free until then. Before any other row, the id
    had an instance that the rows do not name.

    Parameters
    ----------
    rows : iterable of mapping
        Rows of `_cluster`, in order.

    Returns
    -------
    dict of int to str or None
        For each id in the rows its instance; None if it is not known.

    """
    owners: dict[int, str | None] = {}
    for row in rows:
        found = id_assignment_of(row)
        id_ = expelled_replica_id(row) if found is None else found.replica_id
        if id_ is not None:
            owners.setdefault(
                id_, found.instance_uuid if found is not None and row["type"] == "INSERT" else None
            )
    return owners


def unknown_instance_error(replica_id: int, **where: Any) -> UnknownInstanceError:
    """Return the error for a row whose instance no row of `_cluster` names; `where` are the fields of the error."""
    return UnknownInstanceError(f"no row of _cluster names the instance of replica id {replica_id}", **where)


def _replica_id(fields: Sequence[Any]) -> int:
    return replica_id_of(field_at(fields, _ID_FIELD, "the replica id"))


def id_assignments(directory: Directory, file: LogFile, begin: int, end: int) -> Iterator[IdAssignment]:
    """Yield the rows of `_cluster` in a byte range that assign a replica id, in order."""
    for batch in directory.read_rows(file.name, begin, end, _CLUSTER_ROWS):
        for row in batch.to_pylist():
            found = id_assignment_of(row) if row["type"] is not None else None
            if found is not None:
                yield found


def files_before(directory: Directory, listing: Listing, file: LogFile) -> list[LogFile]:
    """Return the files whose `_cluster` rows define the replica ids where a log begins, in order.

    Parameters
    ----------
    directory, listing
        Of the source.
    file : LogFile
        The log.

    """
    earlier = [log for log in listing.logs if log.name < file.name]
    covered = [s for s in listing.snapshots if is_at_most(s.vclock, file.vclock)]
    base = directory.newest_complete(covered)
    if base is None:
        return earlier
    first = max((i for i, log in enumerate(earlier) if is_at_most(log.vclock, base.vclock)), default=0)
    return [base, *earlier[first:]]


@dataclass
class Origins:
    """Finds the instances of replica ids in one source's files; reads each byte of a log at most once.

    Parameters
    ----------
    directory : Directory
        Of the source.

    """

    directory: Directory
    _read_assignments: dict[str, tuple[int, tuple[IdAssignment, ...]]] = field(default_factory=dict)
    """By file: the position up to which it was read, and the assignments found before it."""

    def origin_spans(
        self, listing: Listing, segment: Segment, whitelist: frozenset[str]
    ) -> tuple[OriginSpan, ...]:
        """Return the wanted replica ids of a segment: a new span begins where an id gets another instance.

        Parameters
        ----------
        listing : Listing
            Of the source.
        segment : Segment
            A segment of a log.
        whitelist : frozenset of str
            Uuids of the instances whose rows are read.

        """
        file = listing.log_named(segment.file)
        instances = self._instances_at_start(listing, file)
        spans = [_origin_span(segment.begin, instances, whitelist, segment.instance_uuid)]
        for found in self._assignments(file, segment.end):
            instances[found.replica_id] = found.instance_uuid
            position = max(found.position, segment.begin)
            if position == spans[-1].begin:
                spans.pop()
            spans.append(_origin_span(position, instances, whitelist, segment.instance_uuid))
        return tuple(spans)

    def split_by_origins(
        self, listing: Listing, segment: Segment, whitelist: frozenset[str]
    ) -> Iterator[Segment]:
        """Yield the parts of a segment, each with the replica ids whose rows are read (`Segment.origins`).

        A part begins at each row of `_cluster` that the whitelist leaves out: readers of the segment do not see the
        row, but the replica id that it assigns has another instance from there on (`Segment.left_out_registrations`).

        Parameters
        ----------
        listing, segment, whitelist
            As for `origin_spans`.

        """
        spans = self.origin_spans(listing, segment, whitelist)
        left_out: dict[int, dict[int, str]] = {}
        for found in self._assignments(listing.log_named(segment.file), segment.end):
            span = [one for one in spans if one.begin <= found.position][-1:]
            if span and found.origin_id not in span[0].wanted_ids | span[0].unknown_ids:
                left_out.setdefault(found.position, {})[found.replica_id] = found.instance_uuid
        bounds = sorted({segment.begin, *left_out, segment.end})
        for begin, end in pairwise(bounds):
            is_first, is_last = begin == segment.begin, end == segment.end
            yield replace(
                segment,
                begin=begin,
                end=end,
                is_closed=segment.is_closed or not is_last,
                gap=segment.gap if is_first else None,
                skipped_rows=segment.skipped_rows if is_first else 0,
                partial_last_block=segment.partial_last_block if is_last else None,
                origin_spans=_spans_between(spans, begin, end),
                left_out_registrations=left_out.get(begin, {}),
            )

    def registered_instances(self, file: LogFile, end: int) -> frozenset[str]:
        """Return the uuids of the instances that a file's blocks before `end` register, also if expelled later."""
        return frozenset(found.instance_uuid for found in self._assignments(file, end))

    def _instances_at_start(self, listing: Listing, file: LogFile) -> dict[int, str]:
        """Return the uuid of each replica id's instance where a log begins."""
        files = files_before(self.directory, listing, file)
        instances: dict[int, str] = {}
        for before in files:
            end = self.directory.ends.end_of(before, closed=True).position
            instances |= {found.replica_id: found.instance_uuid for found in self._assignments(before, end)}
        return instances

    def _assignments(self, file: LogFile, end: int) -> tuple[IdAssignment, ...]:
        """Return the assignments in a file's blocks that start before `end`."""
        upto, known = self._read_assignments.get(file.name, (file.header_bytes, ()))
        if end > upto:
            known += tuple(id_assignments(self.directory, file, upto, end))
            self._read_assignments[file.name] = (end, known)
        return tuple(found for found in known if found.position < end)


def _spans_between(spans: Sequence[OriginSpan], begin: int, end: int) -> tuple[OriginSpan, ...]:
    """Return the spans that apply from `begin` to `end`; the first one begins at `begin`."""
    first = max(i for i, span in enumerate(spans) if span.begin <= begin)
    return (
        replace(spans[first], begin=begin),
        *(span for span in spans[first + 1 :] if span.begin < end),
    )


def _origin_span(
    position: int, instances: Mapping[int, str], whitelist: frozenset[str], file_instance: str | None
) -> OriginSpan:
    wanted = {id_ for id_, uuid in instances.items() if uuid in whitelist}
    if file_instance in whitelist:
        wanted.add(0)
    unknown = frozenset(range(1, VCLOCK_MAX)) - set(instances)
    return OriginSpan(position, frozenset(wanted), unknown)


def members_at(directory: Directory, listing: Listing, segment: Segment) -> dict[int, str]:
    """Return a source's `_cluster` as it is before the first row of a segment.

    Parameters
    ----------
    directory, listing
        Of the source.
    segment : Segment
        A segment of a log.

    Returns
    -------
    dict of int to str
        Instance uuids by replica id; empty if there is neither a snapshot nor an older log.

    """
    file = listing.log_named(segment.file)
    members: dict[int, str] = {}
    for before in files_before(directory, listing, file):
        _update_members(members, directory, before, directory.ends.end_of(before, closed=True).position)
    _update_members(members, directory, file, segment.begin)
    return members


def _update_members(members: dict[int, str], directory: Directory, file: LogFile, end: int) -> None:
    """Apply the `_cluster` rows of a file up to `end`."""
    if end <= file.header_bytes:
        return
    for batch in directory.read_rows(file.name, file.header_bytes, end, _CLUSTER_ROWS):
        for row in batch.to_pylist():
            if row["type"] == "DELETE":
                members.pop(expelled_replica_id(row) or 0, None)
                continue
            found = id_assignment_of(row) if row["type"] is not None else None
            if found is not None:
                members[found.replica_id] = found.instance_uuid

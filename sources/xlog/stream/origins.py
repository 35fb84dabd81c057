"""Converts a whitelist of instances to the replica ids of one log, for each part of the log.

The *origin* of a row is the instance that first wrote it. Rows name it by replica id, and `_cluster` (320) maps the id
to an instance. The instances of the ids at the beginning of a log are those in the newest complete snapshot whose
vclock is at most the log's, changed by the `_cluster` rows of the logs between the two. If there is no such snapshot,
all logs before are read. An id may get a new instance (`box_register_replica` in `src/box/box.cc` inserts a row, or
updates the uuid in it), which is valid from the block of that row on. A deleted id keeps its last instance until
another instance gets the id.

A malformed row of `_cluster`, which no Tarantool server would write, is ignored.

A row of `_cluster` by an instance that is not on the whitelist is left out, like all rows of this instance. But readers
must know which instance it registers: the segment is split there, and the second part has the registration
(`Segment.left_out_registrations`).

Rows of a snapshot have no origin and are not filtered. Rows of local spaces belong to the instance that wrote the file.

`members_at` returns `_cluster` where a segment begins, without deleted members. A server sends it like this to a new
subscriber before any row.
"""

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

    `origin_id` and `lsn` are the replica id and lsn in the row's own header; both are 0 in a snapshot.
    """

    position: int
    origin_id: int
    lsn: int
    replica_id: int
    instance_uuid: str


def _updated_uuid(operations: Sequence[Any], index_base: int) -> str | None:
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
    """Return {replica id: instance uuid} in a log before the given rows of `_cluster`; None if it is not known.

    If the first row of an id is an INSERT, the id was free before, and earlier rows with this id are taken for rows of
    the inserted instance too. If it is any other row, the id had an instance that the rows do not name.
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
    """Return the error for a row with a replica id that is not in `_cluster`; `where` are the fields of the error."""
    return UnknownInstanceError(f"no row of _cluster names the instance of replica id {replica_id}", **where)


def _replica_id(fields: Sequence[Any]) -> int:
    return replica_id_of(field_at(fields, _ID_FIELD, "the replica id"))


def id_assignments(directory: Directory, file: LogFile, begin: int, end: int) -> Iterator[IdAssignment]:
    """Yield the assignments of replica ids in the `_cluster` rows between two block starts, in order."""
    for batch in directory.read_rows(file.name, begin, end, _CLUSTER_ROWS):
        for row in batch.to_pylist():
            found = id_assignment_of(row) if row["type"] is not None else None
            if found is not None:
                yield found


def files_before(directory: Directory, listing: Listing, file: LogFile) -> list[LogFile]:
    """Return the files whose rows of system spaces, in this order, give the state with which a log begins."""
    earlier = [log for log in listing.logs if log.name < file.name]
    covered = [s for s in listing.snapshots if is_at_most(s.vclock, file.vclock)]
    base = directory.newest_complete(covered)
    if base is None:
        return earlier
    first = max((i for i, log in enumerate(earlier) if is_at_most(log.vclock, base.vclock)), default=0)
    return [base, *earlier[first:]]


@dataclass
class Origins:
    """Finds the instances of replica ids in the files of one source; each byte of a log is read at most once."""

    directory: Directory
    """Of the source."""
    _read_assignments: dict[str, tuple[int, tuple[IdAssignment, ...]]] = field(default_factory=dict)
    """By file: the position up to which it was read, and the assignments before this position."""

    def origin_spans(
        self, listing: Listing, segment: Segment, whitelist: frozenset[str]
    ) -> tuple[OriginSpan, ...]:
        """Return the wanted replica ids of a segment, as spans; a new span begins where an id gets another instance."""
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
        """Split a segment at each row of `_cluster` that the whitelist leaves out; yield the parts as segments.

        The parts have the replica ids whose rows are read (`Segment.origin_spans`). A part that begins with such a row
        names the instance that the row registers, because readers do not get the row
        (`Segment.left_out_registrations`).
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
        """Return the uuids of the instances that a file registers before `end`, including those expelled later."""
        return frozenset(found.instance_uuid for found in self._assignments(file, end))

    def _instances_at_start(self, listing: Listing, file: LogFile) -> dict[int, str]:
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
    """Return the spans that apply between `begin` and `end`; the first one is cut, so that it begins at `begin`."""
    first = max(i for i, span in enumerate(spans) if span.begin <= begin)
    return (
        replace(spans[first], begin=begin),
        *(span for span in spans[first + 1 :] if span.begin < end),
    )


def _origin_span(
    begin: int, instances: Mapping[int, str], whitelist: frozenset[str], file_instance: str | None
) -> OriginSpan:
    wanted = {id_ for id_, uuid in instances.items() if uuid in whitelist}
    if file_instance in whitelist:
        wanted.add(0)
    unknown = frozenset(range(1, VCLOCK_MAX)) - set(instances)
    return OriginSpan(begin, frozenset(wanted), unknown)


def members_at(directory: Directory, listing: Listing, segment: Segment) -> dict[int, str]:
    """Return {replica id: uuid} of the members in `_cluster` before the first row of a segment; empty if unknown."""
    file = listing.log_named(segment.file)
    members: dict[int, str] = {}
    for before in files_before(directory, listing, file):
        _update_members(members, directory, before, directory.ends.end_of(before, closed=True).position)
    _update_members(members, directory, file, segment.begin)
    return members


def _update_members(members: dict[int, str], directory: Directory, file: LogFile, end: int) -> None:
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

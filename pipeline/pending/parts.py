"""Reads `_pending` by part: the pending rows of one file that follow one another in the order of their log.

Rows may be pending for long, and `_pending` may be large. So the writer reads each file of `_pending` once, and keeps
what plans need of its parts. It reads the rows again only to apply them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.changelog.keyed_rows import SERVER_VERSION
from pipeline.changelog.segment_plan import EARLIER, PENDING_ARROW
from pipeline.plan.rows.position import LogSegment
from pipeline.plan.rows.summary import LOCAL_ID, Summary, concat_summaries, summarize_rows
from pipeline.plan.spaces.undefined import waits_for_definition
from schemas.xrow import XROW_ARROW
from sources.xlog.format.vclock import vclock_of
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import in_schema
from warehouse.delta.table_files import TableFile, read_file

PENDING = "_pending"

STORED_COLUMNS = [*XROW_ARROW.names, SERVER_VERSION, EARLIER]
"""Columns of pending rows: those of the log reader, and the server version and vclock from their file's header."""

_PART_ORDER = [(name, "ascending") for name in ("replicaset_id", "segment", "position", "row")]

SpaceIds = frozenset[int]


class RowPlace(NamedTuple):
    """The place of a row in its file; places compare in the order of the file."""

    position: int
    """Byte offset of the transaction block."""
    row: int
    """Index of the row in the block."""


class InstanceLsnRange(NamedTuple):
    """The lsns from `first` to `last` of a replica id."""

    replica_id: int
    first: int
    last: int


class PendingOrigin(NamedTuple):
    """The file of pending rows."""

    source: str
    file: str
    instance_uuid: str | None


@dataclass(frozen=True)
class PendingPart:
    """Pending rows of one file that follow one another in the order of the log, in some files of `_pending`."""

    replicaset_id: int
    number: int
    """`_pending.segment`: in the order of the log, the numbers of a replicaset's parts ascend."""
    origin: PendingOrigin
    server_version: str | None
    """Of the first row."""
    vclock_before: Mapping[int, int]
    """The vclock of the rows before the file (`LogSegment.vclock_before`)."""
    reasons: frozenset[str]
    first: RowPlace
    last: RowPlace
    lsn_ranges: tuple[InstanceLsnRange, ...]
    """In the source's replica ids, without local rows."""
    files: tuple[TableFile, ...]
    summary: Summary
    """Of the rows as those of segment 0, as if no space were synchronous or watched."""


def waiting_segment(
    number: int,
    replicaset_uuid: str,
    origin: PendingOrigin,
    server_version: str | None,
    vclock_before: Mapping[int, int],
) -> LogSegment:
    """Return the segment that describes some rows of `_pending`."""
    return LogSegment(
        number=number,
        replicaset_uuid=replicaset_uuid,
        **origin._asdict(),
        is_snapshot=False,
        vclock={},
        server_version=server_version,
        has_waited=True,
        vclock_before=vclock_before,
    )


def vclock_before_file(rows: pa.RecordBatch) -> dict[int, int]:
    """Return the vclock of the rows before the file of pending rows; empty if there are none."""
    text = rows.column(EARLIER)[0].as_py() if rows.num_rows else None
    return {} if text is None else vclock_of(json.loads(text))


PartKey = tuple[int, int, tuple[str, ...]]
"""What identifies a part: its replicaset id, its number, and the paths of its files."""


class PendingParts:
    """The parts of `_pending`, without rows that wait only for the definition of their space."""

    def __init__(self, tables: OpenTables) -> None:
        self._tables = tables
        self._by_file: dict[str, tuple[PendingPart, ...]] = {}
        self._joined: dict[PartKey, PendingPart] = {}
        self._summaries: dict[tuple[PartKey, SpaceIds, SpaceIds], Summary] = {}

    def of_replicasets(self, replicaset_ids: Iterable[int]) -> list[PendingPart]:
        """Return the parts of some replicasets, in the order of their logs."""
        files, known = self._tables.files(PENDING), self._by_file
        self._by_file = {
            file.path: known[file.path] if file.path in known else tuple(self._parts_of_file(file))
            for file in files
        }
        wanted = frozenset(replicaset_ids)
        pieces = [one for parts in self._by_file.values() for one in parts if one.replicaset_id in wanted]
        pieces.sort(key=lambda one: (one.replicaset_id, one.number, one.first))
        groups = groupby(pieces, key=lambda one: (one.replicaset_id, one.number))
        found = [self._join(list(group)) for _, group in groups]
        self._joined = {_key(one): one for one in found}
        self._summaries = {key: one for key, one in self._summaries.items() if key[0] in self._joined}
        return found

    def rows(self, part: PendingPart) -> pa.RecordBatch:
        """Read the rows of a part, in the order of their log; with `STORED_COLUMNS`."""
        found = []
        for file in part.files:
            rows = self._read(file)
            own = pc.and_(
                pc.equal(rows["replicaset_id"], part.replicaset_id), pc.equal(rows["segment"], part.number)
            )
            found.append(rows.filter(own))
        return _one_batch(_in_order(pa.concat_tables(found))).select(STORED_COLUMNS)

    def summary(self, part: PendingPart, sync: SpaceIds, watched: SpaceIds) -> Summary:
        """Return the summary of a part's rows as those of segment 0.

        Args:
            sync, watched: Ids of synchronous spaces, and of spaces whose rows all affect the plan.
        """
        if not sync and not watched:
            return part.summary
        key = (_key(part), sync, watched)
        if key not in self._summaries:
            self._summaries[key] = summarize_rows(self.rows(part), 0, sync, watched)
        return self._summaries[key]

    def _read(self, file: TableFile) -> pa.Table:
        rows = in_schema(read_file(self._tables.location, PENDING, file), PENDING_ARROW)
        return rows.filter(pc.invert(waits_for_definition(rows["reason"])))

    def _parts_of_file(self, file: TableFile) -> Iterator[PendingPart]:
        whole = _in_order(self._read(file))
        keys = (whole["replicaset_id"].to_numpy().astype(np.int64) << 32) | (
            whole["segment"].to_numpy().astype(np.int64) & 0xFFFFFFFF
        )
        cuts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), whole.num_rows]
        for begin, end in pairwise(cuts):
            if begin != end:
                yield _part(_one_batch(whole.slice(begin, end - begin)), file)

    def _join(self, pieces: Sequence[PendingPart]) -> PendingPart:
        """Return the part whose rows are in several files."""
        joined = replace(pieces[0], files=tuple(file for one in pieces for file in one.files))
        if len(pieces) == 1 or _key(joined) in self._joined:
            return self._joined.get(_key(joined), joined)
        ranges: dict[int, InstanceLsnRange] = {}
        for one in (lsns for piece in pieces for lsns in piece.lsn_ranges):
            known = ranges.get(one.replica_id, one)
            ranges[one.replica_id] = InstanceLsnRange(
                one.replica_id, min(known.first, one.first), max(known.last, one.last)
            )
        # The tasks of one batch may have written the blocks of a file in turns.
        in_turns = any(one.last >= other.first for one, other in pairwise(pieces))
        return replace(
            joined,
            reasons=frozenset().union(*(one.reasons for one in pieces)),
            last=max(one.last for one in pieces),
            lsn_ranges=tuple(ranges.values()),
            summary=summarize_rows(self.rows(joined), 0)
            if in_turns
            else concat_summaries([one.summary for one in pieces]),
        )


def _key(part: PendingPart) -> PartKey:
    return part.replicaset_id, part.number, tuple(file.path for file in part.files)


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.take(pc.sort_indices(rows, sort_keys=_PART_ORDER))


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    (batch,) = rows.combine_chunks().to_batches()
    return batch


def _part(rows: pa.RecordBatch, file: TableFile) -> PendingPart:
    """Describe the rows of one part in one file, in order (`PENDING_ARROW`)."""
    first, last = (
        RowPlace(rows.column("position")[i].as_py(), rows.column("row")[i].as_py())
        for i in (0, rows.num_rows - 1)
    )
    named = pa.Table.from_batches([rows]).select(["replica_id", "lsn"])
    named = named.filter(pc.greater(named["replica_id"], LOCAL_ID))
    bounds = named.group_by("replica_id").aggregate([("lsn", "min"), ("lsn", "max")]).to_pylist()
    names = ("replicaset_id", "segment", *PendingOrigin._fields, SERVER_VERSION)
    replicaset_id, number, *origin, server = (rows.column(name)[0].as_py() for name in names)
    return PendingPart(
        replicaset_id=replicaset_id,
        number=number,
        origin=PendingOrigin(*origin),
        server_version=server,
        vclock_before=vclock_before_file(rows),
        reasons=frozenset(rows.column("reason").unique().to_pylist()),
        first=first,
        last=last,
        lsn_ranges=tuple(
            InstanceLsnRange(one["replica_id"], one["lsn_min"], one["lsn_max"]) for one in bounds
        ),
        files=(file,),
        summary=summarize_rows(rows.select(STORED_COLUMNS), 0),
    )

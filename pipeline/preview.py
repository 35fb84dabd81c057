"""Previews what the next run of a configuration will do, without writing.

All new rows in the logs are planned as one batch, with the writer's code, from the state of the newest epoch. Ids are
allocated only in memory. Rows are summarized, and not stored.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from config.deployment import Config
from pipeline.checkpoint import resume_offset
from pipeline.checkpoint_fit import require_fitting_checkpoint
from pipeline.commit.load import load_state
from pipeline.encode.columns import encoding_of
from pipeline.partition import partition_plan
from pipeline.pending.parts import PendingParts
from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.rows.position import with_spaced_numbers
from pipeline.plan.rows.summary import Summary, summaries_by_replicaset, summarize_rows
from pipeline.plan.spaces.router import build_router
from pipeline.plan.spaces.tables import check_space
from pipeline.planning import Planner
from pipeline.source_options import open_log_stream
from pipeline.start import MaskChange, mask_changes
from pipeline.state import State
from pipeline.work import SyncSpaces, WatchedSpaces
from pipeline.write.changes import TableChange
from pipeline.write.prepare import changes_needed
from schemas.layout import ERROR_COLUMN, MISFITS_COLUMN
from schemas.row_types import PUT_TYPES
from schemas.tables import SYSTEM_TABLES
from sources.xlog.directory.offset import Offset
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.read import read_range
from sources.xlog.stream.segment import Segment
from udfs.buffers import as_array
from udfs.remap.cluster_replace import Cluster, IncomingMember, apply_incoming
from udfs.tuples.tuples import decode
from warehouse.copies.rid import RidTable
from warehouse.delta.newest_epoch import EPOCHS, newest_row
from warehouse.system_tables import cluster, requests
from warehouse.system_tables.requests import Request
from warehouse.system_tables.table_differences import TableDifference, table_differences, tables_of_spaces
from warehouse.warehouse import EpochWarehouse

MAX_INSTANTS = 1000
"""The maximum number of instants in a preview. The batches of a run end at each instant, where replicasets wait for
each other; a preview plans the rows after an instant too."""


class VectorPlan(Enum):
    """Whether a table has deletion vectors, or gets them."""

    HAS = "has"
    KEEPS = "keeps"
    """It has them, and gets no new ones."""
    GETS = "gets"
    """It gets them with the first batch that deletes rows of it."""
    MAY_GET = "may get"
    """It gets them with the first batch that would write too much of it again."""


@dataclass(frozen=True)
class LeftOutValues:
    """New rows of one table with a value that its column cannot hold; a later row of the same key may replace them."""

    row_count: int
    reason: str
    """Of the first of them."""
    is_row_left_out: bool
    """Whether the row is set aside; else its column is NULL."""


@dataclass(frozen=True)
class Preview:
    """The planned effects of the next run."""

    before: State
    """The state of the newest epoch."""
    plan: BatchPlan | None
    """The plan of all new rows; None if there are none."""
    start_offsets: Offset
    """For each replicaset uuid, the offset at which the run begins to read."""
    log_bytes: Mapping[str, int]
    """For each replicaset uuid, the number of bytes of logs that the run reads."""
    unreadable_sources: Mapping[str, str]
    """For each source that cannot be read, the reason."""
    table_changes: Mapping[str, TableChange] = field(default_factory=dict)
    """For each table with new rows, how it must change before it can be written."""
    mask_changes: tuple[MaskChange, ...] = ()
    """Tables that are rewritten at the start because their masks changed."""
    missing_system_tables: tuple[str, ...] = ()
    """The aggregator's own tables that the start creates."""
    requests: tuple[Request, ...] = ()
    """Open requests, which the run will execute."""
    is_writable: bool = True
    """Whether the warehouse may be written."""
    differences: tuple[TableDifference, ...] = ()
    """Tables that are not as the newest epoch names them; with one that stops the job nothing is planned."""
    vectors: Mapping[str, VectorPlan] = field(default_factory=dict)
    """For each table with new rows: whether it has or gets deletion vectors; tables without any are missing."""
    left_out: Mapping[str, LeftOutValues] = field(default_factory=dict)
    """By table, of the new tuples that the logs have as a whole (INSERT, REPLACE)."""


def preview_next_run(config: Config) -> Preview:
    """Plan the next run, without writing; raise OffsetError if the checkpoint does not belong to the tables."""
    warehouse = EpochWarehouse(None, config.warehouse, config.database)
    location, differences = warehouse.location, tuple[TableDifference, ...]()
    if warehouse.exists(EPOCHS):
        differences = tuple(table_differences(location, newest_row(location)))
        if any(one.stops_job for one in differences):
            return Preview(State(), None, {}, {}, {}, differences=differences)
    ids = _cluster_after_next_start(warehouse, config)
    state = load_state(warehouse) if warehouse.exists(EPOCHS) else State()
    state = replace(state, set_aside=tables_of_spaces(location, differences))
    masks = tuple(mask_changes(warehouse.open_tables, config, state))
    own = None if ids.own_member is None else ids.own_member.global_id
    after_start = replace(
        _with_masks(state, masks),
        global_ids=ids.global_ids,
        aggregator_id=own,
        aggregator_lsn=state.aggregator_lsn,
    )
    log_stream = open_log_stream(config, after_start, at_instants=True, skip_unreadable=True)
    require_fitting_checkpoint(warehouse, config.checkpoint, log_stream, after_start)
    start = resume_offset(warehouse, config.checkpoint) or {}
    begins = begin_offsets(log_stream, start, log_stream.latest(start))
    segments = with_spaced_numbers(segments_between(log_stream, begins, _end_offset(log_stream, begins)))
    planner = Planner(
        *(config, warehouse.open_tables, after_start),
        lambda incoming: _with_allocated_ids(ids, incoming),
        build_router(config.spaces, check_space),
        PendingParts(warehouse.open_tables),
    )
    reader = _RangeReader(log_stream, segments)
    plan, _ = planner.plan(reader, segments, log_stream)
    rid = RidTable(warehouse.location).last()
    return Preview(
        before=state,
        plan=plan if plan.row_count else None,
        start_offsets=begins,
        log_bytes=_bytes_by_replicaset(segments),
        unreadable_sources=dict(log_stream.unreadable_sources),
        table_changes=_table_changes(warehouse, plan, masks) if plan.row_count else {},
        mask_changes=masks,
        missing_system_tables=tuple(name for name in SYSTEM_TABLES if not warehouse.exists(name)),
        requests=requests.open_requests(warehouse) if warehouse.exists(requests.TABLE) else (),
        is_writable=not rid.number or rid.node.rid.primary,
        differences=differences,
        vectors=_vector_plans(warehouse, config, plan) if plan.row_count else {},
        left_out=_left_out_values(reader, plan) if plan.row_count else {},
    )


def _left_out_values(reader: _RangeReader, plan: BatchPlan) -> dict[str, LeftOutValues]:
    encodings = {name: encoding_of(table) for name, table in plan.tables.items()}
    found: dict[str, LeftOutValues] = {}
    for uuid, batch in reader.batches():
        state = plan.after.replicasets[uuid]
        is_put = pc.is_in(batch["type"], pa.array(PUT_TYPES))
        rows = batch.select(["space_id", "tuple"]).filter(pc.and_(is_put, pc.is_valid(batch["tuple"])))
        for number in pc.unique(rows["space_id"]).to_pylist():
            encoding = encodings.get(state.tables.get(number, ""))
            if encoding is None or number in state.refused or state.id not in encoding.format_indices:
                continue
            tuples = as_array(rows["tuple"].filter(pc.equal(rows["space_id"], number)))
            decoded = decode(tuples, encoding.decoding_plan, encoding.format_indices[state.id])
            faulty = decoded.filter(pc.is_valid(decoded.field(ERROR_COLUMN)))
            if len(faulty):
                before = found.get(encoding.name, LeftOutValues(0, faulty[0][ERROR_COLUMN].as_py(), False))
                is_aside = encoding.quarantines_misfits or faulty.field(MISFITS_COLUMN).null_count > 0
                found[encoding.name] = replace(
                    before,
                    row_count=before.row_count + len(faulty),
                    is_row_left_out=before.is_row_left_out or is_aside,
                )
    return found


def _vector_plans(warehouse: EpochWarehouse, config: Config, plan: BatchPlan) -> dict[str, VectorPlan]:
    found: dict[str, VectorPlan] = {}
    for encoding in partition_plan(plan).encodings:
        mode = config.vector_mode(encoding.layout.space)
        for name in dict.fromkeys((encoding.exact_table, encoding.name)):
            tables = warehouse.open_tables
            exists = tables.has(name)
            if exists and tables.allows_vectors(name):
                found[name] = VectorPlan.KEEPS if mode == "never" else VectorPlan.HAS
            elif mode == "always":
                found[name] = VectorPlan.GETS
            elif mode == "auto" and exists and tables.size(name) > config.deletion_vectors_above:
                found[name] = VectorPlan.MAY_GET
    return found


def begin_offsets(log_stream: LogStream, start: Offset, end: Offset) -> Offset:
    """Return the offset at which a run begins to read each replicaset."""
    return {**log_stream.initial(), **{uuid: start[uuid] for uuid in end if uuid in start}}


class _RangeReader:
    """Reads the rows of segments in this process, and keeps one byte range at a time in memory."""

    def __init__(self, log_stream: LogStream, segments: Sequence[Segment]) -> None:
        self._options, self._segments = replace(log_stream.options, with_replicaset=False), segments
        self._byte_ranges = [byte_range for task in tasks_of(log_stream, segments) for byte_range in task]

    def summaries(self, sync: SyncSpaces, watched: WatchedSpaces) -> dict[str, Summary]:
        """Return the summary of each replicaset's rows, by replicaset uuid."""
        options = self._options

        def summarized() -> Iterator[tuple[str, Summary]]:
            for one in self._byte_ranges:
                uuid = one.segment.replicaset_uuid
                spaces = (sync.get(uuid, frozenset()), watched.get(uuid, frozenset()))
                for rows in read_range(one, options):
                    yield uuid, summarize_rows(rows, one.segment.number, *spaces)

        empty = {segment.replicaset_uuid: Summary() for segment in self._segments}
        return {**empty, **summaries_by_replicaset(summarized())}

    def batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of all segments once more, each batch with its replicaset's uuid."""
        for one in self._byte_ranges:
            for rows in read_range(one, self._options):
                yield one.segment.replicaset_uuid, rows


def _cluster_after_next_start(warehouse: EpochWarehouse, config: Config) -> Cluster:
    known = Cluster(config.cluster.allocation, {})
    if warehouse.exists(cluster.TABLE):
        known = cluster.load(warehouse)
    return _with_allocated_ids(known, ()) if known.allocation == "counter" else known


def _with_allocated_ids(table: Cluster, incoming: Sequence[IncomingMember]) -> Cluster:
    return apply_incoming(table, incoming, str(uuids.uuid4()))[0]


def _with_masks(state: State, masks: Sequence[MaskChange]) -> State:
    """Return the state as a start leaves it: with the exact tables that it creates and drops for changed masks."""
    masked = {one.exact: state.versions[one.table] for one in masks if one.encoding is not None}
    gone = {one.exact for one in masks if one.encoding is None}
    kept = {table: version for table, version in state.versions.items() if table not in gone}
    return replace(state, versions={**masked, **kept})


def _end_offset(log_stream: LogStream, start: Offset) -> Offset:
    offset = log_stream.latest(start)
    for _ in range(MAX_INSTANTS if log_stream.options.marker_spaces else 0):
        further = log_stream.latest(offset)
        if further == offset:
            break
        offset = further
    return offset


def _bytes_by_replicaset(segments: Sequence[Segment]) -> dict[str, int]:
    found: dict[str, int] = {}
    for segment in segments:
        found[segment.replicaset_uuid] = found.get(segment.replicaset_uuid, 0) + segment.end - segment.begin
    return found


def _table_changes(
    warehouse: EpochWarehouse, plan: BatchPlan, masks: Sequence[MaskChange]
) -> dict[str, TableChange]:
    """Return how the batch's tables must change, by name, except tables that the start rewrites for their masks."""
    done = {name for one in masks for name in (one.table, one.exact)}
    found: dict[str, TableChange] = {}
    for encoding in partition_plan(plan).encodings:
        found |= changes_needed(warehouse.open_tables, encoding)
    return {name: change for name, change in found.items() if name not in done}

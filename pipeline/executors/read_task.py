"""The first stage of a distributed batch: log cells → files of `_changelog` and `_pending`, keyed rows by partition.

A key may be replaced thousands of times in one batch. All of these rows go to one partition, but only the last tuple
matters. To keep the partition small, `without_overwritten_tuples` drops the tuples that later rows overwrite. It keeps
the rows' timestamps and lsns, on which the version's time and creation time depend.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.changelog.divergence import Divergence, find_divergences
from pipeline.changelog.keyed_rows import ACTIONS, DELETED_RANGE, KEY_ERRORS, KEYED
from pipeline.changelog.rows import (
    CHANGELOG_ARROW,
    GLOBAL_ID,
    SegmentRows,
    keyed_from_changelog,
    segment_rows,
)
from pipeline.changelog.segment_plan import PENDING_ARROW, SegmentPlan
from pipeline.executors.cells import LOG_CELLS, cells_by_partition, decode_cell, report_cell
from pipeline.executors.log_cells import CellLog, CellRows
from pipeline.executors.log_piece import CELLS_PER_TASK, LogPiece
from pipeline.lookup.partitions import KeyRanges
from pipeline.lookup.reduce_plan import ReducePlan
from pipeline.resolve.records import merge_key_errors
from pipeline.write.system_rows import system_file_writer
from udfs.buffers import as_array
from udfs.keys.grouping import group
from udfs.versions.kernels.lives import OPERATION, PUT
from warehouse.delta.data_files import DataFile, FileWriter
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile

OVERWRITTEN_TUPLE = b"\x90"
"""An empty MessagePack array, in place of an overwritten tuple: the row must still have some tuple."""


def without_overwritten_tuples(rows: pa.Table) -> pa.Table:
    """Return keyed rows with `OVERWRITTEN_TUPLE` in place of each tuple that the key's next row replaces or deletes.

    A tuple stays if the next row is an operation (UPDATE, UPSERT) on it. Tuples of snapshots stay too, since they are
    compared with versions in the table.
    """
    groups = group(rows["meaning"].to_numpy(), as_array(rows["key"]))
    if len(groups) + int(np.count_nonzero(groups.group_numbers < 0)) == rows.num_rows:
        return rows  # each key occurs once
    actions = ACTIONS[rows["type"].to_numpy()]
    is_snapshot = as_array(rows["is_snapshot"]).to_numpy(zero_copy_only=False)
    # The bucket of a tuple that vshard's garbage collector may have deleted is read from the tuple.
    may_be_collected = as_array(rows["bucket_events"]).is_valid().to_numpy(zero_copy_only=False)
    order = np.argsort(groups.group_numbers, kind="stable")
    one, following = order[:-1], order[1:]
    same_key = (groups.group_numbers[one] == groups.group_numbers[following]) & (
        groups.group_numbers[one] >= 0
    )
    overwritten = np.zeros(rows.num_rows, np.bool_)
    overwritten[one] = (
        same_key
        & (actions[one] == PUT)
        & (actions[following] != OPERATION)
        & ~(is_snapshot[one] | is_snapshot[following])
        & ~may_be_collected[following]
    )
    if not overwritten.any():
        return rows
    tuples = as_array(rows["tuple"])
    gone = pc.and_(pa.array(overwritten), pc.is_valid(tuples))
    tuples = pc.if_else(gone, pa.scalar(OVERWRITTEN_TUPLE, pa.binary()), tuples)
    return rows.set_column(rows.schema.get_field_index("tuple"), rows.schema.field("tuple"), tuples)


BUFFER_BYTES = 32 << 20
"""Keyed rows are buffered up to this size before they are encoded as cells, so that cells are few."""


@dataclass(frozen=True)
class StoredRows:
    """Rows that the driver sends to a task: waiting rows, or rows of `_changelog` that are applied again."""

    segment: int | None
    """The segment of waiting rows; None for rows of `_changelog`, which come after all segments."""
    cell: bytes
    """The rows as an Arrow IPC stream."""


def stored_cells(stored: Sequence[StoredRows]) -> pa.Table:
    """Return stored rows as cells for `run_read_task`."""
    rows = pa.array([pickle.dumps(one) for one in stored], pa.binary())
    empty = {name: pa.nulls(len(stored), LOG_CELLS.field(name).type) for name in ("piece", "writers")}
    return pa.table({**empty, "rows": rows})


TASK_BITS, FLUSH_BITS = 20, 24
"""The bits of a cell's `sort_key` for the task's number, and for the cell's index in the task; those above them are the
rank of its segment."""


@dataclass(frozen=True)
class ReadWork:
    """The inputs of the first stage's tasks."""

    segment_plans: Mapping[int, SegmentPlan]
    reduce: ReducePlan
    key_ranges: KeyRanges
    location: WarehouseLocation
    log: CellLog
    changelog_files: Sequence[TableFile] = ()
    """Files of `_changelog` that may contain rows which the tasks read again."""
    healed_gaps: Sequence[Mapping[str, Any]] = ()
    """Rows of `_gaps` with the lsns of healed divergences; differing rows of these lsns are not reported again."""
    has_stored_rows: bool = False
    """Whether cells have waiting rows, which belong between the segments of other tasks."""


@dataclass
class ReadReport:
    """The files that a task of the first stage wrote, and what it found in the rows."""

    changelog: list[DataFile] = field(default_factory=list)
    pending: list[DataFile] = field(default_factory=list)
    key_errors: pa.Table = field(default_factory=KEY_ERRORS.empty_table)
    """Rows without a valid key, as `pipeline.changelog.keyed_rows.KEY_ERRORS`; a limited number."""
    settled: dict[int, dict[int, int]] = field(default_factory=dict)
    """By segment number and replica id, the highest lsn written to `_changelog`."""
    unknown_spaces: dict[int, frozenset[int]] = field(default_factory=dict)
    """By segment number, the ids of spaces whose rows wait for the space's definition."""
    divergences: list[Divergence] = field(default_factory=list)


def run_read_task(
    task_number: int, cells: Iterable[pa.RecordBatch], work: ReadWork
) -> Iterator[pa.RecordBatch]:
    """Run one task, and yield its cells for the exchange; the last one is its report (`ReadReport`).

    Args:
        cells: `piece`, `writers` and `rows` of `pipeline.executors.cells.LOG_CELLS`, in log order; `writers` after
            `udfs.remap.replica_ids.remap_runs_udf`. A cell without a piece is a pickled `StoredRows`.
    """
    task = _ReadTask(task_number, work)
    for batch in cells:
        for text, writers, cell in zip(
            *(batch.column("piece").to_pylist(), batch.column("writers"), batch.column("rows")), strict=True
        ):
            if text is None:
                yield from task.process_stored(pickle.loads(cell.as_buffer()))
            else:
                yield from task.process_piece(LogPiece.decoded(text), writers.values, cell.as_buffer())
    yield from task.finish()


class _ReadTask:
    """Writes the rows of its inputs to `_changelog` and `_pending`, and yields cells of keyed rows."""

    def __init__(self, number: int, work: ReadWork) -> None:
        self._number, self._work = number, work
        self._ranks = {segment: rank for rank, segment in enumerate(sorted(work.segment_plans))}
        self._report = ReadReport()
        self._buffered: list[pa.Table] = []
        self._buffered_bytes, self._cells = 0, 0
        self._first: tuple[int, int] = (0, 0)
        self._changelog: FileWriter | None = None
        self._pending: FileWriter | None = None
        self._read_before: dict[int, list[pa.RecordBatch]] = {}
        self._cell_rows = CellRows(work.log)

    def process_piece(
        self, piece: LogPiece, writers: pa.StructArray, cell: pa.Buffer | None
    ) -> Iterator[pa.RecordBatch]:
        yield from self._begin(self._ranks[piece.segment], piece.ordinal // CELLS_PER_TASK)
        runs = (writers.field(name).to_numpy() for name in ("global_id", "rows"))
        global_ids = pa.array(np.repeat(*runs))
        done = 0
        for batch in self._cell_rows.of(piece, cell):
            own = global_ids.slice(done, batch.num_rows)
            done += batch.num_rows
            yield from self._process_rows(batch.append_column(GLOBAL_ID, own), piece.segment)

    def process_stored(self, stored: StoredRows) -> Iterator[pa.RecordBatch]:
        rows = decode_cell(pa.py_buffer(stored.cell))
        if stored.segment is None:
            yield from self._begin(len(self._ranks), 0)
            plan = next(iter(self._work.segment_plans.values()))
            yield from self._buffer(keyed_from_changelog(rows, plan))
            return
        yield from self._begin(self._ranks[stored.segment], 0)
        for batch in rows.to_batches():
            yield from self._process_rows(batch, stored.segment)

    def _begin(self, rank: int, task: int) -> Iterator[pa.RecordBatch]:
        """Begin with the rows of a segment: waiting rows of other tasks may belong before it."""
        if self._work.has_stored_rows and rank != self._first[0]:
            yield from self._flush()
        if not self._buffered:
            self._first = (rank, task)

    def _process_rows(self, batch: pa.RecordBatch, segment: int) -> Iterator[pa.RecordBatch]:
        found = segment_rows(batch, self._work.segment_plans[segment])
        self._write_files(found)
        own = self._report.settled.setdefault(segment, {})
        for origin, lsn in found.settled_lsns.items():
            own[origin] = max(own.get(origin, 0), lsn)
        if found.undefined_spaces:
            known = self._report.unknown_spaces.get(segment, frozenset())
            self._report.unknown_spaces[segment] = known | found.undefined_spaces
        if found.read_before is not None:
            self._read_before.setdefault(segment, []).append(found.read_before)
        if found.key_errors.num_rows:
            errors = pa.concat_tables([self._report.key_errors, pa.Table.from_batches([found.key_errors])])
            self._report.key_errors = merge_key_errors(errors)
        if found.keyed.num_rows:
            yield from self._buffer(pa.Table.from_batches([found.keyed], KEYED))

    def _write_files(self, rows: SegmentRows) -> None:
        location = self._work.location
        if rows.changelog.num_rows:
            if self._changelog is None:
                self._changelog = system_file_writer(location, "_changelog", CHANGELOG_ARROW)
            self._changelog.write(pa.Table.from_batches([rows.changelog]))
        if rows.pending is not None:
            if self._pending is None:
                self._pending = system_file_writer(location, "_pending", PENDING_ARROW)
            self._pending.write(pa.Table.from_batches([rows.pending]))

    def _buffer(self, keyed: pa.Table) -> Iterator[pa.RecordBatch]:
        self._buffered.append(keyed)
        self._buffered_bytes += keyed.nbytes
        if self._buffered_bytes >= BUFFER_BYTES:
            yield from self._flush()

    def _flush(self) -> Iterator[pa.RecordBatch]:
        if not self._buffered:
            return
        rows = without_overwritten_tuples(pa.concat_tables(self._buffered).combine_chunks())
        self._buffered, self._buffered_bytes = [], 0
        tables = self._work.reduce.tables_of(rows["meaning"].to_numpy())
        partitions = self._work.key_ranges.find_partitions(tables, as_array(rows["key"]))
        rows, partitions = _copy_range_deletes_to_partitions(rows, tables, partitions, self._work.key_ranges)
        rank, task = self._first
        sort_key = (((rank << TASK_BITS) + task) << FLUSH_BITS) + self._cells
        for cell in cells_by_partition(rows, partitions, sort_key):
            self._cells += 1
            yield cell

    def finish(self) -> Iterator[pa.RecordBatch]:
        yield from self._flush()
        report = self._report
        if self._changelog is not None:
            report.changelog.append(self._changelog.close())
        if self._pending is not None:
            report.pending.append(self._pending.close())
        for segment, batches in self._read_before.items():
            plan = self._work.segment_plans[segment]
            report.divergences += find_divergences(pa.Table.from_batches(batches), plan, self._work)
        yield report_cell(self._number % self._work.key_ranges.partition_count, report)


def _copy_range_deletes_to_partitions(
    rows: pa.Table, tables: NDArray[np.int32], partitions: NDArray[np.int32], ranges: KeyRanges
) -> tuple[pa.Table, NDArray[np.int32]]:
    """Repeat each DELETE_RANGE for all partitions of its table; return all rows, and the partition of each row."""
    types = rows["type"].to_numpy()
    indices = np.flatnonzero(types == DELETED_RANGE)
    if not len(indices):
        return rows, partitions
    copies = [
        (int(index), partition)
        for index in indices
        for partition in ranges.table_partitions(int(tables[index]))
    ]
    others = np.flatnonzero(types != DELETED_RANGE)
    both = np.concatenate([others, np.array([index for index, _ in copies], np.int64)])
    numbers = np.concatenate([partitions[others], np.array([partition for _, partition in copies], np.int32)])
    order = np.argsort(both, kind="stable")
    return rows.take(pa.array(both[order])).combine_chunks(), numbers[order]

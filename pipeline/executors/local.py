"""The local executor: processes a batch that fits into the driver's memory, without a Spark job.

Rows are decoded once and stay in memory until the batch is written. Compiled kernels and Parquet release Python's GIL,
so a few threads use a few cores.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.changelog.divergence import Divergence, find_divergences
from pipeline.changelog.keyed_rows import KEY_ERRORS, KEYED
from pipeline.changelog.rows import CHANGELOG_ARROW, SegmentRows, keyed_from_changelog, segment_rows
from pipeline.executors.row_counts import RangeCount, SparkCount
from pipeline.lookup.key_search import KeySearch
from pipeline.partition import PartitionResult, process_partition
from pipeline.plan.rows.summary import Summary, concat_summaries, summarize_rows
from pipeline.resolve.records import key_error_rows
from pipeline.work import BatchOutput, BatchWork, SyncSpaces, WatchedSpaces
from pipeline.write.changes import TableChange, TableChanges, TableWrite, write_exact, write_masked
from pipeline.write.system_rows import write_system_rows
from sources.xlog.stream.batch import tasks_of
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.read import read_range
from sources.xlog.stream.segment import ByteRange, Segment
from warehouse.delta.data_files import DataFile
from warehouse.delta.table_files import TableFile

T = TypeVar("T")
R = TypeVar("R")

SIZE_ESTIMATE_MARGIN = 1.5
"""A batch is left to Spark's tasks once its estimated size exceeds the limit by this factor."""

DRIVER, DRIVER_ALONE = "driver", "driver_alone"
"""The names of this executor; `driver_alone` if this process has also read the logs."""

THREADS = max(1, min(4, os.cpu_count() or 1))


def map_in_threads(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call a function for each item, in several threads; return the results in order, or raise the first error."""
    inputs = list(items)
    if len(inputs) <= 1 or THREADS == 1:
        return [work(item) for item in inputs]
    with ThreadPoolExecutor(min(THREADS, len(inputs))) as pool:
        return list(pool.map(work, inputs))


@dataclass(frozen=True)
class ReadRows:
    """The rows of a batch that this process has read itself."""

    by_segment: Mapping[int, list[pa.RecordBatch]]
    counts: Sequence[RangeCount]
    """Of each byte range."""


def read_locally(log_stream: LogStream, segments: Sequence[Segment], limit_bytes: int) -> ReadRows | None:
    """Decode the rows of segments; return None if they need more memory than a limit."""
    found: dict[int, list[pa.RecordBatch]] = {segment.number: [] for segment in segments}
    counts: list[RangeCount] = []
    # Compressed rows are smaller than decoded ones, so there is no need to decode more than the limit.
    stored = sum(segment.end - segment.begin for segment in segments)
    if stored > limit_bytes:
        return None
    byte_ranges: list[ByteRange] = [one for task in tasks_of(log_stream, segments) for one in task]
    options = replace(log_stream.options, with_replicaset=False)
    size = done = 0
    for byte_range in byte_ranges:
        before, own = size, found[byte_range.segment.number]
        row_count = -sum(batch.num_rows for batch in own)
        for batch in read_range(byte_range, options):
            size += batch.nbytes
            if size > limit_bytes:
                return None
            own.append(batch)
        row_count += sum(batch.num_rows for batch in own)
        bounds = (byte_range.segment.path, byte_range.begin, byte_range.end)
        counts.append(RangeCount(*bounds, row_count, size - before))
        done += byte_range.end - byte_range.begin
        # Stop early if the batch will clearly become too large.
        if size * stored > SIZE_ESTIMATE_MARGIN * limit_bytes * done:
            return None
    return ReadRows(found, counts)


class LocalExecutor:
    """Executes one batch in this process.

    Args:
        summaries: Of the same rows, in log order, as if no space were synchronous or watched; by segment number. By
            default the rows are summarized here.
        count: Spark's count of the rows, if this process has read them itself; a batch does not end without it.
        name: `DRIVER` or `DRIVER_ALONE`.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        rows: Mapping[int, list[pa.RecordBatch]],
        search: KeySearch,
        summaries: Mapping[int, list[Summary]] | None = None,
        count: SparkCount | None = None,
        name: str = DRIVER,
    ) -> None:
        self._segments, self._rows, self._search = segments, rows, search
        self._summaries = {} if summaries is None else summaries
        self._count, self.name = count, name

    def close(self) -> None:
        """Wait until Spark has counted the rows."""
        if self._count is not None:
            self._count.close()

    def summaries(self, sync: SyncSpaces, watched: WatchedSpaces) -> dict[str, Summary]:
        """Return the summary of each replicaset's rows, by replicaset uuid."""
        found: dict[str, list[Summary]] = {segment.replicaset_uuid: [] for segment in self._segments}
        for segment in self._segments:
            uuid = segment.replicaset_uuid
            spaces = (sync.get(uuid, frozenset()), watched.get(uuid, frozenset()))
            known = None if any(spaces) else self._summaries.get(segment.number)
            found[uuid] += (
                [summarize_rows(batch, segment.number, *spaces) for batch in self._rows[segment.number]]
                if known is None
                else known
            )
        return {uuid: concat_summaries(parts) for uuid, parts in found.items()}

    def run(self, work: BatchWork) -> BatchOutput:
        """Execute a plan: write the files of all tables, without a commit."""
        clock, counts_before = _StageClock(), replace(self._search.copies.counts)
        rows = {**self._rows, **{one.segment.number: [one.rows] for one in work.pending}}
        parts = [(number, batch) for number in sorted(rows) for batch in rows[number]]
        done = map_in_threads(lambda part: segment_rows(part[1], work.segment_plans[part[0]]), parts)
        clock.end_stage("changelog rows")
        stage = _ChangelogStage(work, [number for number, _ in parts], done)
        changelog, pending = stage.write()
        clock.end_stage("changelog files")
        result = process_partition(stage.keyed_rows(), work.partition_plan, work.base_files, self._search)
        clock.end_stage("reduce, resolve, encode")
        tables = write_tables(work, result, self._search)
        quarantine = pa.concat_tables([result.quarantine, stage.key_error_rows(result.key_errors)])
        system = {"_versions": result.versions, "_conflicts": result.conflicts, "_quarantine": quarantine}
        files = {name: _system_files(work, name, rows) for name, rows in system.items()}
        clock.end_stage("table files")
        if self._count is not None:
            self._count.wait()
            clock.end_stage("count")
        return BatchOutput(
            changelog=changelog,
            pending=pending,
            tables=tables,
            versions=files["_versions"],
            conflicts=files["_conflicts"],
            quarantine=files["_quarantine"],
            settled=stage.settled(),
            unknown_spaces=stage.unknown_spaces(),
            divergences=stage.divergences(),
            writers=result.writers,
            unfit_tables=result.unfit_tables,
            collected_rows=result.collected_rows,
            executor=self.name,
            copies=self._search.copies.counts.since(counts_before),
            seconds=clock.seconds,
        )


class _StageClock:
    """Measures how long each stage of a batch takes: `end_stage` ends a stage, and the next one begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end_stage(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage], self._last = now - self._last, now


class _ChangelogStage:
    """The output of the changelog stage: for each record batch of a log, its divided rows (`SegmentRows`)."""

    def __init__(self, work: BatchWork, numbers: Sequence[int], rows: Sequence[SegmentRows]) -> None:
        self._work, self._numbers, self._rows = work, numbers, rows

    def write(self) -> tuple[list[DataFile], list[DataFile]]:
        """Write the rows of `_changelog` and `_pending`; return the files of both tables."""
        changelog = pa.Table.from_batches([one.changelog for one in self._rows], CHANGELOG_ARROW)
        if self._work.aggregator_rows is not None:
            changelog = pa.concat_tables([changelog, self._work.aggregator_rows])
        waiting = [one.pending for one in self._rows if one.pending is not None]
        pending = pa.Table.from_batches(waiting) if waiting else None
        return (
            _system_files(self._work, "_changelog", changelog),
            [] if pending is None else _system_files(self._work, "_pending", pending),
        )

    def keyed_rows(self) -> pa.Table:
        """Return all keyed rows, in log order."""
        plan = next(iter(self._work.segment_plans.values()))
        again = [keyed_from_changelog(rows, plan) for rows in self._work.reapplied_rows]
        return pa.concat_tables(
            [pa.Table.from_batches([one.keyed for one in self._rows if one.keyed.num_rows], KEYED), *again]
        )

    def key_error_rows(self, version_errors: pa.Table) -> pa.Table:
        """Return rows of `_quarantine` for log rows without a valid key, and for such versions (`version_errors`)."""
        errors = pa.Table.from_batches([one.key_errors for one in self._rows], KEY_ERRORS)
        return key_error_rows(
            pa.concat_tables([errors, version_errors]),
            self._work.partition_plan.reduce,
            self._work.plan.epoch,
        )

    def settled(self) -> dict[int, dict[int, int]]:
        """Return the highest lsn written to `_changelog`, by segment and replica id."""
        found: dict[int, dict[int, int]] = {}
        for number, one in zip(self._numbers, self._rows, strict=True):
            own = found.setdefault(number, {})
            for origin, lsn in one.settled_lsns.items():
                own[origin] = max(own.get(origin, 0), lsn)
        return found

    def unknown_spaces(self) -> dict[int, frozenset[int]]:
        """Return the ids of spaces whose rows wait for the space's definition, by segment."""
        found: dict[int, frozenset[int]] = {}
        for number, one in zip(self._numbers, self._rows, strict=True):
            found[number] = found.get(number, frozenset()) | one.undefined_spaces
        return found

    def divergences(self) -> list[Divergence]:
        """Return where rows that are read again differ from the same rows in `_changelog`."""
        read: dict[int, list[pa.RecordBatch]] = {}
        for number, one in zip(self._numbers, self._rows, strict=True):
            if one.read_before is not None:
                read.setdefault(number, []).append(one.read_before)
        return [
            found
            for number, batches in read.items()
            for found in find_divergences(
                pa.Table.from_batches(batches), self._work.segment_plans[number], self._work
            )
        ]


def _system_files(work: BatchWork, table: str, rows: pa.Table) -> list[DataFile]:
    if not rows.num_rows:
        return []
    return [write_system_rows(work.location, table, rows)]


def write_tables(work: BatchWork, result: PartitionResult, search: KeySearch) -> list[TableWrite]:
    """Write new files of the spaces' tables that change; return for each table the files to add and to remove."""
    removed: dict[str, dict[TableFile, NDArray[np.int64]]] = {}
    for ref, rows in result.removed.items():
        removed.setdefault(ref.table, {})[ref.file] = rows
    changed = []
    for number, encoding in enumerate(work.partition_plan.encodings):
        change = work.table_changes.get(encoding.exact_table, TableChange.NOTHING)
        indices = removed.get(encoding.exact_table, {})
        new = result.rows_by_table.get(number)
        if new is not None or indices or change is TableChange.REWRITE:
            keys = result.removed_keys.get(number)
            changed.append(TableChanges(encoding, new, indices, keys, change))

    def write(changes: TableChanges) -> list[TableWrite]:
        encoding = changes.encoding
        exact, masked = (
            (work.location, changes, work.files_by_table.get(name, ()), work.vector_rule(name), search)
            for name in (encoding.exact_table, encoding.name)
        )
        exact_write, masked_write = write_exact(*exact), write_masked(*masked)
        return [exact_write] if masked_write is None else [exact_write, masked_write]

    return [one for writes in map_in_threads(write, changed) for one in writes if not one.is_empty]

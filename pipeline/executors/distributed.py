"""The distributed executor: processes a batch of any size in Spark's tasks. The driver only plans.

    job 1: the source's tasks → log cells, which Spark keeps until the batch is committed; their digests, for planning
    job 2: log cells → files of `_changelog`, keyed rows ─ exchange ─ a task per partition → files
    job 3: for some changed files, a task → files without the removed rows

On one machine the cells of a large batch do not hold its rows: job 2 reads them from the log again. If a Spark executor
is lost, Spark makes its cells again from the offsets. Tasks write files that are not committed yet, and report their
names. If Spark runs a task twice, only one report arrives; maintenance removes files that no commit names.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.changelog.moves import COLLECTED
from pipeline.changelog.rows import segment_rows
from pipeline.encode.columns import cluster_orders
from pipeline.executors.batch_cells import (
    in_log_order,
    read_cells,
    refuse_missing_pieces,
)
from pipeline.executors.cells import (
    CELL_SCHEMA,
    REPORT_SORT_KEY,
    SPARK_SCHEMA,
    decode_reports,
    encode_cell,
    report_cell,
)
from pipeline.executors.log_cells import CellDigest, CellLog, CellRows
from pipeline.executors.log_piece import LogPiece
from pipeline.executors.partition_task import (
    PartitionReport,
    PartitionWork,
    run_partition_task,
)
from pipeline.executors.read_task import ReadReport, ReadWork, StoredRows, run_read_task, stored_cells
from pipeline.executors.rewrite_task import (
    RowBitmap,
    rewrite_tasks,
    row_numbers,
    run_rewrite_task,
)
from pipeline.lookup.key_copies import CopyCounts
from pipeline.lookup.partitions import KeyRanges, key_ranges
from pipeline.plan.rows.summary import Summary, concat_summaries, summaries_by_replicaset, summarize_rows
from pipeline.resolve.records import key_error_rows
from pipeline.work import BatchOutput, BatchWork, SyncSpaces, WatchedSpaces
from pipeline.write.changes import (
    TableChange,
    TableWrite,
    table_schema,
)
from pipeline.write.system_rows import write_system_rows
from pipeline.write.vector_rule import Deletions
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.segment import Segment
from udfs.remap.replica_ids import remap_runs_udf
from warehouse.delta.data_files import DataFile
from warehouse.delta.table_files import TableFile

log = logging.getLogger(__name__)

PARTITION_BYTES = 64 << 20
"""The approximate size of a partition's decoded rows; its task needs several times this memory."""

TASKS_PER_CORE = 2
"""The minimum number of partitions for each core, so that the cores finish at about the same time."""

JOB_ATTEMPTS = 4
"""How often a job is started that loses exchanged rows: as often as Spark starts a task (`spark.task.maxFailures`)."""

LOST_EXCHANGE_TEXT = "shuffle map stage with indeterminate output was failed and retried"
"""What Spark's error says if lost rows of the exchange cannot be made again within the job."""

Task = Callable[[int], Iterator[pa.RecordBatch]]
"""Called with a task's number; yields the cell with its report."""


class DistributedExecutor:
    """Executes one batch in Spark's tasks."""

    name = "tasks"

    def __init__(
        self,
        spark: SparkSession,
        log_stream: LogStream,
        segments: Sequence[Segment],
        frame: DataFrame | None = None,
        title: str = "batch",
    ) -> None:
        self._spark, self._segments, self._title = spark, segments, title
        self._log = CellLog({one.number: one for one in segments}, log_stream.options)
        given = read_cells(spark, log_stream, segments) if frame is None else frame
        self._cells = given.persist(StorageLevel.MEMORY_AND_DISK)
        self._digests: list[tuple[LogPiece, CellDigest]] | None = None

    def close(self) -> None:
        """Let Spark forget the cells."""
        self._cells.unpersist()

    def summaries(self, sync: SyncSpaces, watched: WatchedSpaces) -> dict[str, Summary]:
        """Return the summary of each replicaset's rows, by replicaset uuid."""
        if self._digests is None:
            self._digests = self._read_digests()
        special = sorted(uuid for uuid in {*sync, *watched} if sync.get(uuid) or watched.get(uuid))
        again = self._summarize_again(special, sync, watched) if special else {}
        found = summaries_by_replicaset(
            (piece.replicaset, again.get(piece.ordinal, digest.summary)) for piece, digest in self._digests
        )
        return {**{segment.replicaset_uuid: Summary() for segment in self._segments}, **found}

    def _read_digests(self) -> list[tuple[LogPiece, CellDigest]]:
        """Let the source's tasks read the log, and return the digests of the cells in log order."""
        self._set_job_description("read")
        pieces, found = in_log_order(self._cells.select("piece", "digest").toArrow())
        refuse_missing_pieces(pieces, self._segments)
        digests = map(CellDigest.decoded, found["digest"].to_pylist())
        return list(zip(pieces, digests, strict=True))

    def _summarize_again(
        self, uuids: Collection[str], sync: SyncSpaces, watched: WatchedSpaces
    ) -> dict[int, Summary]:
        """Summarize the cells of replicasets with synchronous or watched spaces; return summaries by ordinal."""
        log_of_cells = self._log

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            cell_rows = CellRows(log_of_cells)
            for batch in batches:
                for text, cell in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                    piece = LogPiece.decoded(text)
                    if piece.replicaset in uuids:
                        own = (found.get(piece.replicaset, frozenset()) for found in (sync, watched))
                        rows = cell_rows.of(piece, cell.as_buffer())
                        parts = [summarize_rows(one, piece.segment, *own) for one in rows]
                        yield report_cell(0, (piece.ordinal, concat_summaries(parts)))

        self._set_job_description("read synchronous and watched spaces")
        reports = self._cells.select("piece", "rows").mapInArrow(run, SPARK_SCHEMA).toArrow()
        return dict(decode_reports(reports["data"].to_pylist()))

    def run(self, work: BatchWork) -> BatchOutput:
        """Execute a plan: write the files of all tables, without a commit."""
        began = time.perf_counter()
        stored = [
            StoredRows(one.segment.number, encode_cell(pa.Table.from_batches([one.rows])).to_pybytes())
            for one in work.pending
        ]
        stored += [StoredRows(None, encode_cell(rows).to_pybytes()) for rows in work.reapplied_rows]
        digests = self._digests or []
        size = sum(piece.bytes for piece, _ in digests) + sum(len(one.cell) for one in stored)
        ranges = self._key_ranges(work, digests, size)
        reads, partitions = self._read_and_write(work, ranges, stored)
        between = time.perf_counter()
        tables = self._rewrite_tables(work, partitions)
        seconds = {"read, reduce, write": between - began, "rewrite": time.perf_counter() - between}
        return _combine_reports(work, reads, partitions, tables, seconds)

    def _key_ranges(
        self, work: BatchWork, digests: Sequence[tuple[LogPiece, CellDigest]], size_bytes: int
    ) -> KeyRanges:
        plan = work.partition_plan.reduce
        keyed, weights = [], []
        for piece, digest in digests:
            found = segment_rows(digest.sample, work.segment_plans[piece.segment]).keyed
            found = found.filter(pc.is_valid(found["key"]))  # a DELETE_RANGE has no key
            keyed.append(found)
            weights.append(np.full(found.num_rows, piece.bytes / max(digest.sample.num_rows, 1)))
        rows = pa.Table.from_batches(keyed) if keyed else None
        cores = self._spark.sparkContext.defaultParallelism
        count = max(TASKS_PER_CORE * cores, -(-size_bytes // PARTITION_BYTES))
        if rows is None or not rows.num_rows:
            return key_ranges(plan, count, np.zeros(0, np.int32), pa.array([], pa.binary()), np.zeros(0))
        tables = plan.tables_of(rows["meaning"].to_numpy())
        keys = rows["key"].combine_chunks()
        whole = pa.concat_arrays(keys.chunks) if isinstance(keys, pa.ChunkedArray) else keys
        return key_ranges(plan, count, tables, whole, np.concatenate(weights))

    def _read_and_write(
        self, work: BatchWork, ranges: KeyRanges, stored: Sequence[StoredRows]
    ) -> tuple[list[ReadReport], list[PartitionReport]]:
        location = work.location
        plan = replace(
            work.partition_plan,
            encodings=tuple(
                one if one.mask is None else replace(one, mask=one.mask.with_loaded_key())
                for one in work.partition_plan.encodings
            ),
        )
        masked = {one.name for one in plan.encodings if one.mask is not None}
        read = ReadWork(
            *(work.segment_plans, plan.reduce, ranges, location, self._log),
            *(work.changelog_files, work.healed_gaps, bool(work.pending)),
        )
        files = {name: list(own) for name, own in work.files_by_table.items() if name in masked}
        write = PartitionWork(plan, work.base_files, ranges, files, location, work.copy_folder)

        def run_read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from run_read_task(_partition_id(), batches, read)

        def run_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from run_partition_task(_partition_id(), batches, write)

        self._set_job_description(f"merge {_names_in_brief(one.name for one in plan.encodings)}")
        cells = self._cells.select("piece", "writers", "rows")
        if stored:
            cells = cells.unionAll(self._spark.createDataFrame(stored_cells(stored)))
        maps = {number: tuple(one.applier_map) for number, one in work.segment_plans.items()}
        segment = F.get_json_object("piece", "$.segment").cast("int")
        with _own_python_processes(self._spark, "remap"):
            cells = cells.withColumn("writers", remap_runs_udf(maps)(segment, F.col("writers")))

        def make_frame() -> DataFrame:
            keyed = cells.mapInArrow(run_read, SPARK_SCHEMA)
            moved = keyed.repartitionById(ranges.partition_count, "partition")
            return moved.mapInArrow(run_partition, SPARK_SCHEMA)

        reports = _collect_reports(make_frame)
        return (
            [one for one in reports if isinstance(one, ReadReport)],
            [one for one in reports if isinstance(one, PartitionReport)],
        )

    def _rewrite_tables(self, work: BatchWork, partitions: Sequence[PartitionReport]) -> list[TableWrite]:
        """Rewrite files with removed rows that get no vector; return for each table the changes of its files."""
        encodings = {one.exact_table: one for one in work.partition_plan.encodings}
        removed: dict[str, dict[TableFile, RowBitmap]] = {}
        deleted: dict[str, Deletions] = {}
        gone: dict[str, list[TableFile]] = {}
        for name, bitmaps in _removed_rows(partitions).items():
            rows = {file: row_numbers(bits) for file, bits in bitmaps.items()}
            gone[name], deleted[name], rewritten = work.vector_rule(name).divided(rows)
            removed[name] = {file: bitmaps[file] for file in rewritten}
        reencoded = {
            name: one
            for name, one in encodings.items()
            if work.table_changes.get(name) is TableChange.REWRITE
        }
        for name in reencoded:
            known = _removed_rows(partitions).get(name, {})
            gone[name], deleted[name] = [], {}
            removed[name] = {
                file: known.get(file, np.zeros(0, np.uint8)) for file in work.files_by_table[name]
            }
        added: dict[str, list[DataFile]] = {}
        for report in partitions:
            for table, files in report.added_files.items():
                added.setdefault(table, []).extend(files)
        orders = cluster_orders(work.partition_plan.encodings)
        tasks, location = list(rewrite_tasks(removed, reencoded, orders)), work.location

        def run(number: int) -> Iterator[pa.RecordBatch]:
            yield report_cell(0, run_rewrite_task(location, tasks[number]))

        for task, files in zip(tasks, self._run_reporting_tasks("rewrite", len(tasks), run), strict=True):
            added.setdefault(task.table, []).extend(files)
        names = [
            name
            for one in work.partition_plan.encodings
            for name in dict.fromkeys((one.exact_table, one.name))
        ]
        writes = [
            TableWrite(
                name,
                added=added.get(name, []),
                removed=[*gone.get(name, []), *removed.get(name, {})],
                deleted=deleted.get(name, {}),
                schema=table_schema(reencoded[name]) if name in reencoded else None,
                new_rows=sum(one.new_rows.get(name, 0) for one in partitions),
            )
            for name in names
        ]
        return [one for one in writes if not one.is_empty]

    def _run_reporting_tasks(self, job_name: str, task_count: int, task: Task) -> list[Any]:
        """Run tasks that each yield one report, and return the reports in the tasks' order."""
        if not task_count:
            return []

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in _task_numbers(batches):
                for cell in task(number):
                    index = CELL_SCHEMA.get_field_index("sort_key")
                    yield cell.set_column(index, "sort_key", pa.array([number], pa.int64()))

        self._set_job_description(job_name)
        found = self._spark.range(0, task_count, 1, task_count).mapInArrow(run, SPARK_SCHEMA).toArrow()
        return decode_reports(found.sort_by("sort_key")["data"].to_pylist())

    def _set_job_description(self, name: str) -> None:
        self._spark.sparkContext.setJobDescription(f"{self._title}: {name}")


@contextmanager
def _own_python_processes(spark: SparkSession, name: str) -> Iterator[None]:
    """Let UDFs that are made meanwhile run in Python processes of their own.

    Spark gives a process to any task with the same environment. Without this, each process would sooner or later hold
    the memory and the compiled kernels that only the processes of a merge need.
    """
    environment = spark.sparkContext.environment
    environment["AGGREGATOR_UDF"] = name
    try:
        yield
    finally:
        del environment["AGGREGATOR_UDF"]


def _names_in_brief(names: Iterable[str]) -> str:
    first, *others = [*names] or ["no table"]
    return f"{first} and {len(others)} more" if others else first


def _task_numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _partition_id() -> int:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("not in a task of Spark")
    return context.partitionId()


def _collect_reports(make_frame: Callable[[], DataFrame], attempts: int = JOB_ATTEMPTS) -> list[Any]:
    """Return the reports of a job's tasks; run the job again if it fails because exchanged rows were lost.

    If a Spark executor is lost, so are the exchanged rows that it stored. Spark then repeats the tasks that made them,
    but these now write files with other names. So Spark fails the job if tasks after the exchange have already ended.
    No commit has the files of a failed job.
    """
    for attempt in range(1, attempts + 1):
        try:
            found = make_frame().toArrow()
            break
        except (Py4JJavaError, PySparkException) as error:
            if attempt == attempts or LOST_EXCHANGE_TEXT not in str(error):
                raise
            log.warning("exchanged rows were lost with their executor: the batch's job starts again")
    assert all(sort_key == REPORT_SORT_KEY for sort_key in found["sort_key"].to_pylist())
    return decode_reports(found["data"].to_pylist())


def _removed_rows(partitions: Sequence[PartitionReport]) -> dict[str, dict[TableFile, RowBitmap]]:
    found: dict[str, dict[TableFile, RowBitmap]] = {}
    for report in partitions:
        for ref, bits in report.removed_row_bits.items():
            own = found.setdefault(ref.table, {})
            known = own.get(ref.file)
            own[ref.file] = bits if known is None else _union_of_bitmaps(known, bits)
    return found


def _union_of_bitmaps(one: RowBitmap, other: RowBitmap) -> RowBitmap:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    whole = longer.copy()
    whole[: len(shorter)] |= shorter
    return whole


def _combine_reports(
    work: BatchWork,
    reads: Sequence[ReadReport],
    partitions: Sequence[PartitionReport],
    tables: list[TableWrite],
    seconds: Mapping[str, float],
) -> BatchOutput:
    """Combine the reports of all tasks; write the rows of each system table in the reports as one file."""
    errors = [one.key_errors for one in reads] + [
        one.key_errors for one in partitions if one.key_errors is not None
    ]
    system: dict[str, list[DataFile]] = {}
    for table in ("_versions", "_conflicts", "_quarantine"):
        rows = [one.system_rows[table] for one in partitions if table in one.system_rows]
        if table == "_quarantine":
            rows.append(key_error_rows(pa.concat_tables(errors), work.partition_plan.reduce, work.plan.epoch))
        whole = pa.concat_tables(rows)
        system[table] = [file for one in partitions for file in one.added_files.get(table, [])]
        if whole.num_rows:
            system[table].append(write_system_rows(work.location, table, whole))
    changelog = [file for one in reads for file in one.changelog]
    if work.aggregator_rows is not None:
        changelog.append(write_system_rows(work.location, "_changelog", work.aggregator_rows))
    settled: dict[int, dict[int, int]] = {}
    for report in reads:
        for segment, found in report.settled.items():
            own = settled.setdefault(segment, {})
            for origin, lsn in found.items():
                own[origin] = max(own.get(origin, 0), lsn)
    unknown: dict[int, frozenset[int]] = {}
    for report in reads:
        for segment, ids in report.unknown_spaces.items():
            unknown[segment] = unknown.get(segment, frozenset()) | ids
    return BatchOutput(
        changelog=changelog,
        pending=[file for one in reads for file in one.pending],
        tables=tables,
        versions=system["_versions"],
        conflicts=system["_conflicts"],
        quarantine=system["_quarantine"],
        settled=settled,
        unknown_spaces=unknown,
        divergences=[found for one in reads for found in one.divergences],
        writers=frozenset[tuple[int, int]]().union(*(one.writers for one in partitions)),
        unfit_tables=frozenset[int]().union(*(one.unfit_tables for one in partitions)),
        collected_rows=pa.concat_tables(
            [COLLECTED.empty_table(), *(one.collected_rows for one in partitions)]
        ),
        executor=DistributedExecutor.name,
        copies=CopyCounts.total(one.copies for one in partitions),
        seconds=seconds,
    )

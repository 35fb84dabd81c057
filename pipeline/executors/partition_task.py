"""The second stage of a distributed batch: all keyed rows of a partition → new files of tables, and rows to remove."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.changelog.keyed_rows import KEYED
from pipeline.changelog.moves import COLLECTED
from pipeline.executors.cells import CELL_SCHEMA, REPORT_SORT_KEY, decode_cell, report_cell
from pipeline.lookup.files import BaseFiles, FileRef
from pipeline.lookup.key_copies import CopyCounts, CopyFolder
from pipeline.lookup.key_search import KeySearch, key_search_in
from pipeline.lookup.partitions import KeyRanges, PartitionKeys
from pipeline.partition import PartitionPlan, PartitionResult, process_partition
from pipeline.resolve.records import merge_key_errors
from pipeline.write.changes import rows_with_keys, write_rows
from pipeline.write.system_rows import write_system_rows
from warehouse.delta.data_files import DataFile
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile

MAX_REPORTED_BYTES = 1 << 20
"""Rows of a system table below this size are sent to the driver, which writes those of all tasks as one file."""


@dataclass(frozen=True)
class PartitionWork:
    """The inputs that all tasks of a batch's second stage share."""

    plan: PartitionPlan
    base_files: BaseFiles
    key_ranges: KeyRanges
    files_by_table: Mapping[str, list[TableFile]]
    """All files of each masked table, in which removed rows are found by their keys."""
    location: WarehouseLocation
    copy_folder: CopyFolder = field(default_factory=CopyFolder)


@dataclass
class PartitionReport:
    """The files that a task of the second stage wrote, and the rows to remove. Other fields as in `PartitionResult`."""

    added_files: dict[str, list[DataFile]] = field(default_factory=dict)
    """By table: new files of spaces' and system tables."""
    system_rows: dict[str, pa.Table] = field(default_factory=dict)
    """By system table: rows that the driver writes, since they are few."""
    removed_row_bits: dict[FileRef, NDArray[np.uint8]] = field(default_factory=dict)
    """For each file, a bitmap of the rows to remove (`numpy.packbits`)."""
    key_errors: pa.Table | None = None
    writers: frozenset[tuple[int, int]] = frozenset()
    unfit_tables: frozenset[int] = frozenset()
    collected_rows: pa.Table = field(default_factory=COLLECTED.empty_table)
    copies: CopyCounts = field(default_factory=CopyCounts)
    """How the task found keys."""
    new_rows: dict[str, int] = field(default_factory=dict)


def run_partition_task(
    partition: int, cells: Iterable[pa.RecordBatch], work: PartitionWork
) -> Iterator[pa.RecordBatch]:
    """Process one partition; pass on the reports of the first stage, and yield the partition's own report."""
    found: list[tuple[int, pa.Table]] = []
    for batch in cells:
        sort_keys = batch.column(CELL_SCHEMA.get_field_index("sort_key")).to_pylist()
        data = batch.column(CELL_SCHEMA.get_field_index("data"))
        for i, sort_key in enumerate(sort_keys):
            if sort_key == REPORT_SORT_KEY:
                yield batch.slice(i, 1)
            else:
                found.append((sort_key, decode_cell(data[i].as_buffer())))
    found.sort(key=lambda one: one[0])
    keyed = pa.concat_tables([rows for _, rows in found]) if found else KEYED.empty_table()
    del found
    if partition < work.key_ranges.partition_count:
        search = key_search_in(work.copy_folder)
        counts_before = replace(search.copies.counts)
        result = process_partition(
            keyed, work.plan, work.base_files, search, PartitionKeys(work.key_ranges, partition)
        )
        del keyed
        report = _write_result(result, work, search)
        report.copies = search.copies.counts.since(counts_before)
        yield report_cell(partition, report)


def _write_result(result: PartitionResult, work: PartitionWork, search: KeySearch) -> PartitionReport:
    report = PartitionReport(
        writers=result.writers,
        unfit_tables=result.unfit_tables,
        key_errors=merge_key_errors(result.key_errors),
    )
    report.collected_rows = result.collected_rows
    for ref, rows in result.removed.items():
        report.removed_row_bits[ref] = row_bitmap(rows)
    for number, encoding in enumerate(work.plan.encodings):
        new, keys = result.rows_by_table.get(number), result.removed_keys.get(number)
        if new is not None:
            report.new_rows[encoding.exact_table] = new.num_rows
            after_file = partial(search.add_copy, work.location) if keys is not None else None
            report.added_files.setdefault(encoding.exact_table, []).extend(
                write_rows(
                    *(work.location, encoding.exact_table, new),
                    after_file=after_file,
                    cluster_by=encoding.cluster_by,
                )
            )
        if encoding.mask is None:
            continue
        if new is not None:
            report.new_rows[encoding.name] = new.num_rows
            shown = encoding.mask.masked(new)
            masked = write_rows(work.location, encoding.name, shown, cluster_by=encoding.cluster_by)
            report.added_files.setdefault(encoding.name, []).extend(masked)
        if keys is not None:
            files = work.files_by_table.get(encoding.name, ())
            indices = rows_with_keys(work.location, encoding.name, files, keys, search)
            for file, rows in indices.items():
                report.removed_row_bits[FileRef(encoding.name, file)] = row_bitmap(rows)
    system = {"_versions": result.versions, "_conflicts": result.conflicts, "_quarantine": result.quarantine}
    for table, rows in system.items():
        if rows.nbytes < MAX_REPORTED_BYTES:
            report.system_rows[table] = rows
        else:
            report.added_files[table] = [write_system_rows(work.location, table, rows)]
    return report


def row_bitmap(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return row numbers as a bitmap (`numpy.packbits`), which needs less memory if the numbers are many."""
    bits = np.zeros(int(rows.max(initial=-1)) + 1, np.bool_)
    bits[rows] = True
    return np.packbits(bits)

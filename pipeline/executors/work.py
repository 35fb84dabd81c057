"""What both executors are given of a batch, and what they return. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from pipeline.bucket import BucketPlan
from pipeline.changelog.divergence import Divergence
from pipeline.changelog.moves import COLLECTED
from pipeline.changelog.segment_plan import SegmentPlan
from pipeline.plan.plan import BatchPlan
from pipeline.plan.summary import Summary
from pipeline.waiting import PendingRows
from pipeline.write.lookup import BaseFiles
from pipeline.write.table_change import TableChange
from pipeline.write.tables import TableWrite
from warehouse.commits import TableFile
from warehouse.data_files import DataFile
from warehouse.place import Place

SyncSpaces = Mapping[str, frozenset[int]]
"""By replicaset uuid: ids of spaces whose rows wait for a quorum."""

WatchedSpaces = Mapping[str, frozenset[int]]
"""By replicaset uuid: ids of vshard's `_bucket`, whose rows the plan looks at."""


@dataclass(frozen=True)
class BatchWork:
    """A planned batch, with all that its tasks need. But for `plan` and `pending`, which stay on the driver, picklable.

    Parameters
    ----------
    plan : BatchPlan
    place : Place
    segments : mapping of int to SegmentPlan
        By the number of a segment.
    bucket_plan : BucketPlan
    base : BaseFiles
        Where the versions before the batch are.
    files : mapping of str to sequence of TableFile
        All files of each table that readers see of a masked space, and of the exact ones.
    table_changes : mapping of str to TableChange
        What exact tables need before they can be written.
    pending : sequence of PendingRows
        Rows that waited.
    changelog_files : sequence of TableFile
        Files of `_changelog` that may have rows which the batch reads again.
    healed : sequence of mapping
        Rows of `_gaps`: ranges that were healed.
    own_rows : pyarrow.Table
        Rows of `_changelog` of the aggregator itself.
    reapplied : sequence of pyarrow.RecordBatch
        Rows of `_changelog` that are applied once more, behind all segments (`pipeline.requests.generation`).

    """

    plan: BatchPlan
    place: Place
    segments: Mapping[int, SegmentPlan]
    bucket_plan: BucketPlan
    base: BaseFiles
    files: Mapping[str, Sequence[TableFile]]
    table_changes: Mapping[str, TableChange]
    pending: Sequence[PendingRows] = ()
    changelog_files: Sequence[TableFile] = ()
    healed: Sequence[Mapping[str, object]] = ()
    own_rows: pa.Table | None = None
    reapplied: Sequence[pa.Table] = ()


@dataclass(frozen=True)
class BatchOutput:
    """What an executor has written, uncommitted.

    Parameters
    ----------
    changelog, pending : list of DataFile
    tables : list of TableWrite
        Of the tables of spaces.
    versions, conflicts, quarantine : list of DataFile
    settled : mapping of int to mapping of int to int
        By segment: replica id (0: local) to the highest lsn that went into `_changelog`.
    unknown_spaces : mapping of int to frozenset of int
        By segment: ids of spaces whose rows wait for the definition.
    divergences : list of Divergence
    writers : frozenset of (int, int)
        (number of a table, replicaset id) of all changed versions.
    unfit_tables : frozenset of int
        Numbers of tables with a version that has no usable tuple.
    collected : pyarrow.Table
        `pipeline.changelog.moves.COLLECTED`: rows of `_changelog` that vshard's garbage collector made.
    seconds : mapping of str to float
        How long each stage took.

    """

    changelog: list[DataFile] = field(default_factory=list)
    pending: list[DataFile] = field(default_factory=list)
    tables: list[TableWrite] = field(default_factory=list)
    versions: list[DataFile] = field(default_factory=list)
    conflicts: list[DataFile] = field(default_factory=list)
    quarantine: list[DataFile] = field(default_factory=list)
    settled: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    unknown_spaces: Mapping[int, frozenset[int]] = field(default_factory=dict)
    divergences: list[Divergence] = field(default_factory=list)
    writers: frozenset[tuple[int, int]] = frozenset()
    unfit_tables: frozenset[int] = frozenset()
    collected: pa.Table = field(default_factory=COLLECTED.empty_table)
    seconds: Mapping[str, float] = field(default_factory=dict)


class Executor(Protocol):
    """Reads the segments of one batch and carries its plan out."""

    def summaries(self, sync: SyncSpaces, watched: WatchedSpaces) -> dict[str, Summary]:
        """Return the summary of each replicaset's rows, by replicaset uuid."""

    def run(self, work: BatchWork) -> BatchOutput:
        """Carry a plan out: write the files of all tables, and commit nothing."""


def files_by_path(files: Iterable[TableFile]) -> dict[str, TableFile]:
    """Return files by their path."""
    return {file.path: file for file in files}

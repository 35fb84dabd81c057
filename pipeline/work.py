"""The input and the output of both executors: plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from pipeline.changelog.divergence import Divergence
from pipeline.changelog.moves import COLLECTED
from pipeline.changelog.segment_plan import SegmentPlan
from pipeline.lookup.files import BaseFiles
from pipeline.lookup.key_copies import CopyCounts, CopyFolder
from pipeline.partition import PartitionPlan
from pipeline.pending.rows import PendingRows
from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.rows.summary import Summary
from pipeline.write.changes import TableChange, TableWrite
from pipeline.write.vector_rule import NO_VECTORS, VectorRule
from warehouse.delta.data_files import DataFile
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile

SyncSpaces = Mapping[str, frozenset[int]]
"""By replicaset uuid, the ids of synchronous spaces, whose rows wait for a quorum."""

WatchedSpaces = Mapping[str, frozenset[int]]
"""By replicaset uuid, the ids of spaces whose rows all affect the plan, such as vshard's `_bucket`."""


@dataclass(frozen=True)
class BatchWork:
    """A planned batch with all inputs of its tasks.

    Picklable, except `plan` and `pending`, which stay on the driver.
    """

    plan: BatchPlan
    location: WarehouseLocation
    segment_plans: Mapping[int, SegmentPlan]
    partition_plan: PartitionPlan
    base_files: BaseFiles
    files_by_table: Mapping[str, Sequence[TableFile]]
    """All files of each table that the batch may change, masked and exact tables included."""
    table_changes: Mapping[str, TableChange]
    """For each exact table, how it must change before it can be written."""
    pending: Sequence[PendingRows] = ()
    """Waiting rows that the batch reads, without those that wait on as they are stored."""
    changelog_files: Sequence[TableFile] = ()
    """Files of `_changelog` that may contain rows which the batch reads again."""
    healed_gaps: Sequence[Mapping[str, object]] = ()
    """Rows of `_gaps` with the lsns of healed divergences; differing rows of these lsns are not reported again."""
    aggregator_rows: pa.Table | None = None
    """Rows for `_changelog` with the aggregator's own changes of `_cluster`."""
    reapplied_rows: Sequence[pa.Table] = ()
    """Rows of `_changelog` that are applied again, after all segments (`pipeline.requests.healing`)."""
    vector_rules: Mapping[str, VectorRule] = field(default_factory=dict)
    """For each table of a space: whether rows are deleted by deletion vectors; those of other tables are not."""
    copy_folder: CopyFolder = field(default_factory=CopyFolder)
    """Where key copies are stored on each machine."""

    def vector_rule(self, table: str) -> VectorRule:
        """Return whether rows of a table are deleted by deletion vectors."""
        return self.vector_rules.get(table, NO_VECTORS)


@dataclass(frozen=True)
class BatchOutput:
    """The files that an executor has written but not committed, and what it found in the rows."""

    changelog: list[DataFile] = field(default_factory=list)
    pending: list[DataFile] = field(default_factory=list)
    tables: list[TableWrite] = field(default_factory=list)
    versions: list[DataFile] = field(default_factory=list)
    conflicts: list[DataFile] = field(default_factory=list)
    quarantine: list[DataFile] = field(default_factory=list)
    settled: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """For each segment and replica id (0 for local changes), the highest lsn written to `_changelog`."""
    unknown_spaces: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """For each segment, ids of spaces whose rows wait for the space's definition."""
    divergences: list[Divergence] = field(default_factory=list)
    writers: frozenset[tuple[int, int]] = frozenset()
    """(table number, replicaset id) of each changed version: which replicasets wrote to which tables."""
    unfit_tables: frozenset[int] = frozenset()
    """Numbers of the tables with a new unfit version."""
    collected_rows: pa.Table = field(default_factory=COLLECTED.empty_table)
    """The DELETEs that vshard's garbage collector wrote, as `pipeline.changelog.moves.COLLECTED`."""
    copies: CopyCounts = field(default_factory=CopyCounts)
    """How the batch's lookups found keys."""
    executor: str | None = None
    """`driver` or `tasks`: where the batch was processed."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """The duration of each stage of the execution, by its name."""


class Executor(Protocol):
    """Summarizes the rows of one batch, and executes its plan."""

    @property
    def name(self) -> str:
        """`driver` or `tasks`: where the batch is processed."""

    def close(self) -> None:
        """Give up what the executor holds of the batch."""

    def summaries(self, sync: SyncSpaces, watched: WatchedSpaces) -> dict[str, Summary]:
        """Return the summary of each replicaset's rows, by replicaset uuid."""

    def run(self, work: BatchWork) -> BatchOutput:
        """Execute a plan: write the files of all tables, without a commit."""

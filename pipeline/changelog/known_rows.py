"""Compares rows that a batch reads again with the rows of `_changelog` from the first time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.changelog.divergence import LSN_HASHES, Divergence, differing_lsns
from pipeline.changelog.segment_plan import SegmentPlan
from warehouse.commits import TableFile
from warehouse.data_files import opened
from warehouse.place import Place

TABLE = "_changelog"
_COLUMNS = ["replicaset_id", "replica_id", "lsn", "hash", "file"]


class ChangelogFiles(Protocol):
    """The files of `_changelog` to compare with (`pipeline.executors.work.BatchWork`)."""

    @property
    def place(self) -> Place:
        """The warehouse."""

    @property
    def changelog_files(self) -> Sequence[TableFile]:
        """The files that can have the lsns of rows that are read again."""

    @property
    def healed(self) -> Sequence[Mapping[str, Any]]:
        """Rows of `_gaps`: ranges that were healed."""


def find_divergences(read: pa.Table, plan: SegmentPlan, files: ChangelogFiles) -> list[Divergence]:
    """Return the divergences of a segment, at most one per replica id.

    Parameters
    ----------
    read : pyarrow.Table
        `LSN_HASHES` of the segment's rows that were read before.
    plan : SegmentPlan
        The segment's plan; rows of a snapshot are not compared.
    files : ChangelogFiles

    """
    if not plan.file.endswith(".xlog") or not read.num_rows:
        return []
    lsns = pc.min_max(read["lsn"]).as_py()
    known = _settled_hashes(files, plan.replicaset_id, lsns["min"], lsns["max"])
    healed = [row for row in files.healed if row["replicaset_id"] == plan.replicaset_id]
    return [
        Divergence(
            *(plan.replicaset_id, plan.source, plan.file, replica_id),
            *(int(found.min()), int(found.max()), len(found)),
        )
        for replica_id, found in differing_lsns(read, known, healed).items()
    ]


def _settled_hashes(files: ChangelogFiles, replicaset_id: int, first: int, last: int) -> pa.Table:
    """Return `LSN_HASHES` of a replicaset's rows in `_changelog` from logs, with lsns from `first` to `last`."""
    parts = []
    for file in files.changelog_files:
        with opened(files.place, TABLE, file.path) as parquet:
            rows = parquet.read(columns=_COLUMNS)
        mask = pc.and_(pc.equal(rows["replicaset_id"], replicaset_id), pc.ends_with(rows["file"], ".xlog"))
        mask = pc.and_(mask, pc.and_(pc.greater_equal(rows["lsn"], first), pc.less_equal(rows["lsn"], last)))
        parts.append(rows.filter(pc.and_(mask, pc.is_valid(rows["replica_id"]))).select(LSN_HASHES.names))
    return pa.concat_tables(parts).cast(LSN_HASHES) if parts else LSN_HASHES.empty_table()

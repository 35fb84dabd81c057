"""Rows of `_changelog` that a batch reads again, for the comparison of what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.changelog.divergence import KNOWN, Divergence, differing
from pipeline.changelog.segment_plan import SegmentPlan
from warehouse.commits import TableFile
from warehouse.data_files import opened
from warehouse.place import Place

TABLE = "_changelog"
_COLUMNS = ["replicaset_id", "replica_id", "lsn", "hash", "file"]


class KnownFiles(Protocol):
    """Where such rows are (`pipeline.executors.work.BatchWork`)."""

    @property
    def place(self) -> Place:
        """The warehouse."""

    @property
    def changelog_files(self) -> Sequence[TableFile]:
        """Files of `_changelog`."""

    @property
    def healed(self) -> Sequence[Mapping[str, Any]]:
        """Rows of `_gaps`: ranges that were healed."""


def divergences_of(read: pa.Table, plan: SegmentPlan, files: KnownFiles) -> list[Divergence]:
    """Return where rows of a segment differ from what was settled under their numbers.

    Parameters
    ----------
    read : pyarrow.Table
        `pipeline.changelog.rows.READ_BEFORE`.
    plan : SegmentPlan
        Of the segment; rows of a snapshot are not compared.
    files : KnownFiles

    """
    if not plan.file.endswith(".xlog") or not read.num_rows:
        return []
    lsns = pc.min_max(read["lsn"]).as_py()
    known = known_rows(files, plan.replicaset_id, lsns["min"], lsns["max"])
    healed = [row for row in files.healed if row["replicaset_id"] == plan.replicaset_id]
    return [
        Divergence(
            *(plan.replicaset_id, plan.source, plan.file, replica_id),
            *(int(found.min()), int(found.max()), len(found)),
        )
        for replica_id, found in differing(read, known, healed).items()
    ]


def known_rows(files: KnownFiles, replicaset_id: int, first: int, last: int) -> pa.Table:
    """Return the rows of `_changelog` of a replicaset's logs with lsns from `first` to `last`, as `KNOWN`."""
    parts = []
    for file in files.changelog_files:
        with opened(files.place, TABLE, file.path) as parquet:
            rows = parquet.read(columns=_COLUMNS)
        mask = pc.and_(pc.equal(rows["replicaset_id"], replicaset_id), pc.ends_with(rows["file"], ".xlog"))
        mask = pc.and_(mask, pc.and_(pc.greater_equal(rows["lsn"], first), pc.less_equal(rows["lsn"], last)))
        parts.append(rows.filter(pc.and_(mask, pc.is_valid(rows["replica_id"]))).select(KNOWN.names))
    return pa.concat_tables(parts).cast(KNOWN) if parts else KNOWN.empty_table()

"""Rows that an older version of the aggregator left waiting although nothing is missing: they are released at a start.

Up to version 1 rows waited in `_pending` behind a space that was renamed, or got other keys, within a batch. Today
such a batch is done in one go.
"""

from __future__ import annotations

import logging

import pyarrow.compute as pc

from pipeline.batch import BatchWriter
from pipeline.commit.batch import BatchName
from pipeline.waiting import PENDING
from warehouse.commits import OpenTables
from warehouse.data_files import opened

log = logging.getLogger(__name__)

OLD_REASON = "a space goes to another table or gets other keys: what was in front of it comes first"
RELEASED = "released"
"""In `_epochs` the query of the batch that released them."""


def release_old_rows(writer: BatchWriter) -> int:
    """Apply the rows that need not wait any more, and return how many were read."""
    if not _has_old_rows(writer.tables):
        return 0
    log.warning("rows that an older version left in _pending are done now")
    rows, _ = writer.process((), BatchName(RELEASED, writer.state.epoch + 1))
    return rows


def _has_old_rows(tables: OpenTables) -> bool:
    for file in tables.files(PENDING):
        with opened(tables.place, PENDING, file.path) as parquet:
            reasons = parquet.read(columns=["reason"])["reason"]
        if pc.any(pc.equal(reasons, OLD_REASON)).as_py():
            return True
    return False

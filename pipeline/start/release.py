"""Applies rows that an older version of the aggregator left in `_pending` although nothing is missing.

Up to version 1, rows waited in `_pending` if their space was renamed, or got another primary key, within a batch. Now
one batch processes all of these rows.
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
"""The query id in `_epochs` of the batch that applies these rows."""


def release_old_rows(writer: BatchWriter) -> int:
    """Apply rows that an old release left waiting, and return the number of rows read."""
    if not _has_old_rows(writer.tables):
        return 0
    log.warning("rows that an older version left in _pending are applied now")
    rows, _ = writer.process((), BatchName(RELEASED, writer.state.epoch + 1))
    return rows


def _has_old_rows(tables: OpenTables) -> bool:
    for file in tables.files(PENDING):
        with opened(tables.place, PENDING, file.path) as parquet:
            reasons = parquet.read(columns=["reason"])["reason"]
        if pc.any(pc.equal(reasons, OLD_REASON)).as_py():
            return True
    return False

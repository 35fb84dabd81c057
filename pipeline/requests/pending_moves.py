"""Looks again at rows that wait for the other side of a move of vshard, although no log has new rows.

These rows wait until the destination's log is read up to the bucket's arrival, or for `MOVE_WAIT`. Logs that get no
more rows do not show that this time has passed; then the clock does.
"""

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow.compute as pc

from pipeline.batch import BatchWriter
from pipeline.commit.batch import BatchName
from pipeline.plan.spaces.vshard import MOVE_WAIT
from warehouse.delta.table_files import read_file

log = logging.getLogger(__name__)

QUERY_ID = "pending moves"
"""The query id in `_epochs` of batches that only look again at waiting rows."""

REASON_PART = " of vshard went to "
"""A part of `_pending.reason` of these rows."""


@dataclass
class PendingMoves:
    """Remembers how long rows wait for moves, in one process."""

    writer: BatchWriter
    _since: float | None = None
    """When such rows were first seen, by the monotonic clock."""

    def look_again_if_due(self) -> int:
        """Look again at rows that have waited for `MOVE_WAIT` since the last look; return the number of rows read."""
        if not any(one.has_waiting_rows and one.buckets for one in self.writer.state.replicasets.values()):
            self._since = None
            return 0
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since < MOVE_WAIT.total_seconds():
            return 0
        self._since = now
        return self.look_again(datetime.now(UTC))

    def look_again(self, now: datetime) -> int:
        """Look again at the waiting rows, as the logs were read to their end; return the number of rows read."""
        with self.writer.batch_lock:
            if not self._has_pending_moves():
                return 0
            log.info("rows that wait for moves of vshard are looked at again")
            name = BatchName(QUERY_ID, self.writer.state.epoch + 1)
            return self.writer.process((), name, read_to_end_at=now)[0]

    def _has_pending_moves(self) -> bool:
        tables = self.writer.tables
        for file in tables.files("_pending"):
            reasons = read_file(tables.location, "_pending", file, ["reason"])["reason"]
            if pc.any(pc.match_substring(reasons, REASON_PART)).as_py():
                return True
        return False

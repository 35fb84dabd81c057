"""Counts what the daemon received of one replicaset, and computes how far its spool is behind the peers."""

import time
from dataclasses import dataclass, field

import numpy as np

from schemas.iproto import VCLOCK_MAX
from sources.iproto.row_stream import TransactionChunk
from sources.xlog.format.vclock import Vclock


@dataclass
class FeedProgress:
    """Counts rows and events since the start of the daemon, and computes how far the spool is behind the peers.

    The spool is complete if it has all rows that the peers have reported. So the lag grows while no peer answers, and
    while a full disk keeps received rows out of the spool.
    """

    silence_seconds: float = 0.0
    """How long the peers may be silent while the spool still counts as complete."""
    received_transactions: int = 0
    written_transactions: int = 0
    repeated_rows: int = 0
    """Number of received rows that the spool already had."""
    started_streams: int = 0
    """Number of successful SUBSCRIBE requests."""
    assignment_changes: int = 0
    fetched_snapshots: int = 0
    newest_lsns: dict[int, int] = field(default_factory=dict)
    """The highest lsn of each id that any peer has reported."""
    last_row_times: dict[int, float] = field(default_factory=dict)
    """Timestamp of the last written row of each id, seconds since 1970 UTC."""
    last_report_at: float | None = None
    """When a peer last reported its lsns; None before the first report."""
    complete_at: dict[int, float] = field(default_factory=dict)
    """For each id: when a peer last reported no row that the spool lacked, or the first report of the id."""

    def record_report(self, reported: Vclock, vclock: Vclock) -> None:
        """Record that a peer has reported its lsns, when the spool had a vclock."""
        now = self.last_report_at = time.time()
        for id_, lsn in reported.items():
            self.newest_lsns[id_] = max(lsn, self.newest_lsns.get(id_, 0))
        for id_, lsn in self.newest_lsns.items():
            if lsn <= vclock.get(id_, 0):
                self.complete_at[id_] = now
            else:
                self.complete_at.setdefault(id_, now)

    def record_written(self, chunk: TransactionChunk) -> None:
        """Count the transactions of a written chunk, and store the timestamp of its last row of each replica id."""
        self.written_transactions += int(chunk.last_lsns.size)
        newest = np.full(VCLOCK_MAX, -1.0)
        np.maximum.at(newest, chunk.replica_ids, chunk.timestamps)
        for id_ in np.flatnonzero(newest >= 0):
            self.last_row_times[int(id_)] = float(newest[id_])

    def lag_rows(self, vclock: Vclock) -> dict[int, int]:
        """Return, by replica id, how many rows of the peers a spool with this vclock lacks."""
        return {i: max(0, lsn - vclock.get(i, 0)) for i, lsn in sorted(self.newest_lsns.items())}

    def lag_seconds(self, vclock: Vclock) -> dict[int, float]:
        """Return, by replica id, for how many seconds the spool has not been known to be complete; 0 if it is.

        Where rows are missing and others of the id arrive, the age of the last written row, if that is less.
        """
        now = time.time()
        is_silent = self.last_report_at is None or now - self.last_report_at > self.silence_seconds
        lags = {}
        for id_, behind in self.lag_rows(vclock).items():
            complete_at = self.complete_at.get(id_, now)
            newest = max(complete_at, self.last_row_times.get(id_, 0.0)) if behind else complete_at
            lags[id_] = max(0.0, now - newest) if behind or is_silent else 0.0
        return lags

"""Counts what a replicaset's stream has done, and how far it is behind: numbers for status and metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from schemas.iproto import VCLOCK_MAX
from sources.iproto.inflow import Chunk
from sources.subscribe.link import Link
from sources.xlog.format.vclock import Vclock


@dataclass
class FeedProgress:
    """Counters since the start of the daemon, and the newest vclock of any peer."""

    received: int = 0
    """Transactions."""
    written: int = 0
    """Transactions."""
    repeated: int = 0
    """Received rows that the spool already had."""
    streams: int = 0
    """Successful SUBSCRIBEs."""
    assignments: int = 0
    """Changes of the assignment of ids to peers."""
    snapshots: int = 0
    """FETCH_SNAPSHOTs."""
    known: dict[int, int] = field(default_factory=dict)
    """The highest lsn of each id that any peer has reported."""
    times: dict[int, float] = field(default_factory=dict)
    """Time stamp of the last written row of each id, seconds since 1970 UTC."""

    def record_peers(self, links: Iterable[Link]) -> None:
        """Update the newest vclock from the peers' answers."""
        for link in links:
            for id_, lsn in (link.ballot.vclock if link.ballot is not None else {}).items():
                self.known[id_] = max(lsn, self.known.get(id_, 0))

    def record_written(self, chunk: Chunk) -> None:
        """Count a chunk that was written."""
        self.written += int(chunk.lsns.size)
        newest = np.full(VCLOCK_MAX, -1.0)
        np.maximum.at(newest, chunk.replicas, chunk.times)
        for id_ in np.flatnonzero(newest >= 0):
            self.times[int(id_)] = float(newest[id_])

    def lag_rows(self, vclock: Vclock) -> dict[int, int]:
        """Return how many rows of each id a peer has and the spool does not."""
        return {i: max(0, lsn - vclock.get(i, 0)) for i, lsn in sorted(self.known.items())}

    def lag_seconds(self, vclock: Vclock, now: float | None = None) -> dict[int, float]:
        """Return the age of the last row of each id that is behind; 0 for an id that is not behind."""
        moment = time.time() if now is None else now
        return {
            i: max(0.0, moment - self.times.get(i, moment)) if behind else 0.0
            for i, behind in self.lag_rows(vclock).items()
        }

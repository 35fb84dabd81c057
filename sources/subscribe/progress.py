"""What a replicaset's stream has done, and how far it is behind: numbers for status and metrics.

Not here: how they are shown (`status`).
"""

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
    """Rows that came though they were had."""
    streams: int = 0
    """Successful SUBSCRIBEs."""
    assignments: int = 0
    """Changes of who feeds what."""
    snapshots: int = 0
    """FETCH_SNAPSHOTs."""
    known: dict[int, int] = field(default_factory=dict)
    """The most rows of each id that any peer has told of."""
    times: dict[int, float] = field(default_factory=dict)
    """Time stamp of the last row of each id that was written, seconds since 1970 UTC."""

    def saw(self, links: Iterable[Link]) -> None:
        """Take note of what peers have."""
        for link in links:
            for id_, lsn in (link.ballot.vclock if link.ballot is not None else {}).items():
                self.known[id_] = max(lsn, self.known.get(id_, 0))

    def wrote(self, chunk: Chunk) -> None:
        """Count a chunk."""
        self.written += int(chunk.lsns.size)
        newest = np.full(VCLOCK_MAX, -1.0)
        np.maximum.at(newest, chunk.replicas, chunk.times)
        for id_ in np.flatnonzero(newest >= 0):
            self.times[int(id_)] = float(newest[id_])

    def lag_rows(self, vclock: Vclock) -> dict[int, int]:
        """Return how many rows of each id are known of and not in the spool."""
        return {i: max(0, lsn - vclock.get(i, 0)) for i, lsn in sorted(self.known.items())}

    def lag_seconds(self, vclock: Vclock, now: float | None = None) -> dict[int, float]:
        """Return the age of the last row of each id that is behind; 0 of one that is not."""
        moment = time.time() if now is None else now
        return {
            i: max(0.0, moment - self.times.get(i, moment)) if behind else 0.0
            for i, behind in self.lag_rows(vclock).items()
        }

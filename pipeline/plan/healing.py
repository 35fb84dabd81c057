"""What a batch does to heal a replicaset by a snapshot. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pipeline.plan.rows.position import LogSegment
from pipeline.plan.rows.summary import Summary
from schemas.states import GapState


@dataclass(frozen=True)
class Healing:
    """What a batch does to heal a replicaset by a snapshot, in addition to reading the snapshot."""

    replicaset_uuid: str
    reapplied_rows: Sequence[pa.Table]
    """Rows of `_changelog` that are not in the snapshot, in log order."""
    reapplied_counts: Mapping[tuple[int, str], int]
    """The number of the rows in `reapplied_rows` by (space id, type)."""
    healed: Sequence[Mapping[str, Any]]
    """Rows of `_gaps`: divergences that the snapshot heals."""
    left_open: Sequence[Mapping[str, Any]] = ()
    """Rows of `_gaps`: divergences that stay open, since only a newer snapshot can heal them."""
    newly_open: Sequence[Mapping[str, Any]] = ()
    """Rows to add to `_gaps`: divergences with lsns that the member has lost and no open divergence contains. The rows
    of these lsns now leave the tables."""
    spaces: frozenset[int] | None = None
    """The spaces that the snapshot replaces; by default it replaces all."""

    def as_healing_segments(self, segments: Sequence[LogSegment]) -> list[LogSegment]:
        """Return the segments as those of a healing batch: with `is_healing` and the spaces to replace."""
        return [replace(segment, is_healing=True, replaced_spaces=self.spaces) for segment in segments]

    def add_counts(self, summaries: Mapping[str, Summary]) -> dict[str, Summary]:
        """Return the summaries, by replicaset uuid, with the counts of the reapplied rows added."""
        own = summaries[self.replicaset_uuid]
        counts = Counter(
            {(0, space_id, kind): rows for (space_id, kind), rows in self.reapplied_counts.items()}
        )
        return {**summaries, self.replicaset_uuid: replace(own, row_counts=own.row_counts + counts)}

    def gap_rows(self, epoch: int) -> list[dict[str, Any]]:
        """Return the rows to append to `_gaps`: healed divergences, and newly open ones."""
        now = {"epoch": epoch, "found_at": datetime.now(UTC)}
        healed = [{**row, **now, "state": GapState.HEALED} for row in self.healed]
        return [*healed, *({**row, **now} for row in self.newly_open)]

"""Named warnings, with the source, the lsns or the batch in their text. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.states import GapKind, GapState
from warehouse.gaps import Gap


@dataclass(frozen=True)
class Notice:
    """One named warning.

    Parameters
    ----------
    name : str
        source_stale, source_back, gap_opened, divergence, batch_slow.
    message : str
    details : mapping
        The same as data.

    """

    name: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


def source_stale(source: str, silent: float) -> Notice:
    """Return the notice about a leading source that gave no row for that many seconds."""
    message = (
        f"source {source} is stale: no row of it for {silent:.0f} s; is its server up, are its files copied?"
    )
    return Notice("source_stale", message, {"source": source, "silent_seconds": round(silent, 3)})


def source_back(source: str) -> Notice:
    """Return the notice about a source that was stale and gives rows again."""
    return Notice("source_back", f"source {source} gives rows again", {"source": source})


def gap_found(gap: Gap) -> Notice:
    """Return the notice about a new row of `_gaps`."""
    place = f"replicaset {gap.replicaset_id}, source {gap.source}, replica id {gap.local_id}"
    details = {name: getattr(gap, name) for name in gap.__dataclass_fields__}
    if gap.kind == GapKind.DIVERGENCE:
        message = (
            f"divergence: {place}: two logs have different rows under lsns {gap.first_lsn} to {gap.last_lsn}"
        )
        return Notice("divergence", message, details)
    what = "rows behind it wait" if gap.state == GapState.OPEN else "it was skipped"
    message = f"gap: {place}: lsns {gap.first_lsn} to {gap.last_lsn} are missing before {gap.file}; {what}"
    return Notice("gap_opened", message, details)


def batch_slow(batch_id: int, took: float, trigger: float) -> Notice:
    """Return the notice about a batch that took longer than the interval between batches; both in seconds."""
    message = f"batch {batch_id} took {took:.1f} s, longer than the trigger of {trigger:.1f} s"
    details = {"batch": batch_id, "seconds": round(took, 3), "trigger_seconds": trigger}
    return Notice("batch_slow", message, details)

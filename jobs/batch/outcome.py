"""What one micro-batch did, for whoever shows or measures it. Not here: showing it (`jobs.progress`, metrics)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Outcome:
    """What one batch did, for progress and logs.

    Parameters
    ----------
    rows : int
        Rows read, those of other members' copies included.
    seconds : float
    tables : int
        Tables of spaces written.
    steps : mapping of str to float
        Seconds from the beginning at which each step was done, in their order; some run side by side.

    """

    batch_id: int
    rows: int
    seconds: float
    tables: int
    steps: Mapping[str, float] = field(default_factory=dict)

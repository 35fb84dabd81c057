"""Spark's report of a trigger, in seconds and names of sources: its own phases, how far each leader is. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Trigger:
    """One trigger of the stream, with a batch or without.

    Parameters
    ----------
    query_id : str
        As `_epochs` has it.
    batch_id : int
    phases : mapping of str to float
        Spark's `durationMs`, in seconds; `triggerExecution` is the whole.
    leaders : frozenset of str
        Sources that lead their replicasets.
    behind : mapping of str to int
        Leader to bytes of its log that were not read yet, where log and place are the same file.

    """

    query_id: str
    batch_id: int
    phases: Mapping[str, float] = field(default_factory=dict)
    leaders: frozenset[str] = frozenset()
    behind: Mapping[str, int] = field(default_factory=dict)


def step_of(progress: Mapping[str, Any]) -> Trigger:
    """Return a step.

    Parameters
    ----------
    progress : mapping
        Spark's StreamingQueryProgress as JSON.

    """
    sources = progress.get("sources") or [{}]
    end, latest = (_replicasets(sources[0].get(name)) for name in ("endOffset", "latestOffset"))
    behind = {
        target["leader"]: max(0, target["position"] - end[uuid]["position"])
        for uuid, target in latest.items()
        if uuid in end and end[uuid]["file"] == target["file"]
    }
    leaders = {one["leader"] for one in (end or latest).values()}
    phases = {name: ms / 1000 for name, ms in (progress.get("durationMs") or {}).items()}
    return Trigger(str(progress.get("id")), progress["batchId"], phases, frozenset(leaders), behind)


def _replicasets(offset: Any) -> dict[str, Any]:
    found = json.loads(offset) if isinstance(offset, str) else offset
    replicasets: dict[str, Any] = (found or {}).get("replicasets", {})
    return replicasets

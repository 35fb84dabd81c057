"""Parses Spark's report of a trigger: phases in seconds, and the lag of each leader. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sources.xlog.directory.offset import InstantState


@dataclass(frozen=True)
class Trigger:
    """One trigger of the stream, with or without a batch.

    Parameters
    ----------
    query_id : str
        As in `_epochs`.
    batch_id : int
    phases : mapping of str to float
        Spark's `durationMs`, in seconds; `triggerExecution` is the total.
    leaders : frozenset of str
        Sources that lead their replicasets.
    behind : mapping of str to int
        Leader to unread bytes of its log, if its position is in its last file.
    waiting_since : mapping of str to float
        Leader that waits at an instant for the other replicasets, to the time of the marker in its log, seconds since
        1970.

    """

    query_id: str
    batch_id: int
    phases: Mapping[str, float] = field(default_factory=dict)
    leaders: frozenset[str] = frozenset()
    behind: Mapping[str, int] = field(default_factory=dict)
    waiting_since: Mapping[str, float] = field(default_factory=dict)


def step_of(progress: Mapping[str, Any]) -> Trigger:
    """Return the trigger of a progress report.

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
    instants = {one["leader"]: one["instant"] for one in end.values() if one.get("instant")}
    since = {
        leader: instant["time"] / 1_000_000
        for leader, instant in instants.items()
        if instant["state"] == InstantState.WAITING
    }
    phases = {name: ms / 1000 for name, ms in (progress.get("durationMs") or {}).items()}
    return Trigger(str(progress.get("id")), progress["batchId"], phases, frozenset(leaders), behind, since)


def _replicasets(offset: Any) -> dict[str, Any]:
    found = json.loads(offset) if isinstance(offset, str) else offset
    replicasets: dict[str, Any] = (found or {}).get("replicasets", {})
    return replicasets

"""Asking a source for its own `_cluster` when it is new to its replicaset, as document 000's protocol does.

A replicaset that is not known yet, or a source that takes over from another one, tells whose replica id is whose
before its rows are read; else rows of ids that were registered in files which nobody reads would wait for ever, and
ids that two members gave to different instances would be mixed up. A source that goes on is followed by its rows.
Where no file is left that could tell, nobody was asked: an empty answer means an empty `_cluster`.
Not here: what follows from it (`jobs.batch.members`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from jobs.batch.state import Replicaset, State
from jobs.batch.stretch import Stretch
from sources.xlog.follow import Follower
from sources.xlog.members import members_at
from sources.xlog.segment import Segment


def with_announced(
    stretches: Iterable[Stretch],
    segments: Mapping[int, Segment],
    follower: Follower,
    state: State,
    sources: int,
) -> list[Stretch]:
    """Return the stretches, each source's first one with its `_cluster` where it is to be asked.

    Parameters
    ----------
    stretches : iterable of Stretch
    segments : mapping of int to Segment
        By number.
    follower : Follower
        Knows the sources' files.
    state : State
        Before the batch.
    sources : int
        How many are configured: where there are more than replicasets, some have several.

    """
    found: list[Stretch] = []
    seen: set[str] = set()
    replicasets = set(state.replicasets) | {segment.replicaset_uuid for segment in segments.values()}
    for stretch in stretches:
        known = state.replicasets.get(stretch.replicaset_uuid)
        first = stretch.source not in seen
        seen.add(stretch.source)
        if first and _is_asked(known, stretch.source, several=sources > len(replicasets)):
            segment = segments[stretch.segment]
            directory = follower.directory(stretch.source)
            # A snapshot holds all of its `_cluster` itself.
            told = {} if stretch.is_snapshot else members_at(directory, directory.listing(), segment)
            if told or stretch.is_snapshot or not any(segment.vclock.values()):
                stretch = replace(stretch, announced=told)  # noqa: PLW2901
        found.append(stretch)
    return found


def _is_asked(known: Replicaset | None, source: str, *, several: bool) -> bool:
    if known is None or not known.maps:
        return True
    return source not in known.views and (several or known.source != source)

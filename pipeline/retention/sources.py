"""Finds configured sources that were never read, and the snapshots by which tables can be healed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.state import State
from schemas.errors import AggregatorError
from sources.xlog.directory.directory import Directory
from sources.xlog.format.vclock import not_beyond, shared
from sources.xlog.stream.follow import Follower
from sources.xlog.stream.identity import identity_of


@dataclass(frozen=True)
class SourceProgress:
    """The progress of reading the configured sources.

    Parameters
    ----------
    replicasets : frozenset of str
        Uuids of the sources' replicasets.
    unread : mapping of str to str
        For each source without a row of its replicaset in the tables, the reason.
    unreadable : frozenset of str
        The sources in `unread` whose files cannot be read.
    snapshots : mapping of str to mapping of int to int
        By replicaset uuid: the vclock, in the replicaset's ids, of the newest complete snapshot that the tables
        have reached.

    """

    replicasets: frozenset[str] = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    snapshots: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


def source_progress(follower: Follower, state: State, names: Iterable[str] = ()) -> SourceProgress:
    """Return the progress of the configured sources.

    Parameters
    ----------
    follower : Follower
        Follows the deployment's sources.
    state : State
    names : iterable of str, optional
        Names of sources in a newer configuration, which the running stream may not read yet.

    """
    known = {source.name for source in follower.options.sources}
    unread = dict.fromkeys(sorted(set(names) - known), "the running stream does not read it yet")
    unreadable: set[str] = set()
    replicasets: set[str] = set()
    snapshots: dict[str, Mapping[int, int]] = {}
    for name in sorted(known):
        try:
            uuid, vclock = _newest_usable_snapshot(follower.directory(name), state)
        except (AggregatorError, OSError, pa.ArrowException) as error:
            unread[name] = f"it cannot be read: {error}"
            unreadable.add(name)
            continue
        replicasets.add(uuid)
        if uuid not in state.replicasets:
            unread[name] = "no row of its replicaset was read yet"
        if vclock is not None and sum(vclock.values()) >= sum(snapshots.get(uuid, {}).values()):
            snapshots[uuid] = vclock
    return SourceProgress(frozenset(replicasets), unread, frozenset(unreadable), snapshots)


def _newest_usable_snapshot(directory: Directory, state: State) -> tuple[str, dict[int, int] | None]:
    """Return the replicaset of a source, and the vclock of its newest snapshot that the tables have reached."""
    listing = directory.listing()
    uuid = identity_of(directory, listing)
    one = state.replicasets.get(uuid)
    if one is None:
        return uuid, None
    ids = one.id_translations.get(directory.source.name, {})
    for file in reversed(directory.complete_snapshots(listing.snapshots)):
        vclock = {ids.get(i, i): lsn for i, lsn in shared(file.vclock).items()}
        if not_beyond(vclock, one.settled):
            return uuid, vclock
    return uuid, None

"""Assigns the rows of each instance to a peer that feeds them (documents 002 and 004), with pure functions.

A peer is named by its instance uuid, an instance by its replica id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from sources.iproto.messages import Ballot

Assignment = Mapping[str, frozenset[int]]
"""Peer → the replica ids that it feeds; a peer without ids is not in it."""


class OrphanPolicy(StrEnum):
    """Which peer feeds an instance that is not connected itself: the last peer, or peers in turn."""

    LAST = "last"
    ROUND_ROBIN = "round_robin"


def assign(
    peers: Sequence[str],
    owners: Mapping[int, str],
    current: Assignment | None = None,
    orphans: OrphanPolicy = OrphanPolicy.LAST,
    feedable: Mapping[str, Collection[int]] | None = None,
) -> dict[str, frozenset[int]]:
    """Give each replica id to one peer.

    An id goes to the peer of that id if that peer is connected. An orphan stays with its current peer; a new one goes
    to the last peer in the order of replica ids, or to the peer with the fewest ids.

    Parameters
    ----------
    peers : sequence of str
        The connected peers.
    owners : mapping of int to str
        {replica id: instance uuid}: every id to assign.
    current : Assignment, optional
        The current assignment.
    orphans : OrphanPolicy
        What happens to ids without a connected peer of their own.
    feedable : mapping, optional
        Peer → ids that it can feed: it has the logs, and is not behind. By default all can feed all.

    Returns
    -------
    dict of str to frozenset of int
        An id that no peer can feed is missing.

    """
    order = _sort_by_id(peers, owners)
    result: dict[str, set[int]] = {peer: set() for peer in order}
    current_peers = {id_: peer for peer, ids in (current or {}).items() for id_ in ids}
    unassigned = []
    for id_ in sorted(owners):
        candidates = [peer for peer in order if feedable is None or id_ in feedable.get(peer, ())]
        if owners[id_] in candidates:
            result[owners[id_]].add(id_)
        elif current_peers.get(id_) in candidates:
            result[current_peers[id_]].add(id_)
        elif candidates:
            unassigned.append((id_, candidates))
    for id_, candidates in unassigned:
        chosen = (
            candidates[-1]
            if orphans is OrphanPolicy.LAST
            else min(candidates, key=lambda p: (len(result[p]), order.index(p)))
        )
        result[chosen].add(id_)
    return {peer: frozenset(ids) for peer, ids in result.items() if ids}


def choose_leader(
    peers: Sequence[str],
    ids: Collection[int],
    current: str | None,
    ballots: Mapping[str, Ballot],
    feedable: Mapping[str, Collection[int]],
) -> dict[str, frozenset[int]]:
    """Give every id to one peer: the current leader, else the able peer with the most rows.

    Parameters
    ----------
    peers : sequence of str
        The connected peers; the first one wins a tie.
    ids : collection of int
        All ids to feed.
    current : str or None
        The current leader.
    ballots : mapping
        The vote of each peer.
    feedable : mapping
        Peer → ids that it can feed; one that cannot feed them all cannot lead.

    """
    candidates = [peer for peer in peers if frozenset(feedable.get(peer, ())) >= frozenset(ids)]
    if not candidates:
        return {}
    chosen = (
        current
        if current in candidates
        else max(candidates, key=lambda peer: sum(ballots[peer].vclock.values()))
    )
    return {chosen: frozenset(ids)} if chosen is not None else {}


def _sort_by_id(peers: Sequence[str], owners: Mapping[int, str]) -> list[str]:
    """Return the peers in the order of their replica ids; those without an id come first, in the given order."""
    ids = {uuid: id_ for id_, uuid in owners.items()}
    return sorted(dict.fromkeys(peers), key=lambda peer: ids.get(peer, 0))

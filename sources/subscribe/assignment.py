"""Decides which peer feeds the rows of each instance: that is, sends them to the daemon. The functions are pure.

A peer is identified by its instance uuid, and an instance by its replica id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from sources.iproto.messages import Ballot

Assignment = Mapping[str, frozenset[int]]
"""For each peer, the replica ids that it feeds; peers without ids are left out."""


class OrphanPolicy(StrEnum):
    """Which peer feeds an orphan, an instance that is not connected itself: the last peer, or the peers in turn."""

    LAST = "last"
    ROUND_ROBIN = "round_robin"


def assign(
    peers: Sequence[str],
    owners: Mapping[int, str],
    current: Assignment | None = None,
    orphans: OrphanPolicy = OrphanPolicy.LAST,
    feedable: Mapping[str, Collection[int]] | None = None,
) -> dict[str, frozenset[int]]:
    """Assign each replica id to one peer.

    An id is assigned to the instance that owns it, if this is connected. Otherwise it is an orphan: it stays with its
    current peer; a new orphan goes to the last peer by replica id, or to the peer with the fewest ids.

    Parameters
    ----------
    peers : sequence of str
        Uuids of the connected peers.
    owners : mapping of int to str
        {replica id: instance uuid} of all ids to assign.
    current : Assignment, optional
        The current assignment.
    orphans : OrphanPolicy
        Which peer gets a new orphan.
    feedable : mapping, optional
        For each peer, the ids that it can feed: it has the logs, and is not behind. None: each peer can feed all ids.

    Returns
    -------
    dict of str to frozenset of int
        For each peer, its ids. An id that no peer can feed is left out.

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
    """Assign all ids to one peer: the current leader if it can feed them, else the peer with the most rows that can.

    Parameters
    ----------
    peers : sequence of str
        Uuids of the connected peers; of several with equally many rows, the first is chosen.
    ids : collection of int
        All ids to feed.
    current : str or None
        Uuid of the current leader.
    ballots : mapping
        The ballot of each peer.
    feedable : mapping
        For each peer, the ids that it can feed; only a peer that can feed all ids is chosen.

    Returns
    -------
    dict of str to frozenset of int
        The chosen peer with all ids; empty if no peer can feed them all.

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
    """Return the peers sorted by replica id, without duplicates; peers without an id come first."""
    ids = {uuid: id_ for id_, uuid in owners.items()}
    return sorted(dict.fromkeys(peers), key=lambda peer: ids.get(peer, 0))

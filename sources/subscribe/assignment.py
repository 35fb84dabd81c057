"""Decides which peer feeds the rows of each instance (sends them to the daemon), and from which vclock on.

The functions are pure. A peer is identified by its instance uuid, and an instance by its replica id.

A server does not report a start vclock that is higher than its own: it silently leaves out rows until it has passed the
start. So `peer_fitness` is checked before each SUBSCRIBE.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sources.iproto.messages import Ballot
from sources.xlog.format.vclock import Vclock

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


@dataclass(frozen=True)
class PeerFitness:
    """Which replica ids a peer can feed from a start vclock on, and why it cannot feed the others.

    Parameters
    ----------
    feedable : frozenset of int
        Ids whose lsn in the start vclock is between those in the peer's gc vclock and its vclock.
    lost : mapping of int to int
        Ids whose logs the peer no longer has; with the lsn after which its logs begin.
    behind : mapping of int to int
        Ids of which the peer has fewer rows than the start vclock; with the peer's last lsn.

    """

    feedable: frozenset[int]
    lost: Mapping[int, int]
    behind: Mapping[int, int]


def peer_fitness(ballot: Ballot, start: Vclock, ids: Collection[int]) -> PeerFitness:
    """Compare a peer's ballot with a start vclock, for some replica ids."""
    lost = {i: ballot.gc_vclock[i] for i in ids if ballot.gc_vclock.get(i, 0) > start.get(i, 0)}
    behind = {i: ballot.vclock.get(i, 0) for i in ids if ballot.vclock.get(i, 0) < start.get(i, 0)}
    return PeerFitness(frozenset(ids) - lost.keys() - behind.keys(), lost, behind)


def start_vclock(ballot: Ballot, start: Vclock, ids: Collection[int] | None) -> dict[int, int]:
    """Return the start vclock for a SUBSCRIBE to a peer.

    Parameters
    ----------
    ballot : Ballot
        The peer's ballot.
    start : Vclock
        The spool's vclock.
    ids : collection of int or None
        Ids that the peer feeds; None: all. For other ids the result has the peer's own lsns, so that it does not need
        or read their logs.

    """
    if ids is None:
        return {i: lsn for i, lsn in start.items() if lsn}
    other_ids = {i: max(lsn, start.get(i, 0)) for i, lsn in ballot.vclock.items() if i not in ids}
    return other_ids | {i: start[i] for i in ids if start.get(i, 0)}


def is_rewound(
    owner: str, id_: int, ballots: Mapping[str, Ballot], spool_vclocks: Mapping[str, Vclock]
) -> bool:
    """Return whether the spool has rows of a connected instance that no connected peer has, not even the instance.

    An instance that was restored to an older state fetches its own rows from its peers if they have them. So the caller
    repeats the check for some time.

    `owner` is the instance's uuid, and `id_` its replica id. `ballots` and `spool_vclocks` have for each peer its
    ballot, and the spool's vclock when it was requested.
    """
    return owner in ballots and all(
        ballot.vclock.get(id_, 0) < spool_vclocks[peer].get(id_, 0) for peer, ballot in ballots.items()
    )

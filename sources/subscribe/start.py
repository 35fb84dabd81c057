"""Decides whether a peer can feed an instance's rows from our position, and the vclock to ask for.

The functions are pure. A server does not report a start that is ahead of it: it silently leaves rows out until it has
passed the start. So these checks run before each SUBSCRIBE; `replicaset` acts on them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sources.iproto.messages import Ballot
from sources.xlog.format.vclock import Vclock


@dataclass(frozen=True)
class PeerFitness:
    """Which of the wanted ids a peer can feed.

    Parameters
    ----------
    feedable : frozenset of int
        gc <= start <= current.
    lost : mapping of int to int
        Ids whose logs the peer no longer has → the lsn that its logs begin after.
    behind : mapping of int to int
        Ids with fewer rows on the peer than in the spool → its last lsn.

    """

    feedable: frozenset[int]
    lost: Mapping[int, int]
    behind: Mapping[int, int]


def peer_fitness(ballot: Ballot, start: Vclock, ids: Collection[int]) -> PeerFitness:
    """Return which ids a peer can feed from `start` on."""
    lost = {i: ballot.gc_vclock[i] for i in ids if ballot.gc_vclock.get(i, 0) > start.get(i, 0)}
    behind = {i: ballot.vclock.get(i, 0) for i in ids if ballot.vclock.get(i, 0) < start.get(i, 0)}
    return PeerFitness(frozenset(ids) - lost.keys() - behind.keys(), lost, behind)


def start_vclock(ballot: Ballot, start: Vclock, ids: Collection[int] | None) -> dict[int, int]:
    """Return the vclock for SUBSCRIBE.

    Parameters
    ----------
    ballot : Ballot
        The peer's.
    start : Vclock
        Our position.
    ids : collection of int or None
        Ids that the peer feeds, None for all. The others get the peer's own position: their logs are neither needed
        nor read.

    """
    if ids is None:
        return {i: lsn for i, lsn in start.items() if lsn}
    other_ids = {i: max(lsn, start.get(i, 0)) for i, lsn in ballot.vclock.items() if i not in ids}
    return other_ids | {i: start[i] for i in ids if start.get(i, 0)}


def is_rewound(
    owner: str, id_: int, ballots: Mapping[str, Ballot], spool_vclocks: Mapping[str, Vclock]
) -> bool:
    """Return whether an instance, and every other peer, has fewer of its rows than we had at the time of the request.

    An instance that is restored from an older state fetches its own rows from its peers if they have them; so one
    answer proves nothing, and the caller checks for a while.

    Parameters
    ----------
    owner : str
        Uuid of the instance.
    id_ : int
        Its replica id.
    ballots, spool_vclocks : mapping
        By peer: its answer, and our vclock at the time of the request.

    """
    return owner in ballots and all(
        ballot.vclock.get(id_, 0) < spool_vclocks[peer].get(id_, 0) for peer, ballot in ballots.items()
    )

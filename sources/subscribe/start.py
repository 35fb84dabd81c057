"""Decides whether a peer can send an instance's rows after the spool's vclock, and computes the vclock for SUBSCRIBE.

The functions are pure. A server does not report a start vclock that is higher than its own: it silently leaves out rows
until it has passed the start. So these checks run before each SUBSCRIBE.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sources.iproto.messages import Ballot
from sources.xlog.format.vclock import Vclock


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

"""Decides which peer feeds the rows of each instance (sends them to the daemon), and from which vclock on.

The rules are pure functions. `FeedChooser` applies them to the peers' last ballots. Some decisions are made only after
a condition was true for some time, so it stores since when it is true. It sends nothing and starts no stream
(`replicaset` does). A peer is identified by its instance uuid, and an instance by its replica id.

A server does not report a start vclock that is higher than its own: it silently leaves out rows until it has passed the
start. So `peer_fitness` is checked before each SUBSCRIBE.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sources.iproto.messages import REPLICA_IDS, Ballot
from sources.subscribe.link import PeerLink
from sources.subscribe.options import FeedMode, OrphanPolicy, ReplicasetOptions
from sources.xlog.format.vclock import Vclock

IdsByPeer = Mapping[str, frozenset[int] | None]
"""For each peer, by instance uuid, the replica ids that it feeds; None: all ids, also those registered later."""


@dataclass(frozen=True)
class FeedDecision:
    """Which streams should run, and whether rows are lost.

    Parameters
    ----------
    assignment : IdsByPeer
        The streams that should run.
    is_gap : bool
        Whether no peer has the logs with some missing rows any more, so that a new snapshot is needed.
    accepted_behind : frozenset of int
        Ids of disconnected instances of which the spool has more rows than each connected peer. A peer may feed them
        although it is behind: the first rows that it sends are in the spool already.

    """

    assignment: IdsByPeer
    is_gap: bool = False
    accepted_behind: frozenset[int] = frozenset()


def total_rows(link: PeerLink) -> int:
    """Return the signature of a peer's vclock (the sum of its lsns); -1 if the peer is not connected."""
    return sum(link.ballot.vclock.values()) if link.ballot is not None else -1


def format_assignment(assignment: IdsByPeer, ready: Mapping[str, PeerLink]) -> str:
    """Return an assignment as text for log lines."""
    return ", ".join(
        f"{ready[uuid].name}: {'all' if ids is None else sorted(ids)}"
        for uuid, ids in sorted(assignment.items())
    )


@dataclass
class FeedChooser:
    """Decides which peers of one replicaset should send which rows."""

    options: ReplicasetOptions
    owners: dict[int, str] = field(default_factory=dict)
    """{replica id: instance uuid} of all instances, as of the last decision."""
    _rewound_since: dict[int, float] = field(default_factory=dict)
    _stuck: dict[int, tuple[int, float]] = field(default_factory=dict)
    _gap_since: float | None = None

    def decide(
        self,
        ready: Mapping[str, PeerLink],
        vclock: Vclock,
        lacking_logs: Mapping[str, Vclock],
        current: IdsByPeer,
        now: float,
    ) -> FeedDecision:
        """Return the streams that should run.

        Parameters
        ----------
        ready : mapping
            The connected peers, by instance uuid.
        vclock : Vclock
            The vclock of the spool.
        lacking_logs : mapping
            Peers that answered that they no longer have the logs, with the spool's vclock at that time.
        current : IdsByPeer
            The streams that run now.
        now : float
            Seconds of a monotonic clock.

        """
        self.owners = self._owners(ready, vclock)
        ids = frozenset(self.owners)
        ballots = {uuid: link.ballot for uuid, link in ready.items() if link.ballot is not None}
        spool_vclocks = {uuid: ready[uuid].spool_vclock_at_vote for uuid in ballots}
        feedable, lost_ids, accepted_behind = self._find_feedable(
            ballots, spool_vclocks, vclock, {u for u, seen in lacking_logs.items() if seen == dict(vclock)}
        )
        for uuid, feed_ids in current.items():  # a running stream proves that its peer can feed the ids
            if uuid in feedable:
                feedable[uuid] |= ids if feed_ids is None else feed_ids & ids
        self._gap_since = (self._gap_since or now) if lost_ids else None
        is_complete = len(ready) == len(self.options.peers)
        is_overdue = self._gap_since is not None and now - self._gap_since >= self.options.timing.patience
        is_gap = bool(lost_ids) and (is_complete or is_overdue)
        if self.options.feed is FeedMode.OWN_PEER:
            current_ids = {uuid: feed_ids for uuid, feed_ids in current.items() if feed_ids is not None}
            return FeedDecision(
                assign(list(ready), self.owners, current_ids, self.options.orphans, feedable),
                is_gap,
                accepted_behind,
            )
        leader = next(iter(current), None)
        if leader is not None and self._is_stuck(leader, ready, now):
            others = {uuid: feed_ids for uuid, feed_ids in feedable.items() if uuid != leader}
            feedable = others if choose_leader(list(others), ids, None, ballots, others) else feedable
        assignment = choose_leader(list(ready), ids, leader, ballots, feedable)
        return FeedDecision(dict.fromkeys(assignment), is_gap, accepted_behind)

    def _find_feedable(
        self,
        ballots: Mapping[str, Ballot],
        spool_vclocks: Mapping[str, Vclock],
        vclock: Vclock,
        lacking_logs: set[str],
    ) -> tuple[dict[str, frozenset[int]], set[int], frozenset[int]]:
        """Return the ids that each peer can feed, the ids whose logs no peer has, and ids for `accepted_behind`."""
        ids = frozenset(self.owners)
        behind = {
            uuid: peer_fitness(ballot, spool_vclocks[uuid], ids).behind.keys()
            for uuid, ballot in ballots.items()
        }
        accepted_behind = frozenset(
            i
            for i in ids
            if self.owners[i] not in ballots and all(i in feed_ids for feed_ids in behind.values())
        )
        feedable: dict[str, frozenset[int]] = {}
        for uuid, ballot in ballots.items():
            missing = peer_fitness(ballot, vclock, ids).lost.keys() | (behind[uuid] - accepted_behind)
            feedable[uuid] = frozenset() if uuid in lacking_logs else ids - missing
        lost_ids = {
            i
            for i in ids
            if any(ballot.vclock.get(i, 0) > vclock.get(i, 0) for ballot in ballots.values())
            and not any(i in feed_ids for feed_ids in feedable.values())
            and not any(i in behind[uuid] for uuid in ballots if uuid not in lacking_logs)
        }
        return feedable, lost_ids, accepted_behind

    def is_every_id_fed(self, current: IdsByPeer) -> bool:
        """Return whether a peer feeds each id.

        If not, rows of other ids could be merged before earlier rows of the id that no peer feeds.
        """
        if self.options.feed is FeedMode.LEADER:
            return True
        fed = {i for ids in current.values() if ids is not None for i in ids}
        return fed >= self.owners.keys()

    def rewound_instances(self, ready: Mapping[str, PeerLink], vclock: Vclock, now: float) -> dict[int, int]:
        """Return instances that lost rows which the spool has, and did not fetch them from their peers for some time.

        The result maps the replica id to the highest lsn that any peer has of it.
        """
        ballots = {uuid: link.ballot for uuid, link in ready.items() if link.ballot is not None}
        spool_vclocks = {uuid: ready[uuid].spool_vclock_at_vote for uuid in ballots}
        owners = self._owners(ready, vclock)
        rewound_ids = [i for i, owner in owners.items() if is_rewound(owner, i, ballots, spool_vclocks)]
        self._rewound_since = {i: self._rewound_since.get(i, now) for i in rewound_ids}
        return {
            i: max(ballot.vclock.get(i, 0) for ballot in ballots.values())
            for i in rewound_ids
            if now - self._rewound_since[i] >= self.options.timing.patience
        }

    def _owners(self, ready: Mapping[str, PeerLink], vclock: Vclock) -> dict[int, str]:
        """Return {replica id: instance uuid}; the uuid is empty if the id is in vclocks only (an expelled instance)."""
        newest = max(ready.values(), key=total_rows)
        owners = {i: "" for link in ready.values() for i in (link.ballot.vclock if link.ballot else ())}
        owners |= dict.fromkeys(vclock, "") | dict(newest.cluster)
        return {i: uuid for i, uuid in owners.items() if i in REPLICA_IDS}

    def _is_stuck(self, leader: str, ready: Mapping[str, PeerLink], now: float) -> bool:
        """Return whether the leader got no rows of some id for `patience` seconds although another peer has more."""
        ballot = ready[leader].ballot if leader in ready else None
        if ballot is None:
            return True
        others = [link.ballot for uuid, link in ready.items() if uuid != leader and link.ballot is not None]
        stuck = {}
        for id_ in self.owners:
            lsn = ballot.vclock.get(id_, 0)
            if any(other.vclock.get(id_, 0) > lsn for other in others):
                before = self._stuck.get(id_)
                stuck[id_] = before if before is not None and before[0] == lsn else (lsn, now)
        self._stuck = stuck
        return any(now - since >= self.options.timing.patience for _, since in stuck.values())


Assignment = Mapping[str, frozenset[int]]
"""For each peer, the replica ids that it feeds; peers without ids are left out."""


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
    current_standbys = {id_: peer for peer, ids in (current or {}).items() for id_ in ids}
    unassigned = []
    for id_ in sorted(owners):
        candidates = [peer for peer in order if feedable is None or id_ in feedable.get(peer, ())]
        if owners[id_] in candidates:
            result[owners[id_]].add(id_)
        elif current_standbys.get(id_) in candidates:
            result[current_standbys[id_]].add(id_)
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

"""Decides which peer feeds the rows of each instance (sends them to the daemon), and from which vclock on.

A server accepts a start vclock that is higher than its own: it sends no row, and no error, until it has passed the
start. So `peer_fitness` is checked before each SUBSCRIBE.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sources.iproto.messages import REPLICA_IDS, Ballot
from sources.subscribe.options import FeedMode, OrphanPolicy, ReplicasetOptions
from sources.subscribe.peer_state import PeerLink
from sources.xlog.format.vclock import Vclock

IdsByPeer = Mapping[str, frozenset[int] | None]
"""For each peer, by instance uuid, the replica ids that it feeds; None: all ids, also those registered later."""


@dataclass(frozen=True)
class FeedDecision:
    """Which streams should run, and whether a new snapshot is needed."""

    assignment: IdsByPeer
    """The streams that should run."""
    needs_snapshot: bool = False
    """Whether a new snapshot is needed, because no peer still has the logs with rows that the spool lacks."""
    accepted_behind_ids: frozenset[int] = frozenset()
    """Ids of disconnected instances of which the spool has more rows than each connected peer. A peer may feed these
    ids although it is behind the spool; the spool already has the first rows that this peer sends then."""


def peer_signature(link: PeerLink) -> int:
    """Return the signature of a peer's vclock, which is the sum of its lsns; -1 if the peer is not connected."""
    return sum(link.ballot.vclock.values()) if link.ballot is not None else -1


def format_assignment(assignment: IdsByPeer, ready_links: Mapping[str, PeerLink]) -> str:
    """Return an assignment as text for log messages; `ready_links` has the connected peers by instance uuid."""
    return ", ".join(
        f"{ready_links[uuid].name}: {'all' if ids is None else sorted(ids)}"
        for uuid, ids in sorted(assignment.items())
    )


@dataclass
class FeedChooser:
    """Decides which peer of one replicaset should send the rows of which replica ids."""

    options: ReplicasetOptions
    owners: dict[int, str] = field(default_factory=dict)
    """{replica id: instance uuid} of all instances, as of the last decision."""
    _rewound_since: dict[int, float] = field(default_factory=dict)
    """For each replica id whose instance has lost rows, the time since when."""
    _stuck_since: dict[int, tuple[int, float]] = field(default_factory=dict)
    """For each replica id of which the leader lacks rows: its lsn there, and since when it is the same."""
    unfit_reasons: dict[str, str] = field(default_factory=dict)
    """For each connected peer, by instance uuid, that cannot feed all ids: why, as of the last decision."""
    _gap_since: float | None = None
    """Since when no peer has the logs with missing rows; None if a peer has them."""

    def decide(
        self,
        ready_links: Mapping[str, PeerLink],
        vclock: Vclock,
        lacking_logs: Mapping[str, Vclock],
        current: IdsByPeer,
        now: float,
    ) -> FeedDecision:
        """Return the streams that should run.

        Args:
            lacking_logs: For each peer, by instance uuid, that refused a stream because it no longer has the logs: the
                vclock of the spool at that time.
        """
        self.owners = self._id_owners(ready_links, vclock)
        ids = frozenset(self.owners)
        ballots = {uuid: link.ballot for uuid, link in ready_links.items() if link.ballot is not None}
        spool_vclocks = {uuid: ready_links[uuid].spool_vclock_at_vote for uuid in ballots}
        feedable_by_peer, lost_ids, accepted_behind_ids = self._find_feedable(
            ballots, spool_vclocks, vclock, {u for u, seen in lacking_logs.items() if seen == dict(vclock)}
        )
        for uuid, feed_ids in current.items():  # a running stream proves that its peer can feed the ids
            if uuid in feedable_by_peer:
                feedable_by_peer[uuid] |= ids if feed_ids is None else feed_ids & ids
        self._gap_since = (self._gap_since or now) if lost_ids else None
        is_complete = len(ready_links) == len(self.options.peers)
        is_overdue = (
            self._gap_since is not None and now - self._gap_since >= self.options.timing.patience_seconds
        )
        needs_snapshot = bool(lost_ids) and (is_complete or is_overdue)
        if self.options.feed is FeedMode.OWN_PEER:
            current_ids = {uuid: feed_ids for uuid, feed_ids in current.items() if feed_ids is not None}
            return FeedDecision(
                assign_ids(
                    list(ready_links), self.owners, current_ids, self.options.orphans, feedable_by_peer
                ),
                needs_snapshot,
                accepted_behind_ids,
            )
        leader = next(iter(current), None)
        if leader is not None and self._is_leader_stuck(leader, ready_links, now):
            others = {uuid: feed_ids for uuid, feed_ids in feedable_by_peer.items() if uuid != leader}
            feedable_by_peer = (
                others if choose_leader(list(others), ids, None, ballots, others) else feedable_by_peer
            )
        assignment = choose_leader(list(ready_links), ids, leader, ballots, feedable_by_peer)
        return FeedDecision(dict.fromkeys(assignment), needs_snapshot, accepted_behind_ids)

    def _find_feedable(
        self,
        ballots: Mapping[str, Ballot],
        spool_vclocks: Mapping[str, Vclock],
        vclock: Vclock,
        lacking_logs: set[str],
    ) -> tuple[dict[str, frozenset[int]], set[int], frozenset[int]]:
        """Return the ids that each peer can feed, the ids whose logs no peer has, and `accepted_behind_ids`."""
        ids = frozenset(self.owners)
        behind = {
            uuid: peer_fitness(ballot, spool_vclocks[uuid], ids).last_lsns_behind.keys()
            for uuid, ballot in ballots.items()
        }
        accepted_behind_ids = frozenset(
            i
            for i in ids
            if self.owners[i] not in ballots and all(i in feed_ids for feed_ids in behind.values())
        )
        feedable_by_peer: dict[str, frozenset[int]] = {}
        self.unfit_reasons = {}
        for uuid, ballot in ballots.items():
            lost, late = (
                peer_fitness(ballot, vclock, ids).lost_log_starts.keys(),
                behind[uuid] - accepted_behind_ids,
            )
            feedable_by_peer[uuid] = frozenset() if uuid in lacking_logs else ids - lost - late
            if lost or uuid in lacking_logs:
                self.unfit_reasons[uuid] = "it has removed logs with rows that the spool lacks"
            elif late:
                self.unfit_reasons[uuid] = (
                    f"it is behind the spool (replica ids {', '.join(map(str, sorted(late)))})"
                )
        lost_ids = {
            i
            for i in ids
            if any(ballot.vclock.get(i, 0) > vclock.get(i, 0) for ballot in ballots.values())
            and not any(i in feed_ids for feed_ids in feedable_by_peer.values())
            and not any(i in behind[uuid] for uuid in ballots if uuid not in lacking_logs)
        }
        return feedable_by_peer, lost_ids, accepted_behind_ids

    def is_every_id_fed(self, current: IdsByPeer) -> bool:
        """Return whether each replica id is fed by a peer.

        Otherwise rows could be written before older rows of an id that no peer feeds.
        """
        if self.options.feed is FeedMode.LEADER:
            return True
        fed = {i for ids in current.values() if ids is not None for i in ids}
        return fed >= self.owners.keys()

    def rewound_instances(
        self, ready_links: Mapping[str, PeerLink], vclock: Vclock, now: float
    ) -> dict[int, int]:
        """Return the instances that lost rows of the spool for `patience_seconds`, each with its highest known lsn."""
        ballots = {uuid: link.ballot for uuid, link in ready_links.items() if link.ballot is not None}
        spool_vclocks = {uuid: ready_links[uuid].spool_vclock_at_vote for uuid in ballots}
        owners = self._id_owners(ready_links, vclock)
        rewound_ids = [i for i, owner in owners.items() if is_rewound(owner, i, ballots, spool_vclocks)]
        self._rewound_since = {i: self._rewound_since.get(i, now) for i in rewound_ids}
        return {
            i: max(ballot.vclock.get(i, 0) for ballot in ballots.values())
            for i in rewound_ids
            if now - self._rewound_since[i] >= self.options.timing.patience_seconds
        }

    def _id_owners(self, ready_links: Mapping[str, PeerLink], vclock: Vclock) -> dict[int, str]:
        """Return {replica id: instance uuid}; the uuid is empty for an id that only vclocks have, an expelled one."""
        newest = max(ready_links.values(), key=peer_signature)
        owners = {i: "" for link in ready_links.values() for i in (link.ballot.vclock if link.ballot else ())}
        owners |= dict.fromkeys(vclock, "") | dict(newest.cluster)
        return {i: uuid for i, uuid in owners.items() if i in REPLICA_IDS}

    def _is_leader_stuck(self, leader: str, ready_links: Mapping[str, PeerLink], now: float) -> bool:
        """Return whether the leader got no rows of some id for `patience_seconds` although another peer has more."""
        ballot = ready_links[leader].ballot if leader in ready_links else None
        if ballot is None:
            return True
        others = [
            link.ballot for uuid, link in ready_links.items() if uuid != leader and link.ballot is not None
        ]
        stuck = {}
        for id_ in self.owners:
            lsn = ballot.vclock.get(id_, 0)
            if any(other.vclock.get(id_, 0) > lsn for other in others):
                before = self._stuck_since.get(id_)
                stuck[id_] = before if before is not None and before[0] == lsn else (lsn, now)
        self._stuck_since = stuck
        return any(now - since >= self.options.timing.patience_seconds for _, since in stuck.values())


Assignment = Mapping[str, frozenset[int]]
"""For each peer, the replica ids that it feeds; peers without ids are left out."""


def assign_ids(
    peers: Sequence[str],
    owners: Mapping[int, str],
    current: Assignment | None = None,
    orphans: OrphanPolicy = OrphanPolicy.LAST,
    feedable_by_peer: Mapping[str, Collection[int]] | None = None,
) -> dict[str, frozenset[int]]:
    """Assign each replica id to one peer.

    An id is assigned to its own instance if this is a connected peer. Otherwise the id is an *orphan*: it stays with
    its current peer, and a new orphan goes to the peer with the highest replica id, or to the one with the fewest ids.

    Args:
        orphans: Which peer gets a new orphan.
        feedable_by_peer: For each peer, the ids that it can feed, because it has their logs and is not behind the
            spool. None: each peer can feed all ids.

    Returns:
        For each peer, its ids. An id that no peer can feed is left out.
    """
    order = _sort_by_replica_id(peers, owners)
    result: dict[str, set[int]] = {peer: set() for peer in order}
    current_peers = {id_: peer for peer, ids in (current or {}).items() for id_ in ids}
    unassigned = []
    for id_ in sorted(owners):
        candidates = [
            peer for peer in order if feedable_by_peer is None or id_ in feedable_by_peer.get(peer, ())
        ]
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
    feedable_by_peer: Mapping[str, Collection[int]],
) -> dict[str, frozenset[int]]:
    """Assign all ids to one peer that can feed them: to the current leader, or else to the peer with the most rows."""
    candidates = [peer for peer in peers if frozenset(feedable_by_peer.get(peer, ())) >= frozenset(ids)]
    if not candidates:
        return {}
    chosen = (
        current
        if current in candidates
        else max(candidates, key=lambda peer: sum(ballots[peer].vclock.values()))
    )
    return {chosen: frozenset(ids)} if chosen is not None else {}


def _sort_by_replica_id(peers: Sequence[str], owners: Mapping[int, str]) -> list[str]:
    """Return the peers sorted by replica id, without duplicates; peers without a replica id come first."""
    ids = {uuid: id_ for id_, uuid in owners.items()}
    return sorted(dict.fromkeys(peers), key=lambda peer: ids.get(peer, 0))


@dataclass(frozen=True)
class PeerFitness:
    """Which replica ids a peer can feed from a start vclock on, and why it cannot feed the others."""

    feedable_ids: frozenset[int]
    """Ids whose lsn in the start vclock is between the lsn in the peer's gc vclock and that in its vclock."""
    lost_log_starts: Mapping[int, int]
    """For each id whose logs the peer no longer has, the lsn after which the peer's logs begin."""
    last_lsns_behind: Mapping[int, int]
    """For each id whose lsn in the start vclock the peer has not reached, the peer's last lsn."""


def peer_fitness(ballot: Ballot, start: Vclock, ids: Collection[int]) -> PeerFitness:
    """Return which of these replica ids a peer with this ballot can feed from the vclock `start` on."""
    lost = {i: ballot.gc_vclock[i] for i in ids if ballot.gc_vclock.get(i, 0) > start.get(i, 0)}
    behind = {i: ballot.vclock.get(i, 0) for i in ids if ballot.vclock.get(i, 0) < start.get(i, 0)}
    return PeerFitness(frozenset(ids) - lost.keys() - behind.keys(), lost, behind)


def start_vclock(ballot: Ballot, start: Vclock, ids: Collection[int] | None) -> dict[int, int]:
    """Return the vclock with which to SUBSCRIBE to a peer.

    Args:
        ids: Ids that the peer feeds; None: all. For other ids the result has at least the peer's own lsns, so that the
            peer neither needs nor reads their logs.
    """
    if ids is None:
        return {i: lsn for i, lsn in start.items() if lsn}
    other_ids = {i: max(lsn, start.get(i, 0)) for i, lsn in ballot.vclock.items() if i not in ids}
    return other_ids | {i: start[i] for i in ids if start.get(i, 0)}


def is_rewound(
    owner: str, id_: int, ballots: Mapping[str, Ballot], spool_vclocks: Mapping[str, Vclock]
) -> bool:
    """Return whether an instance is connected, and the spool has rows of it that no connected peer has.

    An instance that was restored to an older state fetches its lost rows from its peers if they have them. So the
    caller repeats the check for some time.
    """
    return owner in ballots and all(
        ballot.vclock.get(id_, 0) < spool_vclocks[peer].get(id_, 0) for peer, ballot in ballots.items()
    )

"""Decides which streams should run with which ids, from the peers' last answers and the spool's vclock.

`FeedChooser` remembers conditions that must last for a while before it acts on them. It sends nothing and starts nothing
(`replicaset` does); the rules themselves are in `assignment` and `start`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sources.iproto.messages import REPLICA_IDS, Ballot
from sources.subscribe.assignment import assign, choose_leader
from sources.subscribe.link import PeerLink
from sources.subscribe.options import FeedMode, ReplicasetOptions
from sources.subscribe.start import fitness, rewound
from sources.xlog.format.vclock import Vclock

IdsByPeer = Mapping[str, frozenset[int] | None]
"""Peer's instance uuid → the ids that it feeds; None: all ids, later ones too."""


@dataclass(frozen=True)
class FeedDecision:
    """The streams that should run.

    Parameters
    ----------
    wanted : IdsByPeer
    is_gap : bool
        Whether no peer has some of the missing rows any more.
    settled : frozenset of int
        Ids with more rows in the spool than on any peer, while their instance is away: a peer that sends such rows
        repeats rows that we have.

    """

    wanted: IdsByPeer
    is_gap: bool = False
    settled: frozenset[int] = frozenset()


def rows_of(link: PeerLink) -> int:
    """Return how many rows a peer has, over all instances."""
    return sum(link.ballot.vclock.values()) if link.ballot is not None else -1


def format_assignment(wanted: IdsByPeer, ready: Mapping[str, PeerLink]) -> str:
    """Return an assignment as text for the log."""
    return ", ".join(
        f"{ready[uuid].name}: {'all' if ids is None else sorted(ids)}" for uuid, ids in sorted(wanted.items())
    )


@dataclass
class FeedChooser:
    """Decides for one replicaset.

    Parameters
    ----------
    options : ReplicasetOptions

    """

    options: ReplicasetOptions
    owners: dict[int, str] = field(default_factory=dict)
    """{replica id: instance uuid} of all instances."""
    _rewound_since: dict[int, float] = field(default_factory=dict)
    _stuck: dict[int, tuple[int, float]] = field(default_factory=dict)
    _gap_since: float | None = None

    def decide(
        self,
        ready: Mapping[str, PeerLink],
        vclock: Vclock,
        gapped: Mapping[str, Vclock],
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
        gapped : mapping
            Peers that answered that they lack the logs, with the spool's vclock at that time.
        current : IdsByPeer
            The streams that run now.
        now : float
            Seconds of a monotonic clock.

        """
        self.owners = self._owners(ready, vclock)
        ids = frozenset(self.owners)
        ballots = {uuid: link.ballot for uuid, link in ready.items() if link.ballot is not None}
        had = {uuid: ready[uuid].had for uuid in ballots}
        able, gone, settled = self._able(
            ballots, had, vclock, {u for u, seen in gapped.items() if seen == dict(vclock)}
        )
        for uuid, given in current.items():  # a stream that runs proves that the peer can
            if uuid in able:
                able[uuid] |= ids if given is None else given & ids
        self._gap_since = (self._gap_since or now) if gone else None
        is_complete = len(ready) == len(self.options.peers)
        patient = self._gap_since is not None and now - self._gap_since >= self.options.timing.patience
        is_gap = bool(gone) and (is_complete or patient)
        if self.options.feed is FeedMode.OWN_PEER:
            held = {uuid: given for uuid, given in current.items() if given is not None}
            return FeedDecision(
                assign(list(ready), self.owners, held, self.options.orphans, able), is_gap, settled
            )
        leader = next(iter(current), None)
        if leader is not None and self._is_stuck(leader, ready, now):
            others = {uuid: given for uuid, given in able.items() if uuid != leader}
            able = others if choose_leader(list(others), ids, None, ballots, others) else able
        led = choose_leader(list(ready), ids, leader, ballots, able)
        return FeedDecision(dict.fromkeys(led), is_gap, settled)

    def _able(
        self,
        ballots: Mapping[str, Ballot],
        had: Mapping[str, Vclock],
        vclock: Vclock,
        gapped: set[str],
    ) -> tuple[dict[str, frozenset[int]], set[int], frozenset[int]]:
        """Return (peer → ids that it can feed, ids that no peer can feed though none is merely behind, settled)."""
        ids = frozenset(self.owners)
        behind = {uuid: fitness(ballot, had[uuid], ids).behind.keys() for uuid, ballot in ballots.items()}
        settled = frozenset(
            i for i in ids if self.owners[i] not in ballots and all(i in given for given in behind.values())
        )
        able: dict[str, frozenset[int]] = {}
        for uuid, ballot in ballots.items():
            lacks = fitness(ballot, vclock, ids).gone.keys() | (behind[uuid] - settled)
            able[uuid] = frozenset() if uuid in gapped else ids - lacks
        gone = {
            i
            for i in ids
            if any(ballot.vclock.get(i, 0) > vclock.get(i, 0) for ballot in ballots.values())
            and not any(i in given for given in able.values())
            and not any(i in behind[uuid] for uuid in ballots if uuid not in gapped)
        }
        return able, gone, settled

    def is_covered(self, current: IdsByPeer) -> bool:
        """Return whether each instance is fed by a peer; if not, rows of others may overtake the missing ones."""
        if self.options.feed is FeedMode.LEADER:
            return True
        fed = {i for ids in current.values() if ids is not None for i in ids}
        return fed >= self.owners.keys()

    def rewound(self, ready: Mapping[str, PeerLink], vclock: Vclock, now: float) -> dict[int, int]:
        """Return instances that lost rows and did not fetch them from their peers for a while."""
        ballots = {uuid: link.ballot for uuid, link in ready.items() if link.ballot is not None}
        had = {uuid: ready[uuid].had for uuid in ballots}
        owners = self._owners(ready, vclock)
        found = [i for i, owner in owners.items() if rewound(owner, i, ballots, had)]
        self._rewound_since = {i: self._rewound_since.get(i, now) for i in found}
        return {
            i: max(ballot.vclock.get(i, 0) for ballot in ballots.values())
            for i in found
            if now - self._rewound_since[i] >= self.options.timing.patience
        }

    def _owners(self, ready: Mapping[str, PeerLink], vclock: Vclock) -> dict[int, str]:
        """Return the instance of each id; it is empty for an id known from vclocks only (an expelled instance)."""
        best = max(ready.values(), key=rows_of)
        owners = {i: "" for link in ready.values() for i in (link.ballot.vclock if link.ballot else ())}
        owners |= dict.fromkeys(vclock, "") | dict(best.cluster)
        return {i: uuid for i, uuid in owners.items() if i in REPLICA_IDS}

    def _is_stuck(self, leader: str, ready: Mapping[str, PeerLink], now: float) -> bool:
        """Return whether the leader has long been at the same lsn of an id although another peer has more rows."""
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

"""Options for following a replicaset, as dataclasses; `config.subscribe` creates them from the YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from sources.iproto.address import Peer
from sources.spool.options import SpoolOptions
from sources.xlog.format.vclock import Vclock


class FeedMode(StrEnum):
    """Which peers send rows: one leader all rows, or each peer the rows of its own instance."""

    LEADER = "leader"
    OWN_PEER = "own_peer"


class OrphanPolicy(StrEnum):
    """Which peer feeds a new orphan (an instance that is not connected itself).

    `LAST`: the peer with the highest replica id. `ROUND_ROBIN`: the peer with the fewest ids.
    """

    LAST = "last"
    ROUND_ROBIN = "round_robin"


@dataclass(frozen=True)
class Timing:
    """Intervals and timeouts of the daemon, in seconds.

    Parameters
    ----------
    answer : float
        Longest wait for an answer, a connection, or any byte of a stream (a server sends a heartbeat each second).
    poll : float
        Seconds between two VOTE requests to a peer.
    acknowledge : float
        Seconds between two acknowledgements; a server disconnects after 4 x `replication_timeout` without one.
    reconnect, longest : float
        Shortest and longest wait before a failed step, such as connecting, is repeated. Waits grow with each
        consecutive failure.
    patience : float
        How long the daemon waits for a state to end by itself before it acts: a leader that falls behind, an instance
        that lost rows.
    clock_skew : float
        Largest accepted difference between the clocks of peers (`feed: own_peer`).

    """

    answer: float = 4.0
    poll: float = 0.2
    acknowledge: float = 1.0
    reconnect: float = 1.0
    longest: float = 30.0
    patience: float = 10.0
    clock_skew: float = 0.5


@dataclass(frozen=True)
class SpoolStart:
    """The vclock at which an empty spool begins, instead of at a snapshot.

    Parameters
    ----------
    replicaset_uuid : str
        The replicaset to which the vclock belongs; peers of another replicaset are refused.
    vclock : Vclock
        With replica ids of this replicaset.

    """

    replicaset_uuid: str
    vclock: Vclock


@dataclass(frozen=True)
class ReplicasetOptions:
    """Options for following one replicaset.

    Parameters
    ----------
    name : str
        Name in messages and metrics.
    directory : Path
        The spool.
    peers : tuple of Peer
    feed : FeedMode
    orphans : OrphanPolicy
    origins : frozenset of str
        Uuids of the instances whose rows are kept; empty: all.
    accept_rewind : bool
        Whether a new spool begins if an instance has lost rows that were received; otherwise this is an error.
    hold_bytes : int
        Size of the queued rows at which a stream that waits for others (`feed: own_peer`) is paused, in bytes.
    timing : Timing
    spool : SpoolOptions

    """

    name: str
    directory: Path
    peers: tuple[Peer, ...]
    feed: FeedMode = FeedMode.LEADER
    orphans: OrphanPolicy = OrphanPolicy.LAST
    origins: frozenset[str] = frozenset()
    accept_rewind: bool = False
    hold_bytes: int = 64 << 20
    timing: Timing = field(default_factory=Timing)
    spool: SpoolOptions = field(default_factory=SpoolOptions)

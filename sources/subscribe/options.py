"""How a replicaset is followed, as plain data; `config.subscribe` makes it from the YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from sources.iproto.address import Peer
from sources.spool.options import SpoolOptions
from sources.subscribe.assignment import OrphanPolicy
from sources.xlog.format.vclock import Vclock


class FeedMode(StrEnum):
    """Which peers feed: one leader, or each peer the rows of its own instance."""

    LEADER = "leader"
    OWN_PEER = "own_peer"


@dataclass(frozen=True)
class Timing:
    """How long the daemon waits, in seconds.

    Parameters
    ----------
    answer : float
        Longest wait for an answer, a connection, or any byte of a stream (a server sends a heartbeat each second).
    poll : float
        Seconds between two VOTEs.
    acknowledge : float
        Seconds between two acknowledgements; a server closes after 4 x `replication_timeout` without one.
    reconnect, longest : float
        Seconds between two attempts to connect or to repeat a failed step: the first wait, and the longest. Waits grow
        with each failure in a row.
    patience : float
        Seconds until a state that may pass by itself is acted on: a leader that falls behind, an instance that lost
        rows.
    clock_skew : float
        Seconds by which clocks of peers may differ (`feed: own_peer`).

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
    """Where an empty spool begins.

    Parameters
    ----------
    replicaset_uuid : str
        The replicaset of the vclock; peers of another one are refused.
    vclock : Vclock
        In the replicaset's own ids.

    """

    replicaset_uuid: str
    vclock: Vclock


@dataclass(frozen=True)
class ReplicasetOptions:
    """One replicaset to follow.

    Parameters
    ----------
    name : str
        Shown in messages and metrics.
    directory : Path
        The spool.
    peers : tuple of Peer
    feed : FeedMode
    orphans : OrphanPolicy
    origins : frozenset of str
        Uuids of the instances whose rows are wanted; empty: all.
    accept_rewind : bool
        Whether to begin a new spool where an instance has fewer rows than were received.
    hold_bytes : int
        Bytes after which a stream that waits for others (`feed: own_peer`) is paused.
    timing, spool
        See these classes.

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

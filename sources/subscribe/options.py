"""Options for following a replicaset, as dataclasses; `config.subscribe` creates them from the YAML."""

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
    """How the daemon chooses the peer that sends the rows of an *orphan*: an instance to which it has no connection.

    `LAST`: the peer with the highest replica id. `ROUND_ROBIN`: the peer that sends the rows of the fewest instances.
    """

    LAST = "last"
    ROUND_ROBIN = "round_robin"


@dataclass(frozen=True)
class Timing:
    """Intervals and timeouts of the daemon, in seconds."""

    answer_seconds: float = 4.0
    """Longest wait for an answer, for a connection, and for the next byte of a stream. A server sends a heartbeat each
    second."""
    poll_seconds: float = 0.2
    """Time between two VOTE requests to a peer."""
    acknowledge_seconds: float = 1.0
    """Time between two acknowledgements; a server disconnects after 4 x `replication_timeout` without one."""
    min_retry_seconds: float = 1.0
    max_retry_seconds: float = 30.0
    """Shortest and longest wait before a failed step, such as connecting, is repeated. Waits grow with each consecutive
    failure."""
    patience_seconds: float = 10.0
    """How long a bad state must last before the daemon acts: a leader is behind, an instance has lost rows, or no peer
    has the needed logs."""
    max_clock_skew_seconds: float = 0.5
    """Largest accepted difference between the clocks of peers (`feed: own_peer`)."""


@dataclass(frozen=True)
class SpoolStart:
    """Where an empty spool begins: at a vclock, instead of with a snapshot."""

    replicaset_uuid: str
    """The replicaset to which the vclock belongs; peers of another replicaset are refused."""
    vclock: Vclock
    """The vclock, with replica ids of this replicaset."""


@dataclass(frozen=True)
class ReplicasetOptions:
    """Options for following one replicaset."""

    name: str
    """Name in messages and metrics."""
    directory: Path
    peers: tuple[Peer, ...]
    feed: FeedMode = FeedMode.LEADER
    orphans: OrphanPolicy = OrphanPolicy.LAST
    origins: frozenset[str] = frozenset()
    """Uuids of the instances whose rows are written; empty: all. Rows of other instances become NOPs."""
    accept_rewind: bool = False
    """Whether a new spool begins if an instance has lost rows that the daemon received; otherwise this is an error."""
    max_queued_bytes: int = 64 << 20
    """Size of queued rows, in bytes, above which a stream that waits for others (`feed: own_peer`) is paused."""
    timing: Timing = field(default_factory=Timing)
    spool: SpoolOptions = field(default_factory=SpoolOptions)

"""The section `subscribe` of the configuration, and its conversion to the daemon's options.

It never holds a password, only the name of an environment variable or of a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

from config.values import (
    ByteCount,
    ConfigSection,
    HostPort,
    Interval,
    Label,
    Location,
    ServerAddress,
    SqlName,
    TlsFiles,
    Uuid,
    mistake,
)
from sources.iproto.address import PasswordSource, Peer, parse_address
from sources.spool.options import SpoolOptions, SpoolRetention
from sources.subscribe.options import FeedMode, OrphanPolicy, ReplicasetOptions, Timing
from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.writer import Fsync

_SECONDS_BY_UNIT = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}


def seconds(interval: str) -> float:
    """Convert an interval to seconds."""
    number, unit = interval.split()
    return int(number) * _SECONDS_BY_UNIT[unit.rstrip("s")]


class ReplicasetConfig(ConfigSection):
    """One replicaset whose changes are written to a spool."""

    name: Label
    """Name in messages and metrics."""
    spool: Location
    """A local directory, which the main job reads as the `path` of a source."""
    peers: tuple[ServerAddress, ...]
    """Addresses of one or more members: `user@host:port`."""
    user: str | None = None
    """User for peers whose address names none; None is guest. The user needs the role `replication`."""
    password_env: str | None = None
    """The environment variable with the password, or the file whose first line is the password."""
    password_file: Location | None = None
    """The environment variable with the password, or the file whose first line is the password."""
    tls: TlsFiles | None = None
    """TLS, if the servers use it."""
    origins: tuple[Uuid, ...] = ()
    """Uuids of the instances whose rows are written; empty writes all."""
    feed: Literal["leader", "own_peer"] | None = None
    """This replicaset's values of `subscribe.feed` and `subscribe.orphans`; None: the values of the section."""
    orphans: Literal["last", "round_robin"] | None = None
    """This replicaset's values of `subscribe.feed` and `subscribe.orphans`; None: the values of the section."""
    source: Label | None = None
    """Name of this spool in the `sources` of the main job; None: the same as `name`."""

    @model_validator(mode="after")
    def _check_keys(self) -> ReplicasetConfig:
        if not self.peers:
            raise mistake("names no peer; allowed: a list of one or more", "peers")
        if len(set(self.peers)) < len(self.peers):
            raise mistake("names a peer twice", "peers")
        if self.password_env is not None and self.password_file is not None:
            raise mistake("cannot be combined with password_env; allowed: one of them", "password_file")
        if "://" in self.spool:
            raise mistake(f"{self.spool!r} is refused; allowed: a local directory", "spool")
        return self

    def peer(self, peer_address: str) -> Peer:
        """Return the address, user, password and TLS with which the daemon connects to a peer of this replicaset."""
        user, address = parse_address(peer_address)
        tls = None if self.tls is None else self.tls.tls_options()
        return Peer(
            str(address),
            address,
            user or self.user,
            PasswordSource(self.password_env, self.password_file),
            tls,
        )


class SpoolKeepConfig(ConfigSection):
    """Which files of a spool are kept."""

    readers: tuple[Label, ...] = ()
    """Readers that must acknowledge a file before it is removed, even if they have never connected."""
    size: ByteCount | None = None
    """If no reader is known: the total size and the age beyond which the oldest files are removed."""
    age: Interval | None = None
    """If no reader is known: the total size and the age beyond which the oldest files are removed."""
    forget: Interval = "1 day"
    """A reader outside of `readers` is forgotten this long after its last acknowledgement: files are not kept for it.
    """
    snapshot: bool = False
    """Whether the newest snapshot and all later logs are kept, for new subscribers of a relay."""

    def spool_retention(self) -> SpoolRetention:
        """Return these settings as an option of the daemon."""
        age = None if self.age is None else seconds(self.age)
        return SpoolRetention(frozenset(self.readers), self.size, age, seconds(self.forget), self.snapshot)


class Subscribe(ConfigSection):
    """The subscription daemon."""

    replicasets: tuple[ReplicasetConfig, ...]
    status: HostPort | None = None
    """Address on which `/metrics` and `/status` are served."""
    warehouse: Location | None = None
    """The deployment's `warehouse`: its tables say up to where the rows of a lost spool were read, and the new spool
    begins there. None: an empty spool begins with a snapshot."""
    database: SqlName = "aggregator"
    """The deployment's `database`: the name of the database in `warehouse`."""
    feed: Literal["leader", "own_peer"] = "leader"
    """`leader`: one peer sends all rows. `own_peer`: each sends its own instance's rows, merged by time."""
    orphans: Literal["last", "round_robin"] = "last"
    """With `own_peer`, which connected peer sends the rows of an instance that is not connected itself. `last`: the one
    with the highest replica id. `round_robin`: the one that sends the rows of the fewest instances."""
    rotate: ByteCount = 256 << 20
    """Size in bytes at which a log is closed."""
    fsync: Literal["close", "block", "never"] = "close"
    """When to call fsync: `close`, `block`, `never`."""
    room: ByteCount = 64 << 20
    """Bytes of the spool's file system to leave free when a snapshot is fetched."""
    keep: SpoolKeepConfig = SpoolKeepConfig()
    answer: Interval = "4 seconds"
    """The longest time to wait for an answer of a server, a connection, or any byte of a stream."""
    poll: Interval = "200 milliseconds"
    """Time between two requests for the state of a peer."""
    reconnect: Interval = "1 second"
    """The shortest and the longest time before a failed step is repeated; it grows with each failure."""
    reconnect_longest: Interval = "30 seconds"
    """The shortest and the longest time before a failed step is repeated; it grows with each failure."""
    patience: Interval = "10 seconds"
    """How long the daemon waits before it acts on a leader that is behind, or on an instance that has lost rows."""
    clock_skew: Interval = "500 milliseconds"
    """The largest accepted difference between the clocks of peers, with `own_peer`."""

    @model_validator(mode="after")
    def _check_replicasets(self) -> Subscribe:
        if not self.replicasets:
            raise mistake("names no replicaset; allowed: a list of one or more", "replicasets")
        for key in ("name", "spool"):
            values = [getattr(replicaset, key) for replicaset in self.replicasets]
            for number, value in enumerate(values):
                if value in values[:number]:
                    raise mistake(f"{value!r} is another replicaset's", "replicasets", number, key)
        return self

    def replicaset_options(
        self, *, accept_rewind: bool = False, max_block_bytes: int = BLOCK_LIMIT
    ) -> list[ReplicasetOptions]:
        """Return the options of each replicaset.

        Args:
            accept_rewind: Whether a new spool begins if an instance has lost rows that were received.
            max_block_bytes: The largest transaction; the YAML has it outside of this section
                (`config.deployment.DaemonConfig`).
        """
        timing = Timing(
            answer_seconds=seconds(self.answer),
            poll_seconds=seconds(self.poll),
            min_retry_seconds=seconds(self.reconnect),
            max_retry_seconds=seconds(self.reconnect_longest),
            patience_seconds=seconds(self.patience),
            max_clock_skew_seconds=seconds(self.clock_skew),
        )
        return [
            ReplicasetOptions(
                name=replicaset.name,
                directory=Path(replicaset.spool),
                peers=tuple(replicaset.peer(text) for text in replicaset.peers),
                feed=FeedMode(replicaset.feed or self.feed),
                orphans=OrphanPolicy(replicaset.orphans or self.orphans),
                origins=frozenset(replicaset.origins),
                accept_rewind=accept_rewind,
                timing=timing,
                spool=SpoolOptions(
                    rotate_bytes=self.rotate,
                    fsync=Fsync(self.fsync),
                    max_block_bytes=max_block_bytes,
                    min_free_bytes=self.room,
                ),
            )
            for replicaset in self.replicasets
        ]

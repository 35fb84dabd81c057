"""Options of a relay and its limits for clients, as dataclasses; `config.relay` creates them from the YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sources.iproto.address import Address, PasswordSource, TlsOptions
from sources.xlog.format.block import BLOCK_LIMIT

RELAY_VERSION = 1
"""Version of the relay's extensions of the protocol, which docs/formats.md describes."""


@dataclass(frozen=True)
class ClientLimits:
    """Limits for the clients of a relay.

    Parameters
    ----------
    connections, per_address : int
        Maximum number of open connections, in total and from one address.
    strangers : int
        Maximum number of open connections that have not authenticated; beyond it, the oldest one is closed.
    authenticate : float
        Seconds after which a connection that has not authenticated is closed; includes the TLS handshake.
    guesses : int
        Number of wrong passwords after which a connection is closed.
    delay : float
        Seconds between two checks of passwords from one address.
    subscribers : int
        Maximum number of subscribers whose acknowledgements are stored; each may delay the removal of files by
        `subscribe.keep.forget`.

    """

    connections: int = 256
    per_address: int = 64
    strangers: int = 64
    authenticate: float = 10.0
    guesses: int = 3
    delay: float = 1.0
    subscribers: int = 64


@dataclass(frozen=True)
class RelayOptions:
    """Options for serving one spool.

    Parameters
    ----------
    name : str
        Name in messages and metrics.
    directory : Path
        The spool.
    listen : Address
        Where the relay listens.
    users : mapping of str to PasswordSource
        For each user, where to read the password.
    guest : bool
        Whether clients may subscribe without authentication.
    tls : TlsOptions or None
        The relay's certificate and key.
    max_block_bytes : int
        Longest accepted block of the spool, in bytes; each transaction is in one block.
    heartbeat, poll, silence : float
        Seconds between two heartbeats; between two refreshes of the catalog; and after which a client that sends
        nothing or reads nothing is disconnected.
    limits : ClientLimits

    """

    name: str
    directory: Path
    listen: Address
    users: Mapping[str, PasswordSource] = field(default_factory=dict)
    guest: bool = False
    tls: TlsOptions | None = None
    max_block_bytes: int = BLOCK_LIMIT
    heartbeat: float = 1.0
    poll: float = 0.02
    silence: float = 20.0
    limits: ClientLimits = field(default_factory=ClientLimits)

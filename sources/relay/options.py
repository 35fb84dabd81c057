"""Options of a relay and its limits for clients, as dataclasses; `config.relay` creates them from the YAML."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sources.iproto.address import Address, PasswordSource, TlsOptions
from sources.xlog.format.block import BLOCK_LIMIT

RELAY_EXTENSIONS_VERSION = 1
"""Version of the relay's extensions of the protocol, which docs/formats.md describes."""


@dataclass(frozen=True)
class ClientLimits:
    """Limits for the clients of a relay: connections, passwords, stored acknowledgements."""

    max_connections: int = 256
    max_connections_per_address: int = 64
    """Maximum number of open connections, in total and from one address."""
    max_unauthenticated: int = 64
    """Maximum number of open connections that have not authenticated; for a further one, the oldest is closed."""
    authentication_seconds: float = 10.0
    """Seconds within which a client must authenticate, with the TLS handshake; then its connection is closed."""
    max_wrong_passwords: int = 3
    """Number of wrong passwords after which a connection is closed."""
    password_delay_seconds: float = 1.0
    """Seconds between two checks of passwords from one address."""
    max_subscribers: int = 64
    """Maximum number of subscribers whose acknowledgements are stored; each may delay the removal of files by
    `subscribe.keep.forget`."""


@dataclass(frozen=True)
class RelayOptions:
    """Options for serving one spool."""

    name: str
    """Name in messages and metrics."""
    directory: Path
    listen_address: Address
    users: Mapping[str, PasswordSource] = field(default_factory=dict)
    """For each user's name, where to read the password."""
    users_of_servers: frozenset[str] = frozenset()
    """Names of users that only the servers which follow the relay know: `relay.aggregated.readers`."""
    allows_guest: bool = False
    """Whether clients may subscribe without authentication."""
    tls: TlsOptions | None = None
    """The relay's certificate and key."""
    max_block_bytes: int = BLOCK_LIMIT
    """Longest accepted block of the spool, in bytes; each transaction is in one block."""
    heartbeat_seconds: float = 1.0
    poll_seconds: float = 0.02
    silence_seconds: float = 20.0
    """Time between two heartbeats; time between two refreshes of the catalog; and time after which a client that sends
    nothing or reads nothing is disconnected."""
    limits: ClientLimits = field(default_factory=ClientLimits)

"""How a spool is served, as plain data; `config.relay` makes it from the YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sources.iproto.address import Address, PasswordSource, TlsOptions
from sources.xlog.format.block import BLOCK_LIMIT

RELAY_VERSION = 1
"""Version of the extensions in docs/formats.md."""


@dataclass(frozen=True)
class ClientLimits:
    """Limits for clients of a relay.

    Parameters
    ----------
    connections, per_address : int
        Open connections: in all, and from one address.
    strangers : int
        Open connections that have not authenticated; beyond this number, the oldest are closed.
    authenticate : float
        Seconds until a connection must have authenticated, including TLS's handshake.
    guesses : int
        Wrong passwords after which a connection is closed.
    delay : float
        Seconds between two guesses from one address.
    subscribers : int
        Instance uuids with an acknowledgement; each may delay the removal of files for `keep.forget`.

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
    """One spool that is served.

    Parameters
    ----------
    name : str
        Shown in messages and metrics.
    directory : Path
        The spool.
    listen : Address
    users : mapping
        User → the source of its password.
    guest : bool
        Whether subscribing without authentication is allowed.
    tls : TlsOptions or None
        The relay's certificate and key.
    max_block_bytes : int
        Longest accepted block of the spool: a transaction is in one block.
    heartbeat, poll, silence : float
        Seconds between two heartbeats; between two refreshes of the spool; and until a client is dropped that sends no
        acknowledgement or request and reads no byte.
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

"""How a spool is served, as plain data; `config.relay` makes it from the YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sources.iproto.address import Address, Password, Tls
from sources.xlog.format.block import BLOCK_LIMIT

RELAY_VERSION = 1
"""Of the extensions in docs/formats.md."""


@dataclass(frozen=True)
class ClientLimits:
    """What strangers may take of a relay.

    Parameters
    ----------
    connections, per_address : int
        At a time: in all, and from one address.
    strangers : int
        At a time without having authenticated: of more, those that came first are closed.
    authenticate : float
        Seconds in which a connection must have authenticated, with TLS's handshake.
    guesses : int
        Wrong passwords after which a connection is closed.
    delay : float
        Seconds between two guesses from one address.
    subscribers : int
        Instance uuids that have an acknowledgement; each may hold up the removal of files for `keep.forget`.

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
        User → where its password is found.
    guest : bool
        Whether who does not authenticate may subscribe.
    tls : Tls or None
        Certificate and key that are shown.
    max_block_bytes : int
        The longest block of the spool that is read: a transaction is in one block.
    heartbeat, poll, silence : float
        Seconds between two heartbeats, between two looks at the spool, without an acknowledgement, a request or
        a byte that is read before who is connected is dropped.
    limits : ClientLimits

    """

    name: str
    directory: Path
    listen: Address
    users: Mapping[str, Password] = field(default_factory=dict)
    guest: bool = False
    tls: Tls | None = None
    max_block_bytes: int = BLOCK_LIMIT
    heartbeat: float = 1.0
    poll: float = 0.02
    silence: float = 20.0
    limits: ClientLimits = field(default_factory=ClientLimits)

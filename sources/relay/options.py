"""How a spool is served, as plain data; `config.relay` makes it from the YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sources.iproto.address import Address, Password, Tls
from sources.xlog.block import BLOCK_LIMIT

RELAY_VERSION = 1
"""Of the extensions in docs/formats.md."""


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
        Seconds between two heartbeats, between two looks at the spool, without an acknowledgement before
        a subscriber is dropped.

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

"""Limits who may connect to a relay, and how often a password may be guessed: connections counted by address.

No sockets; the time is a parameter. `session` decides what a connection may request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sources.relay.options import ClientLimits

ADDRESSES = 4096
"""Addresses whose guesses are remembered; beyond this number, the oldest are forgotten."""


@dataclass(eq=False)
class AdmittedConnection:
    """One connection.

    Parameters
    ----------
    address : str
        Of the host; empty for a unix socket.
    close : callable
        Closes it.

    """

    address: str
    close: Callable[[], None]
    is_stranger: bool = True


@dataclass
class ConnectionLimiter:
    """Counts the open connections of one relay, and applies its limits.

    Parameters
    ----------
    limits : ClientLimits

    """

    limits: ClientLimits
    refused_connections: int = 0
    """Connections that were closed because of a limit."""
    wrong_passwords: int = 0
    _entries: dict[AdmittedConnection, None] = field(default_factory=dict)
    _by_address: Counter[str] = field(default_factory=Counter)
    _next_guess_at: dict[str, float] = field(default_factory=dict)
    """Address → the time of its next allowed guess."""

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._entries)

    def admit(self, address: str, close: Callable[[], None]) -> AdmittedConnection | None:
        """Admit a connection; None if a limit is reached. The oldest connection may be closed to make room."""
        limits = self.limits
        is_address_full = address != "" and self._by_address[address] >= limits.per_address
        if is_address_full or self.count >= limits.connections:
            self.refused_connections += 1
            return None
        strangers = [entry for entry in self._entries if entry.is_stranger]
        if len(strangers) >= limits.strangers:
            self.refused_connections += 1
            strangers[0].close()
            self.remove(strangers[0])
        entry = AdmittedConnection(address, close)
        self._entries[entry] = None
        self._by_address[address] += 1
        return entry

    def remove(self, entry: AdmittedConnection) -> None:
        """Remove a closed connection; may be called twice."""
        if entry in self._entries:
            del self._entries[entry]
            self._by_address[entry.address] -= 1
            if self._by_address[entry.address] == 0:
                del self._by_address[entry.address]

    def wait_before_guess(self, address: str, now: float) -> float:
        """Return the seconds to wait before a password is checked; count it as wrong until `record_right_password`."""
        at = max(now, self._next_guess_at.pop(address, now))
        self._next_guess_at[address] = at + self.limits.delay
        if len(self._next_guess_at) > ADDRESSES:
            del self._next_guess_at[next(iter(self._next_guess_at))]
        return at - now

    def record_right_password(self, address: str) -> None:
        """Remove the delay, since the password was right."""
        if address in self._next_guess_at:
            self._next_guess_at[address] -= self.limits.delay

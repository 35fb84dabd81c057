"""Limits the open connections of a relay, in total and per client address, and how often a password may be guessed.

The module has no sockets and no clock: the time is a parameter. `session` decides what a connection may request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sources.relay.options import ClientLimits

ADDRESSES = 4096
"""Number of client addresses for which the time of the last guess is stored; older ones are dropped."""


@dataclass(eq=False)
class AdmittedConnection:
    """One open connection of a client.

    `address` is the client's IP address (empty for a unix socket); `close` closes the connection.
    """

    address: str
    close: Callable[[], None]
    is_unauthenticated: bool = True


@dataclass
class ConnectionLimiter:
    """Counts the open connections of one relay and applies `ClientLimits`."""

    limits: ClientLimits
    refused_connections: int = 0
    """Number of connections that were refused or closed because of a limit."""
    wrong_passwords: int = 0
    _entries: dict[AdmittedConnection, None] = field(default_factory=dict)
    _by_address: Counter[str] = field(default_factory=Counter)
    _next_guess_at: dict[str, float] = field(default_factory=dict)
    """For each client address, the time from which it may send the next password."""

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._entries)

    def admit(self, address: str, close: Callable[[], None]) -> AdmittedConnection | None:
        """Admit a connection; return None if a limit is reached.

        If too many connections are unauthenticated, the oldest of them is closed to make room.
        """
        limits = self.limits
        is_address_full = address != "" and self._by_address[address] >= limits.per_address
        if is_address_full or self.count >= limits.connections:
            self.refused_connections += 1
            return None
        unauthenticated = [entry for entry in self._entries if entry.is_unauthenticated]
        if len(unauthenticated) >= limits.strangers:
            self.refused_connections += 1
            unauthenticated[0].close()
            self.remove(unauthenticated[0])
        entry = AdmittedConnection(address, close)
        self._entries[entry] = None
        self._by_address[address] += 1
        return entry

    def remove(self, entry: AdmittedConnection) -> None:
        """Stop counting a closed connection; may be called twice."""
        if entry in self._entries:
            del self._entries[entry]
            self._by_address[entry.address] -= 1
            if self._by_address[entry.address] == 0:
                del self._by_address[entry.address]

    def wait_before_guess(self, address: str, now: float) -> float:
        """Return the seconds to wait before this address's password may be checked.

        The next password of the address waits longer, unless `record_right_password` is called.
        """
        at = max(now, self._next_guess_at.pop(address, now))
        self._next_guess_at[address] = at + self.limits.delay
        if len(self._next_guess_at) > ADDRESSES:
            del self._next_guess_at[next(iter(self._next_guess_at))]
        return at - now

    def record_right_password(self, address: str) -> None:
        """Cancel the delay before the address's next password, because this one was right."""
        if address in self._next_guess_at:
            self._next_guess_at[address] -= self.limits.delay

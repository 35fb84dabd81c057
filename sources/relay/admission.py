"""Limits the open connections of a relay, in total and per client address, and how often an address may try passwords.

The module has no sockets and no clock: callers pass the time. `session` decides what a connection may request.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sources.relay.options import ClientLimits

MAX_ADDRESSES = 4096
"""Number of client addresses for which the time of the next password is stored; the oldest ones are dropped."""


@dataclass(eq=False)
class AdmittedConnection:
    """One open connection of a client."""

    address: str
    close: Callable[[], None]
    is_unauthenticated: bool = True


@dataclass
class ConnectionLimiter:
    """Counts the open connections of one relay, refuses those beyond `ClientLimits`, and delays passwords."""

    limits: ClientLimits
    refused_connections: int = 0
    wrong_passwords: int = 0
    _connections: dict[AdmittedConnection, None] = field(default_factory=dict)
    _counts_by_address: Counter[str] = field(default_factory=Counter)
    _next_password_at: dict[str, float] = field(default_factory=dict)
    """For each client address, the time from which it may send the next password."""

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def admit(self, address: str, close: Callable[[], None]) -> AdmittedConnection | None:
        """Count and return a new connection, or return None if a limit of open connections is reached.

        If too many connections are unauthenticated, the oldest of them is closed. `close` closes the new connection; it
        is called if this one becomes the oldest.
        """
        limits = self.limits
        is_address_full = (
            address != "" and self._counts_by_address[address] >= limits.max_connections_per_address
        )
        if is_address_full or self.connection_count >= limits.max_connections:
            self.refused_connections += 1
            return None
        unauthenticated = [connection for connection in self._connections if connection.is_unauthenticated]
        if len(unauthenticated) >= limits.max_unauthenticated:
            self.refused_connections += 1
            unauthenticated[0].close()
            self.remove(unauthenticated[0])
        connection = AdmittedConnection(address, close)
        self._connections[connection] = None
        self._counts_by_address[address] += 1
        return connection

    def remove(self, connection: AdmittedConnection) -> None:
        """Stop counting a closed connection; a second call does nothing."""
        if connection in self._connections:
            del self._connections[connection]
            self._counts_by_address[connection.address] -= 1
            if self._counts_by_address[connection.address] == 0:
                del self._counts_by_address[connection.address]

    def seconds_before_password(self, address: str, now: float) -> float:
        """Return the seconds to wait before a password from this address is checked."""
        at = max(now, self._next_password_at.pop(address, now))
        self._next_password_at[address] = at + self.limits.password_delay_seconds
        if len(self._next_password_at) > MAX_ADDRESSES:
            del self._next_password_at[next(iter(self._next_password_at))]
        return at - now

    def record_right_password(self, address: str) -> None:
        """Cancel the delay before the next password from an address, because its last one was right."""
        if address in self._next_password_at:
            self._next_password_at[address] -= self.limits.password_delay_seconds

"""Who may connect to a relay, and how often a password may be guessed: counts of connections by address.

Pure: no sockets, and the clock is passed. Not here: what a connection may ask (`session`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sources.relay.options import ClientLimits

ADDRESSES = 4096
"""Addresses whose guesses are remembered; of more, the oldest are forgotten."""


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
class Admission:
    """The connections of one relay.

    Parameters
    ----------
    limits : ClientLimits

    """

    limits: ClientLimits
    refused: int = 0
    """Connections that were closed because there were too many."""
    wrong_passwords: int = 0
    _entries: dict[AdmittedConnection, None] = field(default_factory=dict)
    _by_address: Counter[str] = field(default_factory=Counter)
    _guessed: dict[str, float] = field(default_factory=dict)
    """Address → when its next guess is looked at."""

    @property
    def count(self) -> int:
        """Connections now."""
        return len(self._entries)

    def enter(self, address: str, close: Callable[[], None]) -> AdmittedConnection | None:
        """Take a connection; None: there are too many. One that came earlier may be closed for it."""
        limits = self.limits
        is_crowded = address != "" and self._by_address[address] >= limits.per_address
        if is_crowded or self.count >= limits.connections:
            self.refused += 1
            return None
        strangers = [entry for entry in self._entries if entry.is_stranger]
        if len(strangers) >= limits.strangers:
            self.refused += 1
            strangers[0].close()
            self.leave(strangers[0])
        entry = AdmittedConnection(address, close)
        self._entries[entry] = None
        self._by_address[address] += 1
        return entry

    def leave(self, entry: AdmittedConnection) -> None:
        """Forget a connection that is closed; may be called twice."""
        if entry in self._entries:
            del self._entries[entry]
            self._by_address[entry.address] -= 1
            if self._by_address[entry.address] == 0:
                del self._by_address[entry.address]

    def wait_before_guess(self, address: str, now: float) -> float:
        """Return the seconds after which a password is looked at, and count it as wrong until `right` is called."""
        at = max(now, self._guessed.pop(address, now))
        self._guessed[address] = at + self.limits.delay
        if len(self._guessed) > ADDRESSES:
            del self._guessed[next(iter(self._guessed))]
        return at - now

    def right(self, address: str) -> None:
        """Remove the delay of a guess: the password was right."""
        if address in self._guessed:
            self._guessed[address] -= self.limits.delay

"""Computes how long to wait before a failed attempt is repeated: exponential backoff with a random part.

Without the random part, all daemons that lost a server would reconnect to it at the same moment.
"""

from __future__ import annotations

from tenacity import AsyncRetrying, RetryCallState, wait_random_exponential


class Backoff:
    """Computes the waits between consecutive failed attempts.

    Waits are between `first` and `most` seconds; their upper bound doubles with each failure.
    """

    def __init__(self, first: float, most: float) -> None:
        self._wait = wait_random_exponential(multiplier=first, max=max(first, most), min=first)
        self.reset()

    def reset(self) -> None:
        """Begin with short waits again, after a success."""
        self._state = RetryCallState(AsyncRetrying(), None, (), {})

    def seconds(self) -> float:
        """Count a failure, and return how many seconds to wait before the next attempt."""
        wait = self._wait(self._state)
        self._state.attempt_number += 1
        return wait

"""Waits before a failed attempt is repeated: longer each time, with a random part.

The random part keeps daemons that lost one server at the same moment from coming back at the same moment.
"""

from __future__ import annotations

from tenacity import AsyncRetrying, RetryCallState, wait_random_exponential


class Backoff:
    """The waits between consecutive failed attempts.

    Parameters
    ----------
    first : float
        Seconds of the first wait, and the least of any wait.
    most : float
        Upper bound in seconds; waits double with each failure up to it.

    """

    def __init__(self, first: float, most: float) -> None:
        self._wait = wait_random_exponential(multiplier=first, max=max(first, most), min=first)
        self.reset()

    def reset(self) -> None:
        """Start with the first wait again, after a success."""
        self._state = RetryCallState(AsyncRetrying(), None, (), {})

    def seconds(self) -> float:
        """Return how long to wait now, and count one more failure."""
        wait = self._wait(self._state)
        self._state.attempt_number += 1
        return wait

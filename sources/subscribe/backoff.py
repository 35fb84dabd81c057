"""How long to wait before a failed attempt is made again: longer each time, and not the same for everybody.

A random part keeps daemons that lost one server at the same moment from coming back at the same moment.
"""

from __future__ import annotations

from tenacity import AsyncRetrying, RetryCallState, wait_random_exponential


class Backoff:
    """The waits between attempts that fail in a row.

    Parameters
    ----------
    first : float
        Seconds of the first wait, and the least of any.
    most : float
        Seconds: the bound doubles with each failure up to this.

    """

    def __init__(self, first: float, most: float) -> None:
        self._wait = wait_random_exponential(multiplier=first, max=max(first, most), min=first)
        self.reset()

    def reset(self) -> None:
        """Begin with the first wait again: an attempt succeeded."""
        self._state = RetryCallState(AsyncRetrying(), None, (), {})

    def seconds(self) -> float:
        """Return how long to wait now, after one more failure."""
        found = self._wait(self._state)
        self._state.attempt_number += 1
        return found

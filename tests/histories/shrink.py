"""Makes a failing history small: leaves out steps, and acts of groups, while it still fails."""

import time
from collections.abc import Callable, Sequence

from tests.histories.acts import GROUPS, History, Step

Fails = Callable[[History], bool]


def shrink(history: History, fails: Fails, seconds: float = 120.0) -> History:
    """Return a smaller history that still fails.

    Args:
        history: One that fails.
        fails: Says whether a history fails.
        seconds: After so long the smallest one so far will do.
    """
    deadline = time.monotonic() + seconds
    smaller = history
    while True:
        before = smaller
        smaller = _fewer_steps(smaller, fails, deadline)
        smaller = _shorter_steps(smaller, fails, deadline)
        if smaller == before or time.monotonic() > deadline:
            return smaller


def _fewer_steps(history: History, fails: Fails, deadline: float) -> History:
    """Leave out runs of steps: first halves, then ever shorter ones, from the end."""
    size = max(len(history.steps) // 2, 1)
    while size:
        start = len(history.steps) - size
        while start > -size and time.monotonic() < deadline:
            begin = max(start, 0)
            fewer = history.with_steps(history.steps[:begin] + history.steps[start + size :])
            if len(fewer.steps) < len(history.steps) and fails(fewer):
                history = fewer
            start -= size
        size //= 2
    return history


def _shorter_steps(history: History, fails: Fails, deadline: float) -> History:
    """Leave out acts of groups, then take the only act out of its group."""
    for index in reversed(range(len(history.steps))):
        for step in _shorter(history.steps[index]):
            if time.monotonic() > deadline:
                return history
            other = history.with_steps([*history.steps[:index], step, *history.steps[index + 1 :]])
            if fails(other):
                return _shorter_steps(other, fails, deadline)
    return history


def _shorter(step: Step) -> Sequence[Step]:
    if step.act[0] not in GROUPS:
        return []
    kind, ending, acts = step.act
    if len(acts) == 1:
        return [Step(step.side, acts[0])] if ending in ("commit", "") else []
    found = [[*acts[:i], *acts[i + 1 :]] for i in range(len(acts))]
    return [Step(step.side, [kind, ending, rest]) for rest in found]

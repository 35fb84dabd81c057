"""Custom functions as a user might write them, correct and incorrect."""

import itertools
from typing import Any

_counter = itertools.count()


def greater_balance(old: Any, new: Any, _change: Any) -> Any:
    """Keep the tuple with the greater second field; a deletion wins over a tuple of less than 10."""
    if old is None or new is None:
        rest = old or new
        return rest if rest is not None and rest[1] >= 10 else None
    return new if new[1] >= old[1] else old


def joined(old: Any, new: Any, change: Any) -> Any:
    """Make a tuple of both, with the space and the operation in it."""
    if old is None or new is None:
        return old or new
    return new.update(value=old[1] + new[1], note=f"{change.space} {change.op}")


def other_key(_old: Any, new: Any, _change: Any) -> Any:
    return [new[0] + 1, *new[1:]]


def failing(old: Any, new: Any, _change: Any) -> Any:
    if (old or new)[0] % 2:
        raise ValueError("odd keys are not mine")
    return new


def impure(_old: Any, new: Any, _change: Any) -> Any:
    return new.update(value=next(_counter))


def no_tuple(_old: Any, _new: Any, _change: Any) -> Any:
    return "text"


calls: list[Any] = []


def counted(_old: Any, new: Any, change: Any) -> Any:
    """Record each call."""
    calls.append(change)
    return new

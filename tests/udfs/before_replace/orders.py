"""The policies that choose a version, in plain Python, to check `pipeline.resolve.choose`.

Each is a sort key: the version that sorts last wins.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from udfs.before_replace.policy import Candidate

NO_VALUE = b"\x00"
"""How the bytes of a field begin that is missing, nil or of a type without an order."""


SortKey = tuple[Any, ...]
"""The sort key of a version; comparable within one policy."""


def none_first(value: Any) -> SortKey:
    """Return a value as a sort key that puts None below all others."""
    return (value is not None, value) if value is not None else (False,)


class Compared(NamedTuple):
    """A version, and the bytes of its fields that a policy compares."""

    version: Candidate
    sequence: bytes | None = None
    """The configured sequence fields as comparable bytes (`udfs.keys.sequence`); None if none are configured."""
    value: bytes | None = None
    """The field that `max` or `min` compares, as comparable bytes."""


def last_write(version: Candidate, sequence: bytes | None = None) -> SortKey:
    """Return the sort key of `last_write_wins`; the greatest one of a key is its last writer's.

    If a version has no user's sequence, either it is deleted or no version has one and the timestamps decide.
    """
    timestamp = version.timestamp if sequence is None else None
    when = none_first(sequence), none_first(timestamp)
    return (*when, version.replicaset, version.instance, version.lsn)


def latest(one: Compared) -> SortKey:
    """Return the sort key of `last_write_wins`."""
    return last_write(one.version, one.sequence)


def first_write(one: Compared) -> SortKey:
    """Return the sort key of `first_write_wins`: an unknown time of insertion is the earliest."""
    created = one.version.created
    return (created is None, 0 if created is None else -created, latest(one))


def greatest(one: Compared) -> SortKey:
    """Return the sort key of `max`; of equal values the last writer's sorts last."""
    return (none_first(one.value), latest(one))


def least(one: Compared) -> SortKey:
    """Return the sort key of `min`; a version without a value sorts first here too."""
    return (none_first(complement(one.value)), latest(one))


def by_priority(priority: Sequence[str]) -> Callable[[Compared], SortKey]:
    """Return the order of `source_priority`.

    Args:
        priority: Uuids of replicasets, the preferred one first; the others follow, the last writer's first.
    """
    ranks = {uuid: len(priority) - i for i, uuid in reversed(list(enumerate(priority)))}
    return lambda one: (ranks.get(one.version.replicaset, 0), latest(one))


def complement(value: bytes | None) -> bytes | None:
    """Return bytes in the reverse order; a missing value stays below all.

    The bytes of one value are never a prefix of another's (`udfs.keys.kernels.sort_key`), so inverting all bits
    reverses their order.
    """
    if value is None or value.startswith(NO_VALUE):
        return value
    return bytes(255 - byte for byte in value)


ORDERS: Mapping[str, Callable[[Compared], SortKey]] = {
    "last_write_wins": latest,
    "first_write_wins": first_write,
    "max": greatest,
    "min": least,
}
"""The orders by name of the policy; `source_priority` has one for each list of replicasets."""


def choose(
    candidates: Sequence[Compared], order: Callable[[Compared], SortKey], *, deletes_all: bool = False
) -> Compared | None:
    """Return the version that wins; None if none takes part.

    Args:
        candidates: In any order, at most one per replicaset.
        order: Sort key of the policy.
        deletes_all: Whether a deleted version takes part.
    """
    taking = [one for one in candidates if deletes_all or one.version.tuple is not None]
    return max(taking, key=order, default=None)

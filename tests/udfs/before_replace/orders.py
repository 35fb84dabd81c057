"""The policies that choose a version, in plain Python, to check `pipeline.resolve.choose`.

Each is a sort key: the version that sorts last wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from udfs.before_replace.candidate import Candidate, Place, known, place

NO_VALUE = b"\x00"
"""How the bytes of a field begin that is missing, nil or of a type without an order."""


def last_write(candidate: Candidate) -> Place:
    """Return the sort key of `last_write_wins`."""
    return place(candidate)


def first_write(candidate: Candidate) -> Place:
    """Return the sort key of `first_write_wins`: an unknown time of insertion is the earliest."""
    created = candidate.created
    return (created is None, 0 if created is None else -created, place(candidate))


def greatest(candidate: Candidate) -> Place:
    """Return the sort key of `max`; of equal values the last writer's sorts last."""
    return (known(candidate.value), place(candidate))


def least(candidate: Candidate) -> Place:
    """Return the sort key of `min`; a version without a value sorts first here too."""
    return (known(complement(candidate.value)), place(candidate))


def by_priority(priority: Sequence[str]) -> Callable[[Candidate], Place]:
    """Return the order of `source_priority`.

    Parameters
    ----------
    priority : sequence of str
        Uuids of replicasets, the preferred one first; the others follow, the last writer's first.

    """
    ranks = {uuid: len(priority) - i for i, uuid in reversed(list(enumerate(priority)))}
    return lambda candidate: (ranks.get(candidate.replicaset, 0), place(candidate))


def complement(value: bytes | None) -> bytes | None:
    """Return bytes in the reverse order; a missing value stays below all.

    The bytes of one value are never a prefix of another's (`udfs.keys.kernels.ordered`), so inverting all bits reverses
    their order.
    """
    if value is None or value.startswith(NO_VALUE):
        return value
    return bytes(255 - byte for byte in value)


ORDERS: Mapping[str, Callable[[Candidate], Place]] = {
    "last_write_wins": last_write,
    "first_write_wins": first_write,
    "max": greatest,
    "min": least,
}
"""The orders by name of the policy; `source_priority` has one for each list of replicasets."""


def choose(
    candidates: Sequence[Candidate], order: Callable[[Candidate], Place], *, deletes_all: bool = False
) -> Candidate | None:
    """Return the version that wins; None if none takes part.

    Parameters
    ----------
    candidates : sequence of Candidate
        In any order, at most one per replicaset.
    order : callable
        Sort key of the policy.
    deletes_all : bool
        Whether a deleted version takes part.

    """
    taking = [one for one in candidates if deletes_all or one.tuple is not None]
    return max(taking, key=order, default=None)

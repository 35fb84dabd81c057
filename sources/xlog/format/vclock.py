"""Vclocks as plain mappings {replica id: lsn}, and functions that compare and combine them.

A vclock is a `Mapping[int, int]`. Its items are its *components*; a missing component is 0 (`src/box/vclock.h`:
`vclock_get`). Component 0 counts the changes that one instance made to its local spaces. It means nothing to other
members of the replicaset, so it is left out before vclocks of two *members* are compared.
"""

from collections.abc import Mapping

from schemas.iproto import VCLOCK_MAX

Vclock = Mapping[int, int]


def without_local(vclock: Vclock) -> dict[int, int]:
    """Return the components that mean the same on every member, sorted by id.

    Component 0, of local spaces, is left out, and so are components whose lsn is 0.
    """
    return {id_: vclock[id_] for id_ in sorted(vclock) if id_ != 0 and vclock[id_] > 0}


def is_at_most(vclock: Vclock, other: Vclock) -> bool:
    """Return whether every component of `vclock` is at most that of `other`."""
    return all(lsn <= other.get(id_, 0) for id_, lsn in vclock.items())


def are_equal(vclock: Vclock, other: Vclock) -> bool:
    """Return whether two vclocks are equal; a zero equals a missing component."""
    return is_at_most(vclock, other) and is_at_most(other, vclock)


def vclock_maximum(vclock: Vclock, other: Vclock) -> dict[int, int]:
    """Return the component-wise maximum of two vclocks."""
    ids = sorted({*vclock, *other})
    return {id_: max(vclock.get(id_, 0), other.get(id_, 0)) for id_ in ids}


def rows_ahead(vclock: Vclock, other: Vclock) -> int:
    """Return the number of rows that `vclock` has and `other` lacks (components 1 and up)."""
    return sum(max(0, lsn - other.get(id_, 0)) for id_, lsn in vclock.items() if id_ != 0)


def vclock_of(value: object) -> dict[int, int]:
    """Return the vclock that a decoded JSON object represents.

    Raises:
        ValueError: If the value is no such object; the error's text is the reason.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"a vclock is an object {{replica id: lsn}}, not {value!r}")
    vclock = {}
    for key, lsn in value.items():
        if not (isinstance(key, str) and key.isascii() and key.isdecimal() and str(int(key)) == key):
            raise ValueError(f"{key!r} is not a replica id")
        if int(key) >= VCLOCK_MAX:
            raise ValueError(f"replica id {key} is above {VCLOCK_MAX - 1}")
        if isinstance(lsn, bool) or not isinstance(lsn, int) or not 0 <= lsn < 1 << 63:
            raise ValueError(f"{lsn!r} is not an lsn (replica id {key})")
        vclock[int(key)] = lsn
    return dict(sorted(vclock.items()))

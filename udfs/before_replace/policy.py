"""A conflict policy: the versions that it gets, its options, and its outcome.

A policy ranks versions or makes a tuple of them (`PolicyKind`). `schemas.policies` is the table of all policies;
`pipeline.resolve` orders the versions of each key and calls the policy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.space import Space
from udfs.before_replace.row import have_same_positions


class Candidate(NamedTuple):
    """One replicaset's version of a key.

    The versions of a key are ordered by sequence, replicaset uuid, instance uuid and lsn, in this order. The sequence
    is the value of the fields in `PolicyOptions.sequence`; without such fields the timestamp takes its place. An
    unknown value is less than any other. The order depends on the versions alone, never on when they arrived. The
    version that comes last is the *last writer's*.
    """

    tuple: bytes | None
    """Exact MessagePack; None for a deleted version."""
    replicaset: str
    instance: str
    """Uuids of the replicaset that has the version and of the instance that wrote it ("" for a snapshot's row)."""
    lsn: int
    timestamp: int | None = None
    """Microseconds since 1970; None for a snapshot's row."""
    created: int | None = None
    """When the tuple was inserted, in microseconds since 1970; None if not known."""
    global_id: int = 0
    """Global id of `instance`; 0 if not known."""
    format_index: int = 0
    """Index of the tuple's format in `Formats.spaces`."""


class Outcome(NamedTuple):
    """The result of a policy for one key: a winner, a made tuple or a fault.

    If all three are None, the policy deletes the key.
    """

    winner: int | None = None
    """Index of the version that wins unchanged; None if no version does."""
    tuple: bytes | None = None
    """The tuple that the policy made from several versions; None if the policy made no tuple."""
    format_index: int = 0
    """Index of the format of `tuple` in `Formats.spaces`."""
    fault: str | None = None
    """Why the policy failed; None if it did not fail."""


def outcome_of(candidates: Sequence[Candidate], made: bytes, field_names: Sequence[Sequence[str]]) -> Outcome:
    """Return the outcome for `made`, a tuple that a policy made in the format of the last candidate.

    If some candidates have this very tuple, the last of these candidates wins, and no tuple counts as made. Equal bytes
    are the same tuple only if a position means the same field in both formats; `field_names` has the names of the
    fields of each format, by `Candidate.format_index`.
    """
    format_index = candidates[-1].format_index
    same = [
        number
        for number, candidate in enumerate(candidates)
        if candidate.tuple == made
        and have_same_positions(field_names[candidate.format_index], field_names[format_index])
    ]
    return Outcome(same[-1]) if same else Outcome(None, made, format_index)


@dataclass(frozen=True)
class PolicyOptions:
    """The configuration of one space's policy."""

    sequence: tuple[str, ...] = ()
    """Fields that say which version is later."""
    priority: tuple[str, ...] = ()
    """Uuids of replicasets, the preferred one first."""
    column: str | None = None
    """Field that `max` or `min` compares."""
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Field that `merge_fields` merges → the fields of its sequence."""
    columns: tuple[str, ...] = ()
    """Fields that `sum` adds up."""
    function: str | None = None
    """`package.module:function` of `custom`."""


@dataclass(frozen=True)
class Formats:
    """The formats of the tuples of one table: the definition of its space in each replicaset."""

    space: str
    spaces: tuple[Space, ...]
    """The definitions; `Candidate.format_index` is an index in this tuple."""

    @property
    def names(self) -> list[list[str]]:
        """The names of the fields of each format."""
        return [[one.name for one in space.fields] for space in self.spaces]

    @cached_property
    def _field_numbers_by_name(self) -> list[dict[str, int]]:
        return [{one.name: i for i, one in enumerate(space.fields)} for space in self.spaces]

    def field_number(self, format_index: int, name: str) -> int:
        """Return the 0-based number of a field in a format, -1 if the format lacks it."""
        return self._field_numbers_by_name[format_index].get(name, -1)

    def field_numbers(self, names: Sequence[str]) -> list[list[int]]:
        """Return the 0-based numbers of some fields in each format, -1 for a field that a format lacks."""
        return [[numbers.get(name, -1) for name in names] for numbers in self._field_numbers_by_name]

    def is_double(self, format_index: int, name: str) -> bool:
        """Return whether a format gives a field the type double; a sum in this field is MP_DOUBLE, never MP_FLOAT."""
        number = self.field_number(format_index, name)
        return number >= 0 and self.spaces[format_index].fields[number].type == "double"


@dataclass(frozen=True)
class Versions:
    """Versions of one table's contended keys (keys that several replicasets have), as columns."""

    tuples: pa.Array
    """Null for a version that is deleted or not known."""
    format_indexes: NDArray[np.int32]
    """Index of each version's format (int32[n]); -1 if it has none."""
    replicaset_ids: NDArray[np.int32]
    """Id of each version's replicaset (int32[n])."""
    uuid_by_id: Sequence[str]
    """Replicaset uuids by id."""
    created: NDArray[np.int64]
    """When the tuple was inserted, in microseconds since 1970 (int64[n]); `udfs.versions.kernels.lives.NO_TIME` if
    unknown."""


Rank = Callable[[Versions, PolicyOptions, Formats], NDArray[np.int64]]
"""Ranks versions: the one with the greatest number wins; of equal ones the last in the order of `Candidate`."""

Make = Callable[[Sequence[Sequence[Candidate]], PolicyOptions, Formats], list[Outcome]]
"""Makes one outcome per key from the key's versions, which are in the order of `Candidate`."""


@dataclass(frozen=True)
class PolicyKind:
    """The functions of one policy."""

    label: Callable[[PolicyOptions], str] = lambda _: ""
    """Returns the text for the column `_conflicts.sequence`, such as `max(balance)`."""
    rank: Rank | None = None
    """Ranks the versions; None if the order of `Candidate` alone decides."""
    make: Make | None = None
    """Makes a tuple from several versions; None if the policy always chooses one version."""

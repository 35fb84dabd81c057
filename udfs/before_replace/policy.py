"""Describes a conflict policy: how it ranks versions, or how it makes a tuple of them. Plain data.

`schemas.policies` is the table of all policies; `pipeline.resolve` chooses and orders the versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.space import Space
from udfs.before_replace.candidate import Candidate
from udfs.before_replace.custom import Outcome


@dataclass(frozen=True)
class PolicyOptions:
    """The configuration of one space's policy.

    Parameters
    ----------
    sequence : tuple of str
        Fields that say which version is later.
    priority : tuple of str
        Uuids of replicasets, the preferred one first.
    column : str or None
        Field that `max` or `min` compares.
    fields : mapping of str to tuple of str
        Field that `merge_fields` merges → the fields of its sequence.
    columns : tuple of str
        Fields that `sum` adds up.
    function : str or None
        `package.module:function` of `custom`.

    """

    sequence: tuple[str, ...] = ()
    priority: tuple[str, ...] = ()
    column: str | None = None
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    function: str | None = None


@dataclass(frozen=True)
class Formats:
    """The definitions of one table's space; a version names its format by index in `spaces`."""

    space: str
    spaces: tuple[Space, ...]

    @property
    def names(self) -> list[list[str]]:
        """The names of each format's fields."""
        return [[one.name for one in space.fields] for space in self.spaces]

    def field_numbers(self, names: Sequence[str]) -> list[list[int]]:
        """Return the 0-based numbers of some fields in each format, -1 for a field that a format lacks."""
        return [
            [next((i for i, one in enumerate(space.fields) if one.name == name), -1) for name in names]
            for space in self.spaces
        ]


@dataclass(frozen=True)
class Versions:
    """Versions of one table's contended keys, as columns.

    Parameters
    ----------
    tuples : pyarrow.BinaryArray
        Null for a version that is deleted or not known.
    formats : int32[n]
        Index of each version's format; -1 if it has none.
    replicasets : int32[n]
        Id of each version's replicaset.
    uuids : sequence of str
        Replicaset uuids by id.
    created : int64[n]
        When the tuple was inserted, in microseconds since 1970; `udfs.versions.kernels.lives.NO_TIME` if unknown.

    """

    tuples: pa.Array
    formats: NDArray[np.int32]
    replicasets: NDArray[np.int32]
    uuids: Sequence[str]
    created: NDArray[np.int64]


Rank = Callable[[Versions, PolicyOptions, Formats], NDArray[np.int64]]
"""Ranks versions: the greatest number wins; among equals the later one by sequence, time and origin."""

Make = Callable[[Sequence[Sequence[Candidate]], PolicyOptions, Formats], list[Outcome]]
"""Returns one outcome per key from its versions, which are in order, the last writer's last."""


@dataclass(frozen=True)
class PolicyKind:
    """How one policy decides.

    Parameters
    ----------
    label : callable
        Returns the criterion that `_conflicts.sequence` shows.
    rank : callable, optional
        Ranks the versions; None if their order alone decides.
    make : callable, optional
        Makes a tuple; None if the policy chooses a version.

    """

    label: Callable[[PolicyOptions], str] = lambda _: ""
    rank: Rank | None = None
    make: Make | None = None

"""What a policy of before_replace is: how it chooses between versions, or what it makes of them. Plain data.

`udfs.before_replace.policies` is the table of all policies. Not here: which versions take part, and the order in
which they meet (`pipeline.resolve`).
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
    """How one space's policy is configured.

    Parameters
    ----------
    sequence : tuple of str
        Fields that say which version is later.
    priority : tuple of str
        Uuids of the replicasets that come first.
    column : str or None
    fields : mapping of str to tuple of str
    columns : tuple of str
    function : str or None
        `package.module:function`.

    """

    sequence: tuple[str, ...] = ()
    priority: tuple[str, ...] = ()
    column: str | None = None
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    function: str | None = None


@dataclass(frozen=True)
class Formats:
    """The definitions of one table's space: a version's format is its index in `spaces`."""

    space: str
    spaces: tuple[Space, ...]

    def places(self, names: Sequence[str]) -> list[list[int]]:
        """Return of each format the 0-based numbers of some fields, -1 where it lacks one."""
        return [
            [next((i for i, one in enumerate(space.fields) if one.name == name), -1) for name in names]
            for space in self.spaces
        ]


@dataclass(frozen=True)
class Versions:
    """Versions of contended keys of one table, as columns.

    Parameters
    ----------
    tuples : pyarrow.BinaryArray
        Null where a version is deleted or not known.
    formats : int32[n]
        -1 where there is none.
    replicasets : int32[n]
        Replicaset ids.
    uuids : sequence of str
        Of replicasets, by id.
    created : int64[n]
        Microseconds since 1970, `udfs.versions.kernels.lives.NO_TIME` where unknown.

    """

    tuples: pa.Array
    formats: NDArray[np.int32]
    replicasets: NDArray[np.int32]
    uuids: Sequence[str]
    created: NDArray[np.int64]


Rank = Callable[[Versions, PolicyOptions, Formats], NDArray[np.int64]]
"""Gives each version a number: the greatest wins; of equals the later one by sequence, time and origin."""

Make = Callable[[Sequence[Sequence[Candidate]], PolicyOptions, Formats], list[Outcome]]
"""Makes one outcome of the versions of each key, which come in their order, the last writer's last."""


@dataclass(frozen=True)
class PolicyKind:
    """One policy.

    Parameters
    ----------
    name : str
        In the configuration.
    option : str
        The key of the configuration that it alone takes, and needs; empty where there is none.
    option_help : str
        What stands there.
    takes_deleted : bool
        Whether a deleted version can take part (`deletes: all`).
    label : callable
        Says in `_conflicts.sequence` what a decision was made on.
    rank : callable, optional
        Of a policy that chooses one of the versions by more than their order.
    make : callable, optional
        Of a policy that makes a tuple.

    """

    name: str
    option: str = ""
    option_help: str = ""
    takes_deleted: bool = False
    label: Callable[[PolicyOptions], str] = lambda _: ""
    rank: Rank | None = None
    make: Make | None = None

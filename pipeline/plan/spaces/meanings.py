"""What each space id means at each position of a batch: the definition, the table, and the truncations.

The meaning of a row depends only on its position in the log, so it does not matter where a log is divided into batches.

Pure data. `pipeline.plan.spaces.meanings_builder` makes a `History`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from pipeline.plan.rows.position import LogPosition
from schemas.space import KeyParts, Space

NO_TABLE = -1
"""The number of the schema version, or of the lineage, for rows that go to no table."""

T = TypeVar("T")

SpaceKey = tuple[int, int]
"""(replicaset id, space id)."""


@dataclass(frozen=True)
class SchemaVersion:
    """One definition of a space in one replicaset, and the table to which its rows go."""

    replicaset_id: int
    space: Space
    table: str


@dataclass(frozen=True)
class Meaning:
    """What a space id means from a position on."""

    since: LogPosition
    version: int = NO_TABLE
    """Number of the schema version, `NO_TABLE` if rows go to no table."""
    lineage: int = NO_TABLE
    era: int = 0
    """Number of the era (the period with one primary key) within the lineage."""
    truncations: int = 0
    """Number of truncations of the lineage up to this position."""
    is_early: bool = False
    """Whether the rows come before the definition of their space."""


class Era(NamedTuple):
    """A part of a lineage with one primary key."""

    version: int
    """The number of the schema version that begins the era."""
    truncations_before: int = 0
    """Number of truncations of the lineage before the era."""


@dataclass(frozen=True)
class Lineage:
    """A space from its creation to its drop, as far as these are within the batch."""

    replicaset_id: int
    space_id: int
    base_table: str | None
    """The table that has the lineage's versions before the batch; None if no table has."""
    table: str
    """The table that has the lineage's versions after the batch, or had them when the lineage ended."""
    eras: tuple[Era, ...]
    """At least one."""
    truncations: int = 0
    """Number of truncations in the batch; the drop counts as one."""
    ended: LogPosition | None = None
    """The position of the drop; None if the space still exists after the batch."""
    is_renewed: bool = False
    """Whether a generation (a snapshot after missing logs) contains the space with the same definition."""

    @property
    def leaves_base_table(self) -> bool:
        """Whether the versions from before the batch move to another table."""
        return self.base_table is not None and self.table != self.base_table

    @property
    def changes_keys_without_rows(self) -> bool:
        """Whether the batch may change versions whose keys are in no row of the batch, as by a truncation or a drop."""
        moved = self.leaves_base_table or len(self.eras) > 1
        return self.base_table is not None and (self.truncations > 0 or self.is_renewed or moved)

    def truncations_in(self, era: int) -> int:
        """Return the number of truncations within an era."""
        after = self.eras[era + 1].truncations_before if era + 1 < len(self.eras) else self.truncations
        return after - self.eras[era].truncations_before


@dataclass(frozen=True)
class Refusal:
    """A space whose rows go to `_changelog` only, and the reason."""

    replicaset_id: int
    space_id: int
    name: str
    reason: str


@dataclass(frozen=True)
class History:
    """What the space ids of all replicasets of a batch mean. Mappings are by (replicaset id, space id)."""

    versions: tuple[SchemaVersion, ...] = ()
    """Numbered by their index."""
    lineages: tuple[Lineage, ...] = ()
    """Numbered by their index."""
    meanings: Mapping[SpaceKey, tuple[Meaning, ...]] = field(default_factory=dict)
    """The meanings of each space id, in log order."""
    refusals: tuple[Refusal, ...] = ()
    """The spaces that are refused after the batch."""
    tables: Mapping[SpaceKey, str] = field(default_factory=dict)
    """The table that has the space's versions after the batch."""
    current_versions: Mapping[SpaceKey, int] = field(default_factory=dict)
    """The number of the space's schema version after the batch, for spaces that go to a table."""
    primary_keys: Mapping[SpaceKey, frozenset[KeyParts]] = field(default_factory=dict)
    """All primary keys that the space has had so far."""
    tracked_spaces: frozenset[SpaceKey] = frozenset()
    """The spaces with rows or events in the batch."""

    def by_replicaset(self, ids: Iterable[int]) -> dict[int, History]:
        """Return the history of each of some replicasets, by their ids, with the versions and lineages of the batch."""
        refusals: dict[int, list[Refusal]] = defaultdict(list)
        for one in self.refusals:
            refusals[one.replicaset_id].append(one)
        meanings = _by_replicaset(self.meanings)
        tables = _by_replicaset(self.tables)
        current_versions = _by_replicaset(self.current_versions)
        primary_keys = _by_replicaset(self.primary_keys)
        tracked = _by_replicaset(dict.fromkeys(self.tracked_spaces))
        return {
            i: History(
                self.versions,
                self.lineages,
                meanings[i],
                tuple(refusals[i]),
                tables[i],
                current_versions[i],
                primary_keys[i],
                frozenset(tracked[i]),
            )
            for i in ids
        }


def _by_replicaset(by_space: Mapping[SpaceKey, T]) -> defaultdict[int, dict[SpaceKey, T]]:
    found: defaultdict[int, dict[SpaceKey, T]] = defaultdict(dict)
    for key, one in by_space.items():
        found[key[0]][key] = one
    return found

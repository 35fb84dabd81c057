"""What the writer knows between two batches: frozen data, loaded from the tables once and advanced by each batch.

Pure. Loading it is `jobs.batch.load`; nothing in here is ever the only copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jobs.batch.control import SpaceRows


@dataclass(frozen=True)
class MapEntry:
    """Rows of `local_id` with lsn >= `since_lsn` are the instance `global_id`'s."""

    local_id: int
    global_id: int
    since_lsn: int


@dataclass(frozen=True)
class Replicaset:
    """One replicaset as far as it was followed.

    Parameters
    ----------
    id : int
        The aggregator's short number for the uuid.
    uuid : str
    settled : mapping of int to int
        Replica id to the last lsn that is in `_changelog`.
    read : mapping of int to int
        The same with the rows that wait in `_pending`.
    cluster : mapping of int to str
        Replica id to instance uuid, as its `_cluster` stands.
    maps : tuple of MapEntry
        Its applier map, oldest entries first.
    spaces : mapping of int to SpaceRows
        Its user spaces.
    refused : mapping of int to str
        Space id to the reason why it is followed in `_changelog` only.
    leader : str or None
        The instance whose log was read last; component 0 of the vclocks is its own.

    """

    id: int
    uuid: str
    settled: Mapping[int, int] = field(default_factory=dict)
    read: Mapping[int, int] = field(default_factory=dict)
    cluster: Mapping[int, str] = field(default_factory=dict)
    maps: tuple[MapEntry, ...] = ()
    spaces: Mapping[int, SpaceRows] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    leader: str | None = None

    @property
    def waits(self) -> bool:
        """Whether rows of it wait in `_pending`."""
        return dict(self.read) != dict(self.settled)


@dataclass(frozen=True)
class Writers:
    """Who wrote rows of one table, and whether it has versions that lie outside of it."""

    replicasets: frozenset[int] = frozenset()
    unfit: bool = False


@dataclass(frozen=True)
class State:
    """Everything between two batches.

    Parameters
    ----------
    epoch : int
        The last committed one; -1 before the first.
    replicasets : mapping of str to Replicaset
        By uuid.
    global_ids : mapping of str to int
        Instance uuid to global id, as in `_cluster`.
    writers : mapping of str to Writers
        By table.
    versions : mapping of str to int
        Table to its Delta version, as the last epoch names it.

    """

    epoch: int = -1
    replicasets: Mapping[str, Replicaset] = field(default_factory=dict)
    global_ids: Mapping[str, int] = field(default_factory=dict)
    writers: Mapping[str, Writers] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)

    def with_replicasets(self, changed: Mapping[str, Replicaset]) -> State:
        """Return the state with some replicasets replaced."""
        return replace(self, replicasets={**self.replicasets, **changed})

    def vclocks(self) -> dict[str, dict[int, int]]:
        """Return the settled vclock of each replicaset in its own replica ids."""
        return {uuid: dict(one.settled) for uuid, one in self.replicasets.items()}

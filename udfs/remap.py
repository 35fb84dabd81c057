"""Replica ids to global ids, and back: a source's applier map as native column expressions and plain functions.

A row's (segment, replica id) is a slot; what is to be known of a slot lies in an array literal, so remapping costs
one array access a row and no join. Ids that changed hands within a batch are told apart by lsn.
Not here: where maps come from (`tables.cluster`, `tables.applier_map`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pyspark.sql import Column
from pyspark.sql import functions as F

from schemas.iproto import VCLOCK_MAX
from udfs.literals import array_literal

MISSING = -1


@dataclass(frozen=True)
class Slots:
    """How (segment, replica id) becomes an index into an array literal.

    Parameters
    ----------
    first : int
        The lowest segment.
    count : int
        How many segments there are.

    """

    first: int
    count: int

    def segment(self) -> Column:
        """Return the 0-based number of a row's segment."""
        return F.col("segment") - F.lit(self.first)

    def slot(self) -> Column:
        """Return the index of a row's (segment, replica id); rows without a replica id are local, 0."""
        return self.segment() * F.lit(VCLOCK_MAX) + F.coalesce(F.col("replica_id"), F.lit(0))

    def per_segment(self, values: Mapping[int, int]) -> Column:
        """Return the value of a row's segment."""
        array = np.full(self.count, MISSING, dtype=np.int64)
        for segment, value in values.items():
            array[segment - self.first] = value
        return F.get(array_literal(array.tolist(), "bigint"), self.segment())

    def per_slot(self, values: Mapping[tuple[int, int], int]) -> Column:
        """Return the value of a row's (segment, replica id), `MISSING` where there is none."""
        array = np.full(self.count * VCLOCK_MAX, MISSING, dtype=np.int64)
        for (segment, replica_id), value in values.items():
            array[(segment - self.first) * VCLOCK_MAX + replica_id] = value
        return F.get(array_literal(array.tolist(), "bigint"), self.slot())


@dataclass(frozen=True)
class Mapped:
    """One entry of an applier map as it applies to a segment: rows with lsn >= `since_lsn` are `global_id`'s."""

    segment: int
    replica_id: int
    global_id: int
    since_lsn: int


def global_id_column(slots: Slots, entries: Iterable[Mapped]) -> Column:
    """Return a row's global id; null where its replica id is in no map.

    Parameters
    ----------
    slots : Slots
    entries : iterable of Mapped
        Of one (segment, replica id) in order of `since_lsn`.

    """
    by_slot: dict[tuple[int, int], list[Mapped]] = {}
    for entry in entries:
        by_slot.setdefault((entry.segment, entry.replica_id), []).append(entry)
    result = slots.per_slot({slot: found[-1].global_id for slot, found in by_slot.items()})
    for (segment, replica_id), found in by_slot.items():
        here = (F.col("segment") == segment) & (F.col("replica_id") == replica_id)
        if found[0].since_lsn > 1:
            # Whose they are is not known; the last entry's instance they are not.
            result = F.when(here & (F.col("lsn") < found[0].since_lsn), F.lit(MISSING)).otherwise(result)
        for older, newer in pairwise(found):
            within = (F.col("lsn") < newer.since_lsn) & (F.col("lsn") >= older.since_lsn)
            result = F.when(here & within, F.lit(older.global_id)).otherwise(result)
    return F.when(result == MISSING, F.lit(None)).otherwise(result)


def injective(ids: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the map that holds after its entries: one global id a replica id, and one replica id a global id.

    An instance that was registered anew under another replica id stands under that one only: its old component never
    moves again. Component 0 counts one instance's local changes and is in no map.

    Parameters
    ----------
    ids : iterable of (int, int)
        (replica id, global id), oldest first.

    """
    known: dict[int, int] = {}
    for replica_id, global_id in ids:
        if replica_id:
            known = {old: one for old, one in known.items() if one != global_id and old != replica_id}
            known[replica_id] = global_id
    return known


def remap(vclock: Mapping[int, int], ids: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return a vclock in global ids.

    Parameters
    ----------
    vclock : mapping of int to int
        Replica id to lsn.
    ids : iterable of (int, int)
        The applier map, oldest entries first: (replica id, global id).

    """
    known = injective(ids)
    return {known[replica_id]: lsn for replica_id, lsn in vclock.items() if replica_id in known}


def unmap(vclock: Mapping[int, int], ids: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return a vclock in a source's own ids: the inverse of `remap` (document 000, step 3; document 001)."""
    known = {global_id: replica_id for replica_id, global_id in injective(ids).items()}
    return {known[global_id]: lsn for global_id, lsn in vclock.items() if global_id in known}


def own_ids(ids: Mapping[int, int], meant: int) -> list[int]:
    """Return the replica id under which a source's rows have an id of the replicaset; none or one.

    Parameters
    ----------
    ids : mapping of int to int
        The source's replica ids that are other ones in its replicaset (document 001).
    meant : int
        An id of the replicaset.

    """
    own = [local_id for local_id, other in ids.items() if other == meant]
    return own or ([] if meant in ids or meant >= VCLOCK_MAX else [meant])

"""Whose replica ids are whose where two members of a replicaset do not agree (document 001), before rows are settled.

By default a source's replica ids are its replicaset's and nothing is done here. A source that is asked for its own
`_cluster` (its *view*) may give an id to another instance than the member that was read first: then its ids are
translated. An instance that has an id here goes under that one, another one gets a number above Tarantool's own.
Of what follows in the log, an INSERT into an id that the source itself did not have, but others had given away, is
such a conflict (case a); one that comes after the source's own DELETE is a reuse of the id, the same for all.

Pure: what is known, the stretches and the batch's rows of `_cluster`, in; ids, out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgpack

from jobs.batch.control import Registration
from jobs.batch.settle import Settlement
from jobs.batch.state import MapEntry, Replicaset
from jobs.batch.stretch import Stretch
from jobs.batch.summary import LIMBO_TYPES, ControlRow, Order, Summary
from jobs.batch.transactions import Waiting
from schemas.cluster_checksum import checksum
from schemas.iproto import VCLOCK_MAX, BodyKey
from udfs.remap import own_ids

Ids = Mapping[int, int]


@dataclass(frozen=True)
class Views:
    """What the sources of a replicaset say, in the replicaset's ids.

    Parameters
    ----------
    ids : mapping of str to mapping of int to int
        By source: its ids that are other ones here.
    views : mapping of str to mapping of int to str
        By source that was asked: its `_cluster` at the end of the batch.
    announced : tuple of Registration
        What views have told beyond what was known, before any row of the batch.
    bases : mapping of int to int
        The last lsn before its first one, of an id that goes on from another one.

    """

    ids: Mapping[str, Ids] = field(default_factory=dict)
    views: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    announced: tuple[Registration, ...] = ()
    bases: Mapping[int, int] = field(default_factory=dict)


class _Ids:
    """Follows what sources say of their ids, row by row."""

    def __init__(self, known: Replicaset, uuids: Mapping[int, str]) -> None:
        self.known = known
        self.cluster = dict(known.cluster)
        self.had = {(e.local_id, uuids.get(e.global_id)) for e in known.maps}
        self.had |= {(local_id, uuid) for local_id, uuid in known.cluster.items()}
        self.ids = {source: dict(ids) for source, ids in known.ids.items()}
        self.bases: dict[int, int] = {}

    def meant(self, source: str, local_id: int) -> int:
        return self.ids.get(source, {}).get(local_id, local_id)

    def gives(self, source: str, local_id: int, uuid: str, *, anew: bool) -> int:
        """Take that a source gives an id to an instance; return the id that it has here."""
        meant = self.meant(source, local_id)
        if (meant, uuid) in self.had:
            self.cluster.setdefault(meant, uuid)
            return meant
        if anew and self._is_others(meant, uuid):
            other = next((id_ for id_, one in self.cluster.items() if one == uuid), None)
            base = self._base(local_id) if other is None else None
            meant = self._fresh() if other is None else other
            self.ids.setdefault(source, {})[local_id] = meant
            if base:
                self.bases[meant] = base
        self.cluster[meant] = uuid
        self.had.add((meant, uuid))
        return meant

    def expels(self, source: str, local_id: int, uuid: str | None) -> None:
        """Take that a source deletes an id; a row that was read before may speak of an earlier holder."""
        meant = self.meant(source, local_id)
        if uuid is None or self.cluster.get(meant) == uuid:
            self.cluster.pop(meant, None)

    def _is_others(self, local_id: int, uuid: str) -> bool:
        return self.cluster.get(local_id, uuid) != uuid and (local_id, uuid) not in self.had

    def _base(self, local_id: int) -> int:
        since = [e.since_lsn for e in self.known.maps if e.local_id == local_id]
        return max(since) - 1 if since else 0

    def _fresh(self) -> int:
        return max([VCLOCK_MAX - 1, *self.cluster, *(local_id for local_id, _ in self.had)]) + 1


def views_of(
    known: Replicaset,
    stretches: Sequence[Stretch],
    registrations: Iterable[Registration],
    uuids: Mapping[int, str],
) -> Views:
    """Return what the sources of a batch say of their ids.

    Parameters
    ----------
    known : Replicaset
        Before the batch.
    stretches : sequence of Stretch
        Of this replicaset.
    registrations : iterable of Registration
        All of the batch's, in the order of the log, in the sources' own ids.
    uuids : mapping of int to str
        Instance uuids by global id.

    """
    ids = _Ids(known, uuids)
    views = {source: dict(view) for source, view in known.views.items()}
    told: list[Registration] = []
    pending = list(registrations)
    for stretch in stretches:
        if stretch.announced is not None and stretch.source not in views:
            told += _announced(ids, stretch)
            views[stretch.source] = dict(stretch.announced)
        while pending and pending[0].order.segment <= stretch.segment:
            _follow(ids, views, stretch.source, pending.pop(0))
    return Views(ids.ids, views, tuple(told), ids.bases)


def _announced(ids: _Ids, stretch: Stretch) -> list[Registration]:
    view = stretch.announced or {}
    # Document 000: where the sums are equal, nothing needs to be told.
    if checksum(view) == checksum(_view(ids, stretch.source)):
        return []
    begin = Order(stretch.segment, -1, 0)
    told = []
    for local_id in sorted(view):
        uuid, known = view[local_id], dict(ids.cluster)
        meant = ids.gives(stretch.source, local_id, uuid, anew=True)
        if known.get(meant) != ids.cluster[meant]:
            told.append(Registration(begin, meant, uuid))
    return told


def _view(ids: _Ids, source: str) -> dict[int, str]:
    """Return what is known of a source's `_cluster`: the replicaset's, in the source's ids."""
    back = {meant: local_id for local_id, meant in ids.ids.get(source, {}).items()}
    return {back.get(meant, meant): uuid for meant, uuid in ids.cluster.items()}


def _follow(ids: _Ids, views: Mapping[str, dict[int, str]], source: str, row: Registration) -> None:
    view = views.get(source)
    if row.uuid is None:
        ids.expels(source, row.local_id, None if view is None else view.pop(row.local_id, ""))
        return
    ids.gives(source, row.local_id, row.uuid, anew=view is not None and row.local_id not in view)
    if view is not None:
        view[row.local_id] = row.uuid


def translated(summary: Summary, ids: Mapping[int, Ids]) -> Summary:
    """Return a summary in the replicaset's ids.

    Parameters
    ----------
    summary : Summary
        In the sources' own.
    ids : mapping of int to mapping of int to int
        By segment: the ids that are other ones here.

    """
    if not any(ids.values()):
        return summary

    def meant(order: Order, replica_id: int) -> int:
        return ids.get(order.segment, {}).get(replica_id, replica_id)

    def control(row: ControlRow) -> ControlRow:
        replica_id = None if row.replica_id is None else meant(row.order, row.replica_id)
        return replace(row, replica_id=replica_id, body=_body(row, ids.get(row.order.segment, {})))

    sync = tuple(replace(row, replica_id=meant(row.order, row.replica_id)) for row in summary.sync)
    return replace(
        summary,
        runs=tuple(replace(run, replica_id=meant(run.start, run.replica_id)) for run in summary.runs),
        control=tuple(control(row) for row in summary.control),
        waiting=Waiting(sync),
    )


def _body(row: ControlRow, ids: Ids) -> bytes | None:
    """Return the body of a row that settles transactions: it names their owner by replica id."""
    if row.body is None or row.type not in LIMBO_TYPES:
        return row.body
    body = msgpack.unpackb(row.body, strict_map_key=False)
    owner = body.get(BodyKey.REPLICA_ID)
    if owner not in ids:
        return row.body
    packed: bytes = msgpack.packb({**body, int(BodyKey.REPLICA_ID): ids[owner]})
    return packed


def in_own_ids(settlement: Settlement, ids: Mapping[int, Ids]) -> Settlement:
    """Return a settlement whose floors are in the ids of each segment's own source."""
    if not any(ids.values()):
        return settlement
    floors = {}
    for (segment, meant), lsn in settlement.floors.items():
        for own in own_ids(ids.get(segment, {}), meant):
            floors[segment, own] = lsn
    return replace(settlement, floors=floors)


def entries_of(known: Replicaset, source: str) -> list[MapEntry]:
    """Return a replicaset's applier map in the ids of a source, in its order."""
    ids = known.ids.get(source, {})
    return [replace(entry, local_id=own) for entry in known.maps for own in own_ids(ids, entry.local_id)]

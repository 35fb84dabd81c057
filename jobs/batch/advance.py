"""What a settled batch says of its instances, and a replicaset after it: its applier map, its vclock, its members.

Pure. From which lsn on an entry of the map holds is told by the log: an id that another instance gets goes on from
the old one's last lsn. Not here: which rows count (`settle`), global ids (`udfs.cluster_replace`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.batch.control import Control, Registration
from jobs.batch.members import Ids, Views, entries_of, translated
from jobs.batch.moves import MOVES
from jobs.batch.settle import Settlement
from jobs.batch.state import MapEntry, Replicaset
from jobs.batch.stretch import Stretch
from jobs.batch.summary import LOCAL_ID, Order, Summary
from schemas.iproto import VCLOCK_MAX
from tables.applier_map import Entry
from udfs.cluster_replace import Cluster, Incoming


@dataclass(frozen=True)
class Step:
    """What was decided of one replicaset before ids are given.

    Parameters
    ----------
    before : Replicaset
    settlement : Settlement
        In the replicaset's ids.
    control : Control
    registrations : tuple of Registration
        Those that count, in the replicaset's ids.
    views : Views
    ids : mapping of int to mapping of int to int
        By segment: the source's ids that are other ones here.
    first : Order or None
        Where its first row stands, as far as that is known.

    """

    before: Replicaset
    settlement: Settlement
    control: Control
    registrations: tuple[Registration, ...]
    views: Views
    ids: Mapping[int, Ids]
    first: Order | None = None


def announcements(steps: Mapping[str, Step], own: Mapping[str, Sequence[Stretch]]) -> list[Incoming]:
    """Return what the batch says of instances: by its rows, by its files' headers, by its being there."""
    told: list[Incoming] = []
    for uuid in sorted(steps):
        cluster = dict(steps[uuid].before.cluster)
        for one in steps[uuid].registrations:
            if one.uuid is not None:
                cluster[one.local_id] = one.uuid
                told.append(Incoming(one.uuid, _told_as(steps[uuid].views, one.local_id), uuid))
            elif one.local_id in cluster:
                told.append(Incoming(cluster.pop(one.local_id), one.local_id, uuid, expelled=True))
        headers = dict.fromkeys(part.instance_uuid for part in own[uuid] if part.instance_uuid is not None)
        told += [Incoming(instance, None, uuid) for instance in headers]
        told.append(Incoming(None, None, uuid))
    return told


def _told_as(views: Views, local_id: int) -> int:
    """Return the replica id of an instance in the source that told it, where it has no number of Tarantool's here."""
    if local_id < VCLOCK_MAX:
        return local_id
    return next(own for ids in views.ids.values() for own, meant in ids.items() if meant == local_id)


def advanced(step: Step, parts: Sequence[Stretch], table: Cluster, summary: Summary) -> Replicaset:
    """Return a replicaset after the batch.

    Parameters
    ----------
    step : Step
    parts : sequence of Stretch
        Of this replicaset.
    table : Cluster
        `_cluster` after the batch.
    summary : Summary
        In the sources' own ids.

    """
    before, settlement = step.before, step.settlement
    cluster, maps = dict(before.cluster), list(before.maps)
    summary = translated(summary, step.ids)
    for registration in step.registrations:
        if registration.uuid is None:
            cluster.pop(registration.local_id, None)
        elif cluster.get(registration.local_id) != registration.uuid:
            cluster[registration.local_id] = registration.uuid
            global_id = table.global_ids[registration.uuid]
            if [e.global_id for e in maps if e.local_id == registration.local_id][-1:] != [global_id]:
                since = _last_lsn(summary, before, maps, registration) + 1
                maps.append(MapEntry(registration.local_id, global_id, since))
    leader = [part.instance_uuid for part in parts if part.server is not None or part is parts[0]][-1]
    held = settlement.hold is not None
    return replace(
        before,
        id=table.replicaset_ids[before.uuid],
        settled=_of_leader(before, leader) if held else settlement.vclock,
        read=settlement.vclock,
        cluster=cluster,
        maps=tuple(maps),
        spaces=step.control.spaces,
        leader=leader,
        source=parts[-1].source,
        local_lsns=before.local_lsns if held else {**before.local_lsns, **settlement.local_lsns},
        ids=step.views.ids,
        moves=settlement.reason == MOVES,
        server=next((part.server for part in reversed(parts) if part.server is not None), before.server),
        views=step.views.views,
    )


def _of_leader(before: Replicaset, leader: str | None) -> dict[int, int]:
    """Return what was settled, with the component 0 of the instance that leads now."""
    settled = {local_id: lsn for local_id, lsn in before.settled.items() if local_id != LOCAL_ID}
    local = before.settled.get(LOCAL_ID) if leader == before.leader else before.local_lsns.get(leader or "")
    return settled if local is None else {**settled, LOCAL_ID: local}


def new_entries(before: Replicaset, after: Replicaset) -> list[Entry]:
    """Return what the applier map gets: for all sources, and for those whose ids are other ones."""
    found = _entries(after.id, (entry for entry in after.maps if entry not in before.maps))
    for source in after.ids:
        known = entries_of(before, source) if source in before.ids else []
        fresh = (entry for entry in entries_of(after, source) if entry not in known)
        found += _entries(after.id, fresh, source)
    return found


def _entries(replicaset_id: int, entries: Iterable[MapEntry], source: str | None = None) -> list[Entry]:
    return [Entry(replicaset_id, e.local_id, e.global_id, e.since_lsn, source) for e in entries]


def _last_lsn(
    summary: Summary, before: Replicaset, maps: Sequence[MapEntry], registration: Registration
) -> int:
    local_id, order = registration.local_id, registration.order
    own = [run.last for run in summary.runs if run.replica_id == local_id and run.start < order]
    # An instance signs rows before the row that registers it: the first master's own id is 1 from the start.
    if not any(entry.local_id == local_id for entry in maps):
        return before.settled.get(local_id, 0)
    return max([before.settled.get(local_id, 0), *own])

"""Translates replica ids where two members of a replicaset assign one id to different instances.

Usually all sources of a replicaset use the same replica ids, and nothing is translated. But the `_cluster` of a source
(its *view*) may assign an id to another instance than the member that was read first did. Then the source's ids are
translated: an instance that already has an id in the replicaset keeps it, any other gets a number above Tarantool's
maximum. It is such a conflict if a source assigns an id that it did not have, while other members have assigned it to
another instance. It is none if the source had the id and deleted it before: then all members reuse the id.

Pure: the state before, the segments and the batch's rows of `_cluster` in; translations out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgpack

from pipeline.plan.ids.settle import Settlement
from pipeline.plan.rows.position import LogPosition, LogSegment
from pipeline.plan.rows.summary import LIMBO_TYPES, ControlRow, Summary
from pipeline.plan.rows.transactions import Transactions
from pipeline.plan.spaces.system_rows import ReplicaIdChange
from pipeline.state import ApplierMapEntry, ReplicasetState
from schemas.cluster_checksum import checksum
from schemas.errors import TupleError
from schemas.iproto import VCLOCK_MAX, BodyKey
from schemas.system_tuples import unpacked
from udfs.remap.replica_ids import replica_id_in_source

IdTranslation = Mapping[int, int]
"""From the replica ids of one source to those of its replicaset; ids that are equal in both are left out."""


@dataclass(frozen=True)
class SourceIds:
    """How the sources of a replicaset assign replica ids, and how these translate to the replicaset's ids."""

    translations: Mapping[str, IdTranslation] = field(default_factory=dict)
    """For each source, a map from its replica ids to the replicaset's; only ids that differ are in the map."""
    views: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """For each source whose `_cluster` was read, its content at the end of the batch: replica id to instance uuid."""
    registrations: tuple[ReplicaIdChange, ...] = ()
    """Assignments that were not known before, and that no row of the batch makes: those found in the views when they
    were read, and those of rows that a whitelist leaves out (`LogSegment.left_out_members`)."""
    base_lsns: Mapping[int, int] = field(default_factory=dict)
    """For each new id that continues the lsns of another id, the last lsn of the other id."""


class _IdAssignments:
    """Follows how the sources assign replica ids, row by row."""

    def __init__(self, known: ReplicasetState, uuids: Mapping[int, str]) -> None:
        self.known = known
        self.cluster = dict(known.cluster)
        self.all_pairs = {(e.local_id, uuids.get(e.global_id)) for e in known.applier_map}
        self.all_pairs |= {(replica_id, uuid) for replica_id, uuid in known.cluster.items()}
        self.translations = {source: dict(ids) for source, ids in known.id_translations.items()}
        self.bases: dict[int, int] = {}

    def translate(self, source: str, replica_id: int) -> int:
        """Return the replicaset's id for a source's replica id."""
        return self.translations.get(source, {}).get(replica_id, replica_id)

    def assign(self, source: str, replica_id: int, uuid: str, *, is_new: bool) -> int:
        """Record that a source assigns an id to an instance; return the instance's id in the replicaset.

        With `is_new`, the source did not have the id before: then the id is translated if it belongs to another
        instance in the replicaset.
        """
        meant = self.translate(source, replica_id)
        if (meant, uuid) in self.all_pairs:
            self.cluster.setdefault(meant, uuid)
            return meant
        if is_new and self._belongs_to_other(meant, uuid):
            other = next((id_ for id_, one in self.cluster.items() if one == uuid), None)
            base = self._last_lsn_before(replica_id) if other is None else None
            meant = self._unused_id() if other is None else other
            self.translations.setdefault(source, {})[replica_id] = meant
            if base:
                self.bases[meant] = base
        self.cluster[meant] = uuid
        self.all_pairs.add((meant, uuid))
        return meant

    def expel(self, source: str, replica_id: int, uuid: str | None) -> None:
        """Record that a source deletes an id, unless the id now belongs to another instance than `uuid`.

        It does if the row is another member's copy of an old DELETE, and the id was assigned again since then.
        """
        meant = self.translate(source, replica_id)
        if uuid is None or self.cluster.get(meant) == uuid:
            self.cluster.pop(meant, None)

    def forget_ids_of_generation(self, source: str, vclock: Mapping[int, int]) -> None:
        """Forget the instances of the ids in a generation's `vclock`; its `_cluster` assigns the ids again.

        In the missing logs, an id may have passed to another instance, which continues the id's lsns. An id whose lsn
        in `vclock` is below the settled one has not passed on: the source uses it for another instance than the
        replicaset does. The instance of such an id is not forgotten, so that the id is translated.
        """
        lsns = {self.translate(source, replica_id): lsn for replica_id, lsn in vclock.items()}
        settled = self.known.settled
        self.cluster = {i: uuid for i, uuid in self.cluster.items() if lsns.get(i, 0) < settled.get(i, 0)}

    def _belongs_to_other(self, replica_id: int, uuid: str) -> bool:
        return self.cluster.get(replica_id, uuid) != uuid and (replica_id, uuid) not in self.all_pairs

    def _last_lsn_before(self, replica_id: int) -> int:
        since = [e.since_lsn for e in self.known.applier_map if e.local_id == replica_id]
        return max(since) - 1 if since else 0

    def _unused_id(self) -> int:
        return max([VCLOCK_MAX - 1, *self.cluster, *(replica_id for replica_id, _ in self.all_pairs)]) + 1


def assign_source_ids(
    known: ReplicasetState,
    segments: Sequence[LogSegment],
    registrations: Iterable[ReplicaIdChange],
    uuid_by_global_id: Mapping[int, str],
    generation_segment: int | None = None,
) -> SourceIds:
    """Return how the sources of a batch assign replica ids, after the batch.

    Args:
        generation_segment: The number of the segment that is a generation (`pipeline.plan.ids.generation`).
    """
    ids = _IdAssignments(known, uuid_by_global_id)
    views = {source: dict(view) for source, view in known.cluster_by_source.items()}
    registered: list[ReplicaIdChange] = []
    pending = list(registrations)
    for segment in segments:
        if segment.number == generation_segment:
            ids.forget_ids_of_generation(segment.source, segment.vclock)
        if segment.members is not None and segment.source not in views:
            registered += _register_members(ids, segment)
            views[segment.source] = dict(segment.members)
        for replica_id, uuid in segment.left_out_members.items():
            row = ReplicaIdChange(LogPosition(segment.number, -1, 0), replica_id, uuid)
            known_before = dict(ids.cluster)
            meant = _apply_registration(ids, views, segment.source, row)
            # Unlike a row, it has no lsn that says whether it was read before, in another member's log.
            if known_before.get(meant) != uuid == ids.cluster.get(meant):
                registered.append(replace(row, replica_id=meant))
        while pending and pending[0].position.segment <= segment.number:
            _apply_registration(ids, views, segment.source, pending.pop(0))
    return SourceIds(ids.translations, views, tuple(registered), ids.bases)


def _register_members(ids: _IdAssignments, segment: LogSegment) -> list[ReplicaIdChange]:
    view = segment.members or {}
    # The replication protocol's checksum of `_cluster`: if the checksums are equal, the views are equal.
    if checksum(view) == checksum(_expected_view(ids, segment.source)):
        return []
    begin = LogPosition(segment.number, -1, 0)
    found = []
    for replica_id in sorted(view):
        uuid, known = view[replica_id], dict(ids.cluster)
        meant = ids.assign(segment.source, replica_id, uuid, is_new=True)
        if known.get(meant) != ids.cluster[meant]:
            found.append(ReplicaIdChange(begin, meant, uuid))
    return found


def _expected_view(ids: _IdAssignments, source: str) -> dict[int, str]:
    """Return the `_cluster` that a source should have: the replicaset's, in the source's ids."""
    back = {meant: replica_id for replica_id, meant in ids.translations.get(source, {}).items()}
    return {back.get(meant, meant): uuid for meant, uuid in ids.cluster.items()}


def _apply_registration(
    ids: _IdAssignments, views: Mapping[str, dict[int, str]], source: str, row: ReplicaIdChange
) -> int:
    """Apply one row of `_cluster`; return the replicaset's id for the row's replica id."""
    view = views.get(source)
    if row.uuid is None:
        ids.expel(source, row.replica_id, None if view is None else view.pop(row.replica_id, ""))
        return ids.translate(source, row.replica_id)
    meant = ids.assign(
        source, row.replica_id, row.uuid, is_new=view is not None and row.replica_id not in view
    )
    if view is not None:
        view[row.replica_id] = row.uuid
    return meant


def translate_summary(summary: Summary, translations_by_segment: Mapping[int, IdTranslation]) -> Summary:
    """Return a summary whose replica ids are translated to the replicaset's ids."""
    if not any(translations_by_segment.values()):
        return summary

    def meant(position: LogPosition, replica_id: int) -> int:
        return translations_by_segment.get(position.segment, {}).get(replica_id, replica_id)

    def control(row: ControlRow) -> ControlRow:
        replica_id = None if row.replica_id is None else meant(row.position, row.replica_id)
        return replace(
            row,
            replica_id=replica_id,
            body=_translate_body(row, translations_by_segment.get(row.position.segment, {})),
        )

    waiting = tuple(
        replace(one, replica_id=meant(one.position, one.replica_id)) for one in summary.transactions.waiting
    )
    return replace(
        summary,
        runs=tuple(replace(run, replica_id=meant(run.start, run.replica_id)) for run in summary.runs),
        control=tuple(control(row) for row in summary.control),
        transactions=Transactions(waiting),
    )


def translate_vclock(vclock: Mapping[int, int], ids: IdTranslation) -> dict[int, int]:
    """Return a source's vclock with its replica ids translated to the replicaset's ids."""
    return {ids.get(replica_id, replica_id): lsn for replica_id, lsn in vclock.items()}


def _translate_body(row: ControlRow, ids: IdTranslation) -> bytes | None:
    """Translate the replica id of the transactions' owner in the body of a CONFIRM, ROLLBACK, PROMOTE or DEMOTE."""
    if row.body is None or row.type not in LIMBO_TYPES:
        return row.body
    try:
        body = unpacked(row.body)
    except TupleError:
        return row.body
    owner = body.get(BodyKey.REPLICA_ID) if isinstance(body, dict) else None
    if not isinstance(owner, int) or owner not in ids:
        return row.body
    packed: bytes = msgpack.packb(
        {**body, int(BodyKey.REPLICA_ID): ids[owner]}, unicode_errors="surrogateescape"
    )
    return packed


def settlement_in_source_ids(
    settlement: Settlement, translations_by_segment: Mapping[int, IdTranslation]
) -> Settlement:
    """Return a settlement whose low watermarks are in the replica ids of each segment's source."""
    if not any(translations_by_segment.values()):
        return settlement
    found = {}
    for (segment, meant), lsn in settlement.low_watermarks.items():
        own = replica_id_in_source(translations_by_segment.get(segment, {}), meant)
        if own is not None:
            found[segment, own] = lsn
    return replace(settlement, low_watermarks=found)


def map_entries_of_source(known: ReplicasetState, source: str) -> list[ApplierMapEntry]:
    """Return a replicaset's applier map with the replica ids of a source, in the same order."""
    ids = known.id_translations.get(source, {})
    return [
        replace(entry, local_id=own)
        for entry in known.applier_map
        if (own := replica_id_in_source(ids, entry.local_id)) is not None
    ]

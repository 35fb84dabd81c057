"""Plans how the rows of one segment become rows of `_changelog`, keyed rows and rows of `_pending`. Picklable."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.changelog.moves import BucketMoves, bucket_moves
from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.ids.members import map_entries_of_source
from pipeline.plan.ids.settle import RolledBackRows, Settlement
from pipeline.plan.ids.upgrades import Upgrade, find_upgrades
from pipeline.plan.rows.position import LogPosition, LogSegment
from pipeline.plan.spaces.meanings import NO_TABLE, History, Meaning
from schemas.errors import UnsupportedError
from schemas.space import Space
from schemas.tables import PENDING
from udfs.keys.keys import KeyPlan, key_plan
from udfs.operations.update_rules import release_text
from udfs.remap.replica_ids import IdEntry, replica_id_in_source

Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class Meanings:
    """All meanings of space ids in a batch, as arrays by the meaning's number."""

    versions: Int32s
    lineages: Int32s
    eras: Int32s
    truncations: Int32s
    """As in `pipeline.plan.spaces.meanings.Meaning`, but `truncations` counts only those within the era
    (int32[meanings])."""
    is_early: NDArray[np.bool_]
    """As in `pipeline.plan.spaces.meanings.Meaning` (bool[meanings])."""
    space_names: Sequence[str]
    """The space's name, by schema version."""
    key_plan: KeyPlan
    """The primary key, by schema version."""
    by_space: Mapping[tuple[int, int], tuple[int, tuple[Meaning, ...]]]
    """For each (replicaset id, space id), the number of its first meaning, and its meanings."""

    def of_space(self, replicaset_id: int, space_id: int) -> tuple[int, tuple[Meaning, ...]]:
        """Return the number of a space id's first meaning, and all its meanings; (`NO_TABLE`, ()) without any."""
        return self.by_space.get((replicaset_id, space_id), (NO_TABLE, ()))


def build_meanings(history: History, refused_tables: Mapping[str, str]) -> Meanings:
    """Return the meanings of a batch's history as arrays.

    Args:
        refused_tables: For each table that cannot be written, the reason. Rows of its spaces are not applied, but
            `_changelog` still has the space's name.
    """
    flat: list[tuple[int, int, int, int]] = []
    is_early: list[bool] = []
    by_space = {}
    for key, meanings in history.meanings.items():
        by_space[key] = (len(flat), meanings)
        for one in meanings:
            lineage = one.lineage
            before = 0
            if lineage != NO_TABLE:
                found = history.lineages[lineage]
                before = found.eras[one.era].truncations_before
                if found.table in refused_tables or found.base_table in refused_tables:
                    lineage = NO_TABLE
            flat.append((one.version, lineage, one.era, one.truncations - before))
            is_early.append(one.is_early)
    versions, lineages, eras, truncations = np.array(flat, np.int32).reshape(-1, 4).T.copy()
    spaces = [version.space for version in history.versions]
    return Meanings(
        *(versions, lineages, eras, truncations, np.array(is_early, np.bool_)),
        space_names=[space.name for space in spaces],
        key_plan=key_plan([_without_unsupported_key(space) for space in spaces]),
        by_space=by_space,
    )


def _without_unsupported_key(space: Space) -> Space:
    """Return a space; if its primary key is not supported, return it without the key.

    Rows of such a space are not applied, but `_changelog` has the space's name.
    """
    try:
        key_plan([space])
    except UnsupportedError:
        return replace(space, primary_key=())
    return space


@dataclass(frozen=True)
class SegmentPlan:
    """How the rows of one segment are processed."""

    epoch: int
    segment: int
    replicaset_id: int
    """The numbers of the epoch, of the segment in the batch, and of the replicaset."""
    source: str
    file: str
    is_snapshot: bool
    writer_global_id: int | None
    """Global id of the instance that wrote the log, and so its local rows."""
    low_watermarks: Mapping[int, int]
    """For each replica id (0: local), the highest lsn that was read before."""
    waits_from: LogPosition | None
    """Rows from this position on wait."""
    wait_reason: str | None
    """Why they wait."""
    rolled_back: tuple[RolledBackRows, ...]
    """In the source's replica ids."""
    applier_map: tuple[IdEntry, ...]
    """The applier map of the source: which global id the rows of a replica id have, from which lsn on."""
    meanings: Meanings
    undefined_spaces: Mapping[int, LogPosition] = field(default_factory=dict)
    """For each space id, the position from which on its rows wait for its definition."""
    is_released: bool = False
    """Whether the rows waited only for the definition of their space, and are in `_changelog` already."""
    vclock_before: Mapping[int, int] = field(default_factory=dict)
    """The vclock of the rows before the file (`LogSegment.vclock_before`)."""
    server_version: str | None = None
    """The version, such as 2.6.0, of the server that wrote the rows, for rows without a `server_version`."""
    peer_versions: Mapping[int, str] = field(default_factory=dict)
    """For a spool of several peers, the server version by replica id."""
    upgrades: tuple[Upgrade, ...] = ()
    """The positions from which on another server version wrote the rows."""
    bucket_moves: BucketMoves | None = None
    """The replicaset's vshard buckets that are being moved, if any."""
    pending_number: int = 0
    """The number of the part of `_pending` (`_pending.segment`) to which waiting rows of the segment belong."""


def segment_plans(
    plan: BatchPlan, pending_numbers: Mapping[int, int] | None = None
) -> dict[int, SegmentPlan]:
    """Return the plan of each segment of a batch, by its number.

    Args:
        pending_numbers: `SegmentPlan.pending_number` of the segments with waiting rows, by the segment's number.
    """
    pending = pending_numbers or {}
    meanings, moves = build_meanings(plan.history, plan.refused_tables), bucket_moves(plan)
    low: dict[int, dict[int, int]] = {}
    for settlement in plan.settlements.values():
        for (segment, replica_id), lsn in settlement.low_watermarks.items():
            low.setdefault(segment, {})[replica_id] = lsn
    return {
        segment.number: replace(
            _segment_plan(plan, segment, low.get(segment.number, {}), meanings, moves),
            pending_number=pending.get(segment.number, 0),
        )
        for segment in plan.segments
    }


def _segment_plan(
    plan: BatchPlan,
    segment: LogSegment,
    low_watermarks: Mapping[int, int],
    meanings: Meanings,
    moves: Mapping[int, BucketMoves],
) -> SegmentPlan:
    uuid = segment.replicaset_uuid
    one, settlement = plan.after.replicasets[uuid], plan.settlements[uuid]
    instance = segment.instance_uuid
    server = segment.server_version
    return SegmentPlan(
        epoch=plan.epoch,
        segment=segment.number,
        replicaset_id=one.id,
        source=segment.source,
        file=segment.file,
        is_snapshot=segment.is_snapshot,
        writer_global_id=None if instance is None else plan.after.global_ids[instance],
        low_watermarks=low_watermarks,
        waits_from=settlement.waits_from,
        wait_reason=settlement.wait_reason,
        rolled_back=_rolled_back_in_source_ids(settlement, one.id_translations.get(segment.source, {})),
        applier_map=tuple(
            IdEntry(e.local_id, e.since_lsn, e.global_id) for e in map_entries_of_source(one, segment.source)
        ),
        meanings=meanings,
        undefined_spaces={
            i: r[-1].begin for i, r in plan.undefined_ranges[uuid].items() if r[-1].outcome == "waiting"
        },
        is_released=segment.is_released,
        vclock_before=segment.vclock_before,
        server_version=None if server is None else release_text(server),
        upgrades=find_upgrades(segment, plan.summaries[uuid].control),
        peer_versions={origin: release_text(version) for origin, version in segment.peer_versions.items()},
        bucket_moves=moves.get(one.id),
    )


def _rolled_back_in_source_ids(settlement: Settlement, ids: Mapping[int, int]) -> tuple[RolledBackRows, ...]:
    """Return a settlement's rolled-back rows with a source's replica ids."""
    return tuple(
        replace(gone, replica_id=replica_id)
        for gone in settlement.rolled_back
        if (replica_id := replica_id_in_source(ids, gone.replica_id)) is not None
    )


EARLIER = "earlier"
"""The column of `_pending` for the vclock of the rows before the file, as JSON."""

PENDING_ARROW = to_arrow_schema(PENDING, timezone="UTC")


def pending_rows(rows: pa.RecordBatch, plan: SegmentPlan) -> pa.RecordBatch:
    """Convert waiting rows to rows of `_pending`."""
    count = rows.num_rows
    values = {
        "replicaset_id": plan.replicaset_id,
        "source": plan.source,
        "segment": plan.pending_number,
        "reason": plan.wait_reason,
        EARLIER: json.dumps(plan.vclock_before) if plan.vclock_before else None,
    }
    columns = [
        pa.repeat(pa.scalar(values[field.name], field.type), count)
        if field.name in values
        else rows.column(field.name)
        for field in PENDING_ARROW
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PENDING_ARROW)

"""Commits a batch: `_changelog` first, `_epochs` last.

`_epochs` is the commit of the batch. A writer that dies before it leaves an unfinished batch, which the next writer
rolls back when it starts (`warehouse.system_tables.epochs.roll_back`). The rows of `_schema`, `_gaps`, `_vclock`, and
those of `_quarantine` for system spaces, are made here, since only the commit knows the states before and after the
batch.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from pipeline.changelog.divergence import divergence_rows
from pipeline.commit.costs import BatchCosts, written_to_spaces
from pipeline.commit.doubled_buckets import bucket_rows, doubled_bucket_conflicts
from pipeline.commit.epoch import commit_epoch
from pipeline.compaction.after_batch import CompactionCredits, compact_after_batch
from pipeline.encode.columns import cluster_orders
from pipeline.lookup.key_search import MASKED_TABLE, SPACE_TABLE, key_search_in
from pipeline.pending.parts import PENDING
from pipeline.pending.rows import processed_rows_mask
from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.rows.summary import LOCAL_ID, ControlRow
from pipeline.plan.spaces.system_rows import SpaceChange
from pipeline.plan.state_after import with_settled_lsns
from pipeline.state import ReplicasetState, SpaceDefinition, State, TableWriters
from pipeline.work import BatchOutput, BatchWork
from pipeline.write.changes import TableWrite
from pipeline.write.moved import relocated
from pipeline.write.prepare import PreparedTables, rewrite_masked
from pipeline.write.system_rows import append_rows, write_system_rows
from schemas.errors import TableMovedError
from schemas.iproto import SystemSpace
from schemas.states import GapKind, GapState, SpaceState, refused_state
from schemas.units import size_text
from sources.xlog.directory.offset import from_text
from sources.xlog.stream.instants import instant_between
from udfs.remap.cluster_replace import OWN_REPLICASET_ID
from warehouse.delta.commits import COMMIT_ATTEMPTS, OpenTables
from warehouse.delta.data_files import DataFile
from warehouse.delta.deletion_vectors import RowNumbers
from warehouse.delta.read import newest_of_each
from warehouse.delta.table_files import TableFile, open_file
from warehouse.system_tables import schema, vclock
from warehouse.system_tables.gaps import KEY

log = logging.getLogger(__name__)

CommitFiles = Callable[
    [str, Sequence[DataFile], Sequence[TableFile], Mapping[TableFile, RowNumbers] | None], None
]
"""Commits added files, removed files and deleted rows of a table."""

CommitHook = Callable[[str], None]


@dataclass(frozen=True)
class BatchName:
    """The origin of an epoch in `_epochs`: a batch of the stream, or work outside of the stream."""

    query_id: str
    """Spark's id of the streaming query, or a text that names the work outside of the stream."""
    batch_id: int
    """Spark's number of the batch within the checkpoint."""
    offsets: tuple[str | None, str | None] = (None, None)
    """The stream's offsets before and after the batch; None for work outside of the stream."""


def instant_label(name: BatchName, after: State) -> str | None:
    """Return the label of the instant that the tables reach with a batch, None if they reach none.

    An instant is an epoch at which each replicaset has been read up to its marker row of the same label
    (`sources.xlog.stream.instants`). If rows before a marker still wait, the tables lack these rows, so the epoch is
    not an instant.
    """
    start, end = name.offsets
    found = None if start is None or end is None else instant_between(from_text(start), from_text(end))
    if found is None:
        return None
    waiting = sorted(
        u for u in found.replicaset_uuids if u in after.replicasets and after.replicasets[u].has_waiting_rows
    )
    if waiting:
        log.warning(
            "the point %r is no instant of all replicasets: rows of %s before it wait (_pending)",
            found.label,
            ", ".join(waiting),
        )
        return None
    return found.label


def commit_batch(
    tables: OpenTables,
    work: BatchWork,
    prepared: PreparedTables,
    written: BatchOutput,
    name: BatchName,
    after_commit: CommitHook,
    credits: CompactionCredits,
    closed_gaps: Sequence[Mapping[str, Any]] = (),
) -> tuple[State, BatchCosts]:
    """Commit the output of a batch; return the state after it, and what the batch has cost."""
    plan = work.plan
    after = _with_findings(_with_settled_vclocks(plan, written), work, written)
    versions: dict[str, int] = {}
    new_files: Counter[str] = Counter()
    vector_bytes, compaction_bytes = tables.vector_bytes, credits.written_to_spaces()

    def commit(
        table: str,
        added: Sequence[DataFile],
        removed: Sequence[TableFile] = (),
        deleted: Mapping[TableFile, RowNumbers] | None = None,
    ) -> None:
        if added or removed or deleted:
            versions[table] = tables.commit(table, added, [(file, True) for file in removed], deleted)
            new_files[table] += len(added)
            credits.add(table, list(added))
            after_commit(table)

    commit("_changelog", written.changelog)
    _again_if_moved(lambda: _commit_pending(tables, work, written.pending, commit))
    for one in written.tables:
        if one.schema is None:
            _commit_table(tables, work, one, commit)
        else:
            versions[one.table] = tables.replace(one.table, one.added, one.schema)
            after_commit(one.table)
    for encoding in work.partition_plan.encodings:
        if encoding.name in prepared.masked_to_rewrite:
            versions[encoding.name] = rewrite_masked(tables, encoding)
    commit("_versions", written.versions)
    commit("_conflicts", written.conflicts)
    commit("_quarantine", written.quarantine)
    records: dict[str, list[Any]] = {
        "_quarantine": malformed_rows(plan),
        "_schema": schema.rows_of(schema_versions(plan, after), plan.epoch),
        "_gaps": [
            *divergence_rows(written.divergences, plan.epoch),
            *_all_gap_rows(tables, plan, after),
            *closed_gaps,
        ],
        "_vclock": [asdict(component) for component in vclock_components(plan, after)],
        "_vshard": bucket_rows(plan.before, after, plan.epoch),
        "_conflicts": doubled_bucket_conflicts(tables, plan.before, after, plan.epoch),
    }
    for table, rows in records.items():
        if rows:
            versions[table] = append_rows(tables, table, rows)
            after_commit(table)
    names = {name for one in work.partition_plan.encodings for name in (one.exact_table, one.name)}
    for table in (names | prepared.committed) - versions.keys():
        if table not in plan.before.versions or table in prepared.committed:
            versions[table] = tables.version(table)
    orders = cluster_orders(work.partition_plan.encodings)
    versions |= compact_after_batch(tables, versions, new_files, credits, orders)
    offsets = name.offsets
    query, label = (name.query_id, name.batch_id), instant_label(name, after)
    state = commit_epoch(tables, after, versions, query, offsets, plan.row_count, label, written.executor)
    after_commit("_epochs")
    own_bytes, data_bytes = written_to_spaces(written.tables)
    return state, BatchCosts(
        epoch=state.epoch,
        changed_bytes=own_bytes,
        data_bytes=data_bytes,
        vector_bytes=tables.vector_bytes - vector_bytes,
        compaction_bytes=credits.written_to_spaces() - compaction_bytes,
        copies=written.copies,
        debts=dict(credits.debts),
    )


def _again_if_moved(work: Callable[[], None]) -> None:
    """Do something again if somebody else has moved the rows of a table meanwhile."""
    for _ in range(COMMIT_ATTEMPTS - 1):
        try:
            work()
        except TableMovedError as error:
            log.info("%s; the writer looks again", error)
        else:
            return
    work()


def _commit_table(tables: OpenTables, work: BatchWork, write: TableWrite, commit: CommitFiles) -> None:
    """Commit the changes of a space's table, and follow its rows if somebody else moves them meanwhile."""
    exact = {one.exact_table for one in work.partition_plan.encodings}
    search, rule = key_search_in(work.copy_folder), work.vector_rule(write.table)
    copied = SPACE_TABLE if write.table in exact else MASKED_TABLE
    if write.deleted and not rule.is_enabled:
        log.warning(
            "%s has deletion vectors from now on: a batch would write %s of its old rows again "
            "(docs/readers.md says which readers know them)",
            write.table,
            size_text(sum(file.size for file in write.deleted)),
        )
    current = write

    def follow_and_commit() -> None:
        nonlocal current
        try:
            commit(current.table, current.added, current.removed, current.deleted)
        except TableMovedError:
            files = tables.files(current.table)
            current = relocated(work.location, current, files, rule, search, copied)
            raise

    _again_if_moved(follow_and_commit)


def _with_settled_vclocks(plan: BatchPlan, written: BatchOutput) -> State:
    """Return the planned state after the batch, with the settled vclock of each replicaset that has waiting rows.

    The plan cannot know this vclock: which rows wait, in `_pending`, is known only after all rows were written.
    """
    found: dict[str, dict[tuple[str | None, int], int]] = {}
    for segment in plan.segments:
        for origin, lsn in written.settled.get(segment.number, {}).items():
            own = found.setdefault(segment.replicaset_uuid, {})
            name = segment.instance_uuid if origin == LOCAL_ID else segment.source
            own[name, origin] = max(own.get((name, origin), 0), lsn)
    changed = {
        uuid: with_settled_lsns(plan.after.replicasets[uuid], found.get(uuid, {}))
        for uuid, settlement in plan.settlements.items()
        if settlement.waits_from is not None
    }
    return plan.after.with_replicasets(changed)


def _with_findings(state: State, work: BatchWork, written: BatchOutput) -> State:
    writers = dict(state.writers)
    for number, name in enumerate(work.partition_plan.reduce.tables):
        own = frozenset(replicaset for table, replicaset in written.writers if table == number)
        unfit = number in written.unfit_tables
        if own or unfit:
            before = writers.get(name, TableWriters())
            writers[name] = TableWriters(before.replicasets | own, before.has_unfit or unfit)
    lossy = {one.replicaset_id for one in written.divergences}
    replicasets = {
        uuid: replace(one, has_loss=True) for uuid, one in state.replicasets.items() if one.id in lossy
    }
    for segment in work.plan.segments:
        waiting = written.unknown_spaces.get(segment.number)
        if waiting:
            uuid = segment.replicaset_uuid
            one = replicasets.get(uuid, state.replicasets[uuid])
            replicasets[uuid] = replace(one, unknown_spaces=one.unknown_spaces | waiting)
    return replace(
        state.with_replicasets(replicasets),
        epoch=work.plan.before.epoch,
        versions=work.plan.before.versions,
        writers=writers,
    )


def _commit_pending(
    tables: OpenTables,
    work: BatchWork,
    added: Sequence[DataFile],
    commit: CommitFiles,
) -> None:
    plan = work.plan
    before = plan.before.replicasets
    ended = {
        (before[uuid].id, space_id)
        for uuid, space_id in plan.previously_unknown_spaces(("applied", "ended"))
        if uuid in before and space_id in before[uuid].unknown_spaces
    }
    parts = [(one.part.replicaset_id, one.part.number) for one in work.pending if one.part is not None]
    if not ended and not parts:
        commit(PENDING, added, (), None)
        return
    rest: list[DataFile] = []
    removed: list[TableFile] = []
    for file in tables.files(PENDING):
        with open_file(tables.location, PENDING, file) as opened:
            own = processed_rows_mask(
                opened.read(["replicaset_id", "segment", "space_id", "reason"]), parts, ended
            )
            if not pc.any(own).as_py():
                continue
            others = opened.read().filter(pc.invert(own))
        removed.append(file)
        if others.num_rows:
            rest.append(write_system_rows(tables.location, PENDING, others, is_new_data=False))
    commit(PENDING, [*added, *rest], removed, None)


def _all_gap_rows(tables: OpenTables, plan: BatchPlan, after: State) -> list[dict[str, Any]]:
    ids, found = replicasets_done_waiting(plan, after), gap_rows(plan)
    named = {tuple(row[name] for name in KEY) for row in found}
    known = newest_of_each(tables.open("_gaps"), KEY) if ids else []
    closed = [row for row in known if tuple(row[name] for name in KEY) not in named]
    return [*found, *filled_gap_rows(closed, ids, plan.epoch)]


def schema_versions(plan: BatchPlan, after: State) -> list[schema.SpaceVersion]:
    """Return the rows of `_schema` for spaces that a batch changed, moved to another table, or refused."""
    found = []
    for uuid, control in plan.controls.items():
        now, old = after.replicasets[uuid], plan.before.replicasets.get(uuid)
        changes = {change.space_id: change for change in control.changes}
        known = ReplicasetState(0, uuid) if old is None else old
        other = {i for i, reason in now.refused.items() if known.refused.get(i) != reason}
        other |= {i for i, table in now.tables.items() if known.tables.get(i, table) != table}
        for space_id in sorted(set(changes) | other):
            found.append(space_version(now, space_id, changes.get(space_id)))
        found += _described_versions(known, now, set(changes))
    return found


def _described_versions(
    before: ReplicasetState, now: ReplicasetState, changed: Collection[int]
) -> list[schema.SpaceVersion]:
    """Return the versions of spaces that a batch has described, or that are not described any more."""
    described = {i: one for i, one in now.described_spaces.items() if before.described_spaces.get(i) != one}
    gone = before.described_spaces.keys() - now.described_spaces.keys() - now.spaces.keys() - set(changed)
    states = [(one, SpaceState.DESCRIBED) for one in described.values()]
    states += [(before.described_spaces[i], SpaceState.DROPPED) for i in gone]
    return [
        schema.SpaceVersion(now.id, SpaceDefinition(one).decoded(), None, state, None, None, one, {})
        for one, state in states
    ]


def space_version(
    now: ReplicasetState, space_id: int, change: SpaceChange | None = None
) -> schema.SpaceVersion:
    """Return the present version of a space, for `_schema`; `change` is the last change of it in a batch."""
    rows = now.spaces.get(space_id) or (change.definition if change is not None else None)
    if rows is None:
        raise KeyError(space_id)
    state: str = SpaceState.PRESENT if space_id in now.spaces else SpaceState.DROPPED
    if space_id in now.refused and state == SpaceState.PRESENT:
        state = refused_state(now.refused[space_id])
    return schema.SpaceVersion(
        now.id,
        rows.decoded(),
        now.tables.get(space_id),
        state,
        change.replica_id if change is not None else None,
        change.lsn if change is not None else None,
        rows.space,
        rows.indexes,
        now.primary_keys.get(space_id, frozenset()),
        now.applied_definitions.get(space_id),
    )


def malformed_rows(plan: BatchPlan) -> list[dict[str, Any]]:
    """Return rows of `_quarantine` for malformed rows of system spaces."""
    segments = {segment.number: segment for segment in plan.segments}
    return [
        {
            "epoch": plan.epoch,
            "replicaset_id": plan.after.replicasets[uuid].id,
            "space": f"_{SystemSpace(fault.row.space_id or 0).name.lower()}",
            "key": fault.row.key,
            "tuple": fault.row.tuple,
            "operations": fault.row.operations,
            "global_id": _global_id_of_row(plan, uuid, fault.row),
            "lsn": fault.row.lsn,
            "file": segments[fault.row.position.segment].file,
            "position": fault.row.position.position,
            "reason": fault.reason,
        }
        for uuid, control in plan.controls.items()
        for fault in control.faults
    ]


def _global_id_of_row(plan: BatchPlan, uuid: str, row: ControlRow) -> int | None:
    if row.replica_id is None or row.lsn is None:
        return None
    return _global_id(plan.after.replicasets[uuid], row.replica_id, row.lsn)


def gap_rows(plan: BatchPlan) -> list[dict[str, Any]]:
    """Return rows of `_gaps` for lsns that are missing in the logs of the batch."""
    segments = {segment.number: segment for segment in plan.segments}
    found = []
    for uuid, settlement in plan.settlements.items():
        for gap in (*settlement.gaps, *settlement.bridged_gaps):
            state = GapState.SKIPPED if gap in settlement.skipped_gaps else GapState.OPEN
            segment = segments[gap.position.segment]
            found.append(
                {
                    "epoch": plan.epoch,
                    "found_at": datetime.now(UTC),
                    "replicaset_id": plan.after.replicasets[uuid].id,
                    "source": segment.source,
                    "local_id": gap.replica_id,
                    "first_lsn": gap.first_lsn,
                    "last_lsn": gap.last_lsn,
                    "kind": GapKind.MISSING,
                    "file": segment.file,
                    "state": GapState.BRIDGED if gap in settlement.bridged_gaps else state,
                }
            )
    return found


def replicasets_done_waiting(plan: BatchPlan, after: State) -> frozenset[int]:
    """Return the ids of replicasets that had waiting rows before the batch, and have none after it."""
    before = plan.before.replicasets
    return frozenset(
        before[uuid].id
        for uuid in plan.settlements
        if uuid in before and before[uuid].has_waiting_rows and not after.replicasets[uuid].has_waiting_rows
    )


def filled_gap_rows(
    gaps: Iterable[Mapping[str, Any]], replicaset_ids: frozenset[int], epoch: int
) -> list[dict[str, Any]]:
    """Return rows of `_gaps` that give the open gaps of some replicasets the state `filled`."""
    now = {"epoch": epoch, "found_at": datetime.now(UTC), "state": GapState.FILLED}
    own = [row for row in gaps if row["kind"] == GapKind.MISSING and row["replicaset_id"] in replicaset_ids]
    return [{**row, **now} for row in own if row["state"] == GapState.OPEN]


def vclock_components(plan: BatchPlan, after: State) -> list[vclock.VclockComponent]:
    """Return the components of settled vclocks that the batch has changed, as rows of `_vclock`."""
    before, found = plan.before, []
    for uuid in plan.settlements:
        now, old = after.replicasets[uuid], before.replicasets.get(uuid)
        known = ReplicasetState(0, uuid) if old is None else old
        for replica_id, lsn in now.settled.items():
            counts_apart = replica_id == LOCAL_ID and now.leader is not None
            if not counts_apart and known.settled.get(replica_id) != lsn:
                before_lsn = known.settled.get(replica_id, 0)
                for global_id, last in _last_lsns(now, replica_id, before_lsn, lsn):
                    found.append(vclock.VclockComponent(now.id, global_id, replica_id, last, plan.epoch))
        for instance, lsn in now.local_lsns.items():
            if known.local_lsns.get(instance) != lsn:
                global_id = after.global_ids.get(instance)
                found.append(vclock.VclockComponent(now.id, global_id, LOCAL_ID, lsn, plan.epoch))
    if after.aggregator_lsn != before.aggregator_lsn:
        found.append(
            vclock.VclockComponent(
                OWN_REPLICASET_ID, after.aggregator_id, None, after.aggregator_lsn, plan.epoch
            )
        )
    return found


def _last_lsns(
    now: ReplicasetState, replica_id: int, before_lsn: int, lsn: int
) -> Iterator[tuple[int | None, int]]:
    """Yield (global id, last lsn) of each instance that had a replica id after lsn `before_lsn`, up to `lsn`."""
    starts = [e.since_lsn for e in now.applier_map if e.local_id == replica_id and e.since_lsn <= lsn][1:]
    for last in (*(start - 1 for start in starts if start - 1 > before_lsn), lsn):
        yield _global_id(now, replica_id, last), last


def _global_id(now: ReplicasetState, replica_id: int, lsn: int) -> int | None:
    ids = [e for e in now.applier_map if e.local_id == replica_id]
    # Lsns before the first entry of the applier map belong to its instance, too.
    found = [e.global_id for e in ids if e.since_lsn <= lsn] or [e.global_id for e in ids[:1]]
    return found[-1] if found else None

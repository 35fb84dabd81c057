"""Commits a batch: `_changelog` first, `_epochs` last.

`_epochs` is the commit of the batch. A writer that dies before it leaves an unfinished batch, which the next writer
rolls back when it starts (`warehouse.epochs.roll_back`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow.compute as pc

from pipeline.changelog.divergence import divergence_rows
from pipeline.commit.compact import is_join_due, join_small_files
from pipeline.commit.epoch import LOW_CARDINALITY, append_rows, commit_epoch
from pipeline.commit.records import (
    filled_rows,
    gap_rows,
    malformed_rows,
    released_replicasets,
    schema_versions,
    vclock_components,
)
from pipeline.commit.vshard import bucket_rows, doubled_rows
from pipeline.executors.work import BatchOutput, BatchWork
from pipeline.plan.advance import with_settled_lsns
from pipeline.plan.plan import BatchPlan
from pipeline.plan.summary import LOCAL_ID
from pipeline.state import State, TableWriters
from pipeline.waiting import PENDING, finished_mask
from pipeline.write.prepare import Prepared, rewrite_masked
from schemas.tables import SYSTEM_TABLES
from sources.xlog.directory.offset import from_text
from sources.xlog.stream.instants import instant_between
from warehouse import schema
from warehouse.commits import OpenTables, TableFile
from warehouse.data_files import DataFile, opened, write_file
from warehouse.gaps import KEY
from warehouse.read import newest_of_each

log = logging.getLogger(__name__)

Reached = Callable[[str], None]
"""Called with the name of a table after its commit."""


@dataclass(frozen=True)
class BatchName:
    """The name of a batch in `_epochs`.

    Parameters
    ----------
    query_id : str
    batch_id : int
        Spark's number of the batch within the checkpoint.
    offsets : (str or None, str or None)
        The stream's offsets before and after the batch; None for work outside of the stream.

    """

    query_id: str
    batch_id: int
    offsets: tuple[str | None, str | None] = (None, None)


def instant_label(name: BatchName, after: State) -> str | None:
    """Return the label of the instant that the tables reach with a batch, None if they reach none.

    If rows before a point wait, the tables lack them, so the point is not an instant.
    """
    start, end = name.offsets
    found = None if start is None or end is None else instant_between(from_text(start), from_text(end))
    if found is None:
        return None
    waiting = sorted(
        u for u in found.replicasets if u in after.replicasets and after.replicasets[u].has_waiting_rows
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
    prepared: Prepared,
    written: BatchOutput,
    name: BatchName,
    reached: Reached,
    closed: Sequence[Mapping[str, Any]] = (),
) -> State:
    """Commit the output of a batch, and return the state after it.

    Parameters
    ----------
    tables : OpenTables
    work : BatchWork
    prepared : Prepared
    written : BatchOutput
    name : BatchName
    reached : callable
    closed : sequence of mapping
        Rows of `_gaps` that the batch closes.

    """
    plan = work.plan
    after = _with_written(_with_settled(plan, written), work, written)
    versions: dict[str, int] = {}
    new_files: Counter[str] = Counter()

    def commit(table: str, added: Sequence[DataFile], removed: Sequence[TableFile] = ()) -> None:
        if added or removed:
            if added and table in SYSTEM_TABLES:
                # A table of an earlier release may lack columns.
                tables.add_columns(table, SYSTEM_TABLES[table])
            versions[table] = tables.commit(table, added, [(file, True) for file in removed])
            new_files[table] += len(added)
            reached(table)

    commit("_changelog", written.changelog)
    _commit_pending(tables, plan, written.pending, commit)
    for one in written.tables:
        if one.schema is None:
            commit(one.table, one.added, one.removed)
        else:
            versions[one.table] = tables.replace(one.table, one.added, one.schema)
            reached(one.table)
    for encoding in work.bucket_plan.encodings:
        if encoding.name in prepared.masked:
            versions[encoding.name] = rewrite_masked(tables, encoding)
    commit("_versions", written.versions)
    commit("_conflicts", written.conflicts)
    commit("_quarantine", written.quarantine)
    records: dict[str, list[Any]] = {
        "_quarantine": malformed_rows(plan),
        "_schema": schema.rows_of(schema_versions(plan, after), plan.epoch),
        "_gaps": [*divergence_rows(written.divergences, plan.epoch), *_gaps(tables, plan, after), *closed],
        "_vclock": [asdict(component) for component in vclock_components(plan, after)],
        "_vshard": bucket_rows(plan.before, after, plan.epoch),
        "_conflicts": doubled_rows(tables, plan.before, after, plan.epoch),
    }
    for table, rows in records.items():
        if rows:
            versions[table] = append_rows(tables, table, rows)
            reached(table)
    names = {name for one in work.bucket_plan.encodings for name in (one.exact, one.name)}
    for table in (names | prepared.changed) - versions.keys():
        if table not in plan.before.versions or table in prepared.changed:
            versions[table] = tables.version(table)
    versions |= _join_small_files(tables, versions, new_files)
    offsets = name.offsets
    query, label = (name.query_id, name.batch_id), instant_label(name, after)
    state = commit_epoch(tables, after, versions, query, offsets, plan.row_count, label)
    reached("_epochs")
    return state


def _with_settled(plan: BatchPlan, written: BatchOutput) -> State:
    """Return the state after the batch; where rows wait, its vclocks end with the rows that were written."""
    found: dict[str, dict[tuple[str | None, int], int]] = {}
    for segment in plan.segments:
        for origin, lsn in written.settled.get(segment.segment, {}).items():
            own = found.setdefault(segment.replicaset_uuid, {})
            name = segment.instance_uuid if origin == LOCAL_ID else segment.source
            own[name, origin] = max(own.get((name, origin), 0), lsn)
    changed = {
        uuid: with_settled_lsns(plan.after.replicasets[uuid], found.get(uuid, {}))
        for uuid, settlement in plan.settlements.items()
        if settlement.waits_from is not None
    }
    return plan.after.with_replicasets(changed)


def _with_written(state: State, work: BatchWork, written: BatchOutput) -> State:
    """Return the state with what was found while rows were written: writers, divergences, unknown spaces."""
    writers = dict(state.writers)
    for number, name in enumerate(work.bucket_plan.reduce.tables):
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
        waiting = written.unknown_spaces.get(segment.segment)
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
    plan: BatchPlan,
    added: Sequence[DataFile],
    commit: Callable[[str, Sequence[DataFile], Sequence[TableFile]], None],
) -> None:
    """Replace the rows of `_pending` that the batch read by the rows that wait now."""
    before = plan.before.replicasets
    ended = {
        (before[uuid].id, space_id)
        for uuid, space_id in plan.previously_unknown(("applied", "ended"))
        if uuid in before and space_id in before[uuid].unknown_spaces
    }
    if not ended and not any(uuid in before and before[uuid].has_waiting_rows for uuid in plan.settlements):
        commit(PENDING, added, ())
        return
    ids = [plan.after.replicasets[uuid].id for uuid in plan.settlements]
    rest: list[DataFile] = []
    removed: list[TableFile] = []
    for file in tables.files(PENDING):
        with opened(tables.place, PENDING, file.path) as parquet:
            named = parquet.read(columns=["replicaset_id", "space_id", "reason"])
            own = finished_mask(named, ids, ended)
            if not pc.any(own).as_py():
                continue
            others = parquet.read().filter(pc.invert(own))
        removed.append(file)
        if others.num_rows:
            dictionary = LOW_CARDINALITY[PENDING]
            rest.append(write_file(tables.place, PENDING, others, dictionary=dictionary, is_new_data=False))
    commit(PENDING, [*added, *rest], removed)


def _gaps(tables: OpenTables, plan: BatchPlan, after: State) -> list[dict[str, Any]]:
    ids, found = released_replicasets(plan, after), gap_rows(plan)
    named = {tuple(row[name] for name in KEY) for row in found}
    known = newest_of_each(tables.open("_gaps"), KEY) if ids else []
    closed = [row for row in known if tuple(row[name] for name in KEY) not in named]
    return [*found, *filled_rows(closed, ids, plan.epoch)]


def _join_small_files(
    tables: OpenTables, versions: Mapping[str, int], added: Mapping[str, int]
) -> dict[str, int]:
    """Join small files of tables that have many, and return the new versions of these tables."""
    due = [name for name, version in versions.items() if is_join_due(version, added.get(name, 0))]
    found = {name: join_small_files(tables, name) for name in sorted(due)}
    return {name: version for name, version in found.items() if version != versions[name]}

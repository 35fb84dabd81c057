"""Divides the rows of a segment into rows of `_changelog`, keyed rows, waiting rows, and rows that were read before.

Pure: Arrow in, Arrow out, without Python code per row. `_changelog` gets every settled row once, with its global id,
its state and its space; rows that change tuples also go to the reduction, with their canonical key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.changelog.cluster_rows import registrations_as_nops
from pipeline.changelog.divergence import LSN_HASHES
from pipeline.changelog.keyed_rows import ACTIONS, KEY_ERRORS, KEYED, SERVER_VERSION, keyed_rows_of
from pipeline.changelog.moves import bucket_events_before, moved_column
from pipeline.changelog.segment_plan import SegmentPlan, pending_rows
from pipeline.plan.rows.position import BEGINNING, first_row_index
from pipeline.plan.rows.summary import LIMBO_TYPES, LOCAL_ID
from pipeline.plan.spaces.meanings import NO_TABLE
from pipeline.plan.spaces.undefined import missing_definition_reason
from schemas.iproto import GROUP_LOCAL, SYSTEM_SPACE_ID_MAX, SystemSpace
from schemas.row_types import CHANGE_TYPES, RowAction
from schemas.states import RowState
from schemas.tables import CHANGELOG
from udfs.keys.row_hash import row_hashes
from udfs.remap.replica_ids import UNKNOWN_INSTANCE, remap_rows

CHANGELOG_ARROW = to_arrow_schema(CHANGELOG, timezone="UTC")

GLOBAL_ID = "global_id"
"""The column with the global id of each row by the applier map of its segment; `UNKNOWN_INSTANCE` if it has none."""

_LIMBO_ROW_TYPES = pa.array(LIMBO_TYPES)

Flags = NDArray[np.bool_]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class SegmentRows:
    """Consecutive rows of a segment, divided by what happens to them."""

    changelog: pa.RecordBatch
    """The rows of `_changelog` (`CHANGELOG_ARROW`)."""
    keyed: pa.RecordBatch
    """The rows that change tuples (`KEYED`)."""
    key_errors: pa.RecordBatch
    """Errors of rows whose key cannot be computed (`KEY_ERRORS`)."""
    pending: pa.RecordBatch | None
    """The waiting rows (`PENDING_ARROW`); None if no row waits."""
    read_before: pa.RecordBatch | None
    """`LSN_HASHES` of rows of registered instances that were read before; None if there are none."""
    settled_lsns: Mapping[int, int]
    """For each replica id (0: local), the highest lsn in `changelog`."""
    undefined_spaces: frozenset[int] = frozenset()
    """Ids of spaces whose rows wait for their definition."""


def segment_rows(rows: pa.RecordBatch, plan: SegmentPlan) -> SegmentRows:
    """Divide rows of a segment by what happens to them."""
    numbers = _RowNumbers.of(rows)
    rows = _with_server_versions(rows, plan)
    if plan.is_released:
        return _released_rows(rows, numbers, plan)
    fresh = numbers.is_snapshot | (numbers.lsn < 0) | (numbers.lsn > _low_watermarks(numbers, plan))
    first_waiting = numbers.row_count
    if plan.waits_from is not None:
        first_waiting = first_row_index(plan.waits_from, plan.segment, numbers.position, numbers.row)
    index = np.arange(numbers.row_count)
    waits = fresh & (index >= first_waiting)
    repeated = ~fresh & (numbers.replica_id > 0)
    read_before = None
    if repeated.any():
        old = rows.filter(pa.array(repeated))
        columns = [old.column("replica_id"), old.column("lsn"), row_hashes(old)]
        read_before = pa.RecordBatch.from_arrays(columns, schema=LSN_HASHES)
    waiting = [pending_rows(rows.filter(pa.array(waits)), plan)] if waits.any() else []
    settled_now = fresh & (index < first_waiting)
    if not settled_now.all():
        rows = rows.filter(pa.array(settled_now))
        numbers = _RowNumbers.of(rows)
    changelog, keyed, errors = _settled_rows(rows, numbers, plan)
    unknown = _rows_of_unknown_spaces(rows, numbers, plan) if plan.undefined_spaces else {}
    waiting += unknown.values()
    return SegmentRows(
        changelog,
        keyed,
        errors,
        pa.concat_batches(waiting) if waiting else None,
        read_before,
        {} if plan.is_snapshot else _highest_lsns(numbers),
        frozenset(unknown),
    )


def _released_rows(rows: pa.RecordBatch, numbers: _RowNumbers, plan: SegmentPlan) -> SegmentRows:
    """Return rows that waited for the definition of their space as keyed rows; `_changelog` has them already."""
    _, keyed, errors = _settled_rows(rows, numbers, plan)
    return SegmentRows(_empty_batch(CHANGELOG_ARROW), keyed, errors, None, None, {})


def _rows_of_unknown_spaces(
    rows: pa.RecordBatch, numbers: _RowNumbers, plan: SegmentPlan
) -> dict[int, pa.RecordBatch]:
    """Return the settled rows that wait for the definition of their space, as rows of `_pending`, by space id."""
    changes = (_change_types(rows) >= 0) & ~numbers.is_local & ~_is_rolled_back(rows, numbers, plan)
    found = {}
    for space_id, begin in plan.undefined_spaces.items():
        own = changes & (numbers.space_id == space_id)
        if begin != BEGINNING:
            own[: first_row_index(begin, plan.segment, numbers.position, numbers.row)] = False
        if own.any():
            waiting = replace(plan, wait_reason=missing_definition_reason(space_id))
            found[space_id] = pending_rows(rows.filter(pa.array(own)), waiting)
    return found


@dataclass(frozen=True)
class _RowNumbers:
    """Numeric columns of rows; nulls are -1, but `replica_id` is 0 for rows without one, such as local rows."""

    position: Int64s
    row: Int64s
    replica_id: Int32s
    lsn: Int64s
    tsn: Int64s
    space_id: Int32s
    is_local: Flags
    is_snapshot: Flags

    @property
    def row_count(self) -> int:
        return len(self.lsn)

    @staticmethod
    def of(rows: pa.RecordBatch) -> _RowNumbers:
        is_local = _int64_column(rows, "group_id") == GROUP_LOCAL
        replica_id = _int64_column(rows, "replica_id").astype(np.int32)
        is_snapshot = (replica_id < 0) & ~is_local
        return _RowNumbers(
            _int64_column(rows, "position"),
            _int64_column(rows, "row"),
            np.where(replica_id < 0, np.int32(LOCAL_ID), replica_id),
            _int64_column(rows, "lsn"),
            _int64_column(rows, "tsn"),
            _int64_column(rows, "space_id").astype(np.int32),
            is_local,
            is_snapshot,
        )


def _int64_column(rows: pa.RecordBatch, name: str) -> Int64s:
    column = rows.column(name)
    if column.null_count == len(column):
        return np.full(len(column), -1, np.int64)
    if column.null_count:
        column = pc.fill_null(column, -1)
    found: Int64s = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return found


def _low_watermarks(numbers: _RowNumbers, plan: SegmentPlan) -> Int64s:
    """Return the low watermark of each row's replica id; -1 if nothing of it was read before."""
    low = np.full(int(numbers.replica_id.max(initial=0)) + 1, -1, np.int64)
    for replica_id, lsn in plan.low_watermarks.items():
        if replica_id < len(low):
            low[replica_id] = lsn
    found: Int64s = low[numbers.replica_id]
    return found


def _highest_lsns(numbers: _RowNumbers) -> dict[int, int]:
    """Return the highest lsn of each replica id; rows of snapshots do not count."""
    named = (numbers.lsn >= 0) & ~numbers.is_snapshot
    found = {}
    for origin in np.unique(numbers.replica_id[named]):
        found[int(origin)] = int(numbers.lsn[named & (numbers.replica_id == origin)].max())
    return found


def _settled_rows(
    rows: pa.RecordBatch, numbers: _RowNumbers, plan: SegmentPlan
) -> tuple[pa.RecordBatch, pa.RecordBatch, pa.RecordBatch]:
    """Convert settled rows to rows of `_changelog`, keyed rows, and the errors of rows without a key."""
    rolled_back = _is_rolled_back(rows, numbers, plan)
    if GLOBAL_ID in rows.schema.names:
        global_ids = rows.column(GLOBAL_ID).to_numpy()
    else:
        global_ids = remap_rows(numbers.replica_id, numbers.lsn, plan.applier_map)
    if numbers.is_local.any():
        own = UNKNOWN_INSTANCE if plan.writer_global_id is None else plan.writer_global_id
        global_ids = np.where(numbers.is_local, own, global_ids)
    ids = pa.array(global_ids, pa.int64(), mask=global_ids == UNKNOWN_INSTANCE)
    types = _change_types(rows)
    # A row of an unknown type goes to no table, but `_changelog` still has the name of its space.
    is_change = types >= 0
    named = (is_change | (numbers.space_id > SYSTEM_SPACE_ID_MAX)) & ~numbers.is_local & ~rolled_back
    meaning = meanings_of_rows(numbers.space_id, numbers.position, numbers.row, named, plan)
    versions = _values_of_meanings(plan.meanings.versions, meaning)
    names = versions
    if plan.meanings.is_early.any():
        # A row before the definition of its space has no name in `_changelog`, whether or not the definition comes in
        # the same batch.
        is_early = (meaning != NO_TABLE) & plan.meanings.is_early[meaning]
        names = np.where(is_early, np.int32(NO_TABLE), versions)
    events = bucket_events_before(plan.bucket_moves, plan.segment, numbers.position, numbers.row)
    is_put = is_change & (ACTIONS[types] == RowAction.PUT) & ~numbers.is_snapshot
    moved = pa.nulls(rows.num_rows, pa.string())
    if plan.bucket_moves is not None:
        moved = moved_column(rows.column("tuple"), versions, events, is_put, plan.bucket_moves)
    changelog = _changelog_rows(rows, numbers, plan, ids, rolled_back, names, moved)
    lineages = _values_of_meanings(plan.meanings.lineages, meaning)
    applied = (lineages != NO_TABLE) & is_change
    if not applied.any():
        return changelog, _empty_batch(KEYED), _empty_batch(KEY_ERRORS)
    if not applied.all():
        mask = pa.array(applied)
        rows, ids = rows.filter(mask), ids.filter(mask)
        types, meaning, versions = types[applied], meaning[applied], versions[applied]
        events = events[applied]
    return changelog, *keyed_rows_of(rows, types, meaning, versions, ids, plan, events)


def _with_server_versions(rows: pa.RecordBatch, plan: SegmentPlan) -> pa.RecordBatch:
    """Return rows with the column `server_version`.

    Rows from `_pending` and `_changelog` have this column; only its nulls are filled. A row of a file gets the version
    of the file's header, or a newer one (`pipeline.plan.ids.upgrades`). A spool of several peers names the version of
    each peer.
    """
    server = pa.scalar(plan.server_version, pa.string())
    if SERVER_VERSION not in rows.schema.names:
        return rows.append_column(SERVER_VERSION, _versions_in_file(rows, server, plan))
    stored = rows.column(SERVER_VERSION)
    if plan.server_version is None or not stored.null_count:
        return rows
    index = rows.schema.get_field_index(SERVER_VERSION)
    return rows.set_column(index, SERVER_VERSION, pc.fill_null(stored, server))


def _versions_in_file(rows: pa.RecordBatch, server: pa.Scalar, plan: SegmentPlan) -> pa.Array:
    if plan.upgrades:
        positions, numbers = (
            rows.column(name).to_numpy(zero_copy_only=False).astype(np.int64) for name in ("position", "row")
        )
        starts = [
            first_row_index(position, plan.segment, positions, numbers) for position, _ in plan.upgrades
        ]
        counts = np.diff([0, *starts, rows.num_rows])
        versions = pa.array([plan.server_version, *(version for _, version in plan.upgrades)], pa.string())
        return versions.take(pa.array(np.repeat(np.arange(len(versions)), counts)))
    if not plan.peer_versions:
        return pa.repeat(server, rows.num_rows)
    ids = pa.array(list(plan.peer_versions), pa.int32())
    found = pa.array(list(plan.peer_versions.values()), pa.string()).take(
        pc.index_in(rows.column("replica_id"), value_set=ids)
    )
    return found if plan.server_version is None else pc.fill_null(found, server)


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _values_of_meanings(values: Int32s, meaning: Int32s) -> Int32s:
    """Return for each row the value at its meaning's number in `values`; `NO_TABLE` for a row without a meaning."""
    if not len(values):
        return np.full(len(meaning), NO_TABLE, np.int32)
    return np.where(meaning == NO_TABLE, NO_TABLE, values[meaning])


def _change_types(rows: pa.RecordBatch) -> NDArray[np.int8]:
    """Return the index in `CHANGE_TYPES` of each row's type, -1 for another type."""
    kinds = rows.column("type").dictionary_encode()
    codes = [
        CHANGE_TYPES.index(name) if name in CHANGE_TYPES else -1 for name in kinds.dictionary.to_pylist()
    ]
    indices = kinds.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
    found: NDArray[np.int8] = np.array([*codes, -1], np.int8)[indices]
    return found


def _is_rolled_back(rows: pa.RecordBatch, numbers: _RowNumbers, plan: SegmentPlan) -> Flags:
    result = np.zeros(numbers.row_count, np.bool_)
    for gone in plan.rolled_back:
        since = first_row_index(gone.since, plan.segment, numbers.position, numbers.row)
        until = first_row_index(gone.until, plan.segment, numbers.position, numbers.row)
        own = slice(since, until)
        result[own] |= (numbers.replica_id[own] == gone.replica_id) & (numbers.tsn[own] >= gone.first_tsn)
    if result.any():
        # Rows that settle transactions, and local rows, are not part of the rolled-back transactions.
        result &= ~pc.is_in(rows.column("type"), _LIMBO_ROW_TYPES).to_numpy(zero_copy_only=False)
        result &= ~numbers.is_local
    return result


def meanings_of_rows(
    space_ids: Int32s, positions: Int64s, rows: Int64s, has_meaning: Flags, plan: SegmentPlan
) -> Int32s:
    """Return the number of each row's meaning, `NO_TABLE` for a row without one.

    Args:
        positions, rows: The byte position of each row's block, and its index in the block (int64[n]).
    """
    result = np.full(len(space_ids), NO_TABLE, np.int32)
    about = np.flatnonzero(has_meaning)
    if not len(about):
        return result
    ids, indices = np.unique(space_ids[about], return_inverse=True)
    whole = np.full(len(ids), NO_TABLE, np.int32)
    divided: list[tuple[int, Int32s, Int64s]] = []
    for number, space_id in enumerate(ids):
        first, meanings = plan.meanings.of_space(plan.replicaset_id, int(space_id))
        begins = [
            0 if one.since == BEGINNING else first_row_index(one.since, plan.segment, positions, rows)
            for one in meanings
        ]
        within = sum(begin == 0 for begin in begins)
        if within:
            whole[number] = first + within - 1
        later = [(begin, first + i) for i, begin in enumerate(begins) if 0 < begin < len(space_ids)]
        if later:
            starts = np.array([begin for begin, _ in later], np.int64)
            divided.append((number, np.array([one for _, one in later], np.int32), starts))
    result[about] = whole[indices]
    for number, values, starts in divided:
        own = about[indices == number]
        part = np.searchsorted(starts, own, "right") - 1
        result[own] = np.where(part >= 0, values[part], whole[number])
    return result


def _changelog_rows(
    rows: pa.RecordBatch,
    numbers: _RowNumbers,
    plan: SegmentPlan,
    global_ids: pa.Array,
    is_rolled_back: Flags,
    schema_versions: Int32s,
    moved_values: pa.Array,
) -> pa.RecordBatch:
    count = rows.num_rows
    states = np.where(numbers.is_local, 2, np.where(is_rolled_back, 1, 0)).astype(np.int8)
    columns: dict[str, pa.Array] = {
        "epoch": pa.repeat(pa.scalar(plan.epoch, pa.int64()), count),
        "replicaset_id": pa.repeat(pa.scalar(plan.replicaset_id, pa.int32()), count),
        "source": pa.repeat(pa.scalar(plan.source, pa.string()), count),
        "segment": pa.repeat(pa.scalar(plan.segment, pa.int32()), count),
        "global_id": global_ids,
        "state": _texts_at([RowState.COMMITTED, RowState.ROLLED_BACK, RowState.LOCAL], states),
        "space": _texts_at(list(plan.meanings.space_names), schema_versions),
        "layout": pa.array(schema_versions, pa.int32(), mask=schema_versions == NO_TABLE),
        "hash": row_hashes(rows),
        "moved": moved_values,
    }
    is_registration = numbers.space_id == SystemSpace.CLUSTER
    if is_registration.any():
        columns.update(registrations_as_nops(rows, is_registration))
    arrays = [columns[f.name] if f.name in columns else rows.column(f.name) for f in CHANGELOG_ARROW]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGELOG_ARROW)


def _texts_at(values: list[str], index: NDArray[np.int8] | Int32s) -> pa.Array:
    if len(index) and (index == index[0]).all():
        return pa.repeat(pa.scalar(values[index[0]] if index[0] >= 0 else None, pa.string()), len(index))
    texts = [value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for value in values]
    return pa.array(texts, pa.string()).take(pa.array(index, mask=index < 0))


def keyed_from_changelog(rows: pa.Table, plan: SegmentPlan) -> pa.Table:
    """Convert committed rows of `_changelog`, in log order, to keyed rows, as if they came at the end of the batch.

    Each row gets the last meaning that its space id has in the batch.
    """
    (whole,) = rows.combine_chunks().to_batches() or [_empty_batch(CHANGELOG_ARROW)]
    spaces = _int64_column(whole, "space_id").astype(np.int32)
    distinct, indices = np.unique(spaces, return_inverse=True)
    known = [plan.meanings.of_space(plan.replicaset_id, int(space_id)) for space_id in distinct]
    last = np.array([first + len(found) - 1 if found else NO_TABLE for first, found in known], np.int32)
    meaning = last[indices] if len(last) else np.zeros(0, np.int32)
    applied = _values_of_meanings(plan.meanings.lineages, meaning) != NO_TABLE
    own, meaning = _with_server_versions(whole.filter(pa.array(applied)), plan), meaning[applied]
    keyed, _ = keyed_rows_of(
        own,
        _change_types(own),
        meaning,
        _values_of_meanings(plan.meanings.versions, meaning),
        own.column("global_id"),
        replace(plan, is_snapshot=False, bucket_moves=None),
        np.zeros(own.num_rows, np.int32),
    )
    return pa.Table.from_batches([keyed])

"""Reads waiting rows from `_pending`.

A row that waits only for the definition of its space is in `_changelog` too, but not in the space's table yet. Later
rows of the replicaset do not wait for it. The batch that reads the definition applies such rows before its own rows of
the space, in the order of `_changelog`. `pipeline.plan` decides which rows wait.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.changelog.keyed_rows import SERVER_VERSION
from pipeline.changelog.segment_plan import EARLIER, PENDING_ARROW
from pipeline.plan.rows.position import LogSegment
from pipeline.plan.rows.summary import Summary
from pipeline.plan.spaces.undefined import waits_for_definition
from pipeline.state import ReplicasetState, State
from schemas.xrow import XROW_ARROW
from sources.xlog.format.vclock import vclock_of
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import in_schema
from warehouse.delta.table_files import read_file

PENDING = "_pending"

STORED_COLUMNS = [*XROW_ARROW.names, SERVER_VERSION, EARLIER]
"""Columns of waiting rows: those of the log reader, and the server version and vclock from their file's header."""

_ROW_ID_COLUMNS = ["source", "replica_id", "lsn"]
_LOG_ORDER = ["epoch", "segment", "position", "row"]


@dataclass(frozen=True)
class PendingRows:
    """Waiting rows from one log file, and the segment of this batch that they form."""

    segment: LogSegment
    rows: pa.RecordBatch


PendingPart = tuple[ReplicasetState, str, str, str | None, pa.RecordBatch]
"""(replicaset, source, file, instance uuid, rows): waiting rows from one segment of the batch that read them."""


def waiting_segment(
    number: int, replicaset_uuid: str, origin: tuple[str, str, str | None], rows: pa.RecordBatch
) -> LogSegment:
    """Return the segment that describes some rows of `_pending`."""
    source, file, instance = origin
    server = rows.column(SERVER_VERSION)[0].as_py() if rows.num_rows else None
    return LogSegment(
        *(number, replicaset_uuid, source, file, instance, False, {}, server),
        has_waited=True,
        vclock_before=vclock_before_file(rows),
    )


def vclock_before_file(rows: pa.RecordBatch) -> dict[int, int]:
    """Return the vclock of the rows before the file of waiting rows; empty if there are none."""
    text = rows.column(EARLIER)[0].as_py() if rows.num_rows else None
    return {} if text is None else vclock_of(json.loads(text))


def read_pending(tables: OpenTables, replicaset_ids: Iterable[int], *, for_definition: bool) -> pa.Table:
    """Return some replicasets' rows of `_pending`: those that wait for a space's definition, or all others."""
    chosen_ids = pa.array(list(replicaset_ids), pa.int32())
    found = [PENDING_ARROW.empty_table()]
    for file in tables.files(PENDING):
        rows = read_file(tables.location, PENDING, file)
        mask = waits_for_definition(rows["reason"])
        mask = pc.and_(
            mask if for_definition else pc.invert(mask), pc.is_in(rows["replicaset_id"], chosen_ids)
        )
        found.append(in_schema(rows.filter(mask), PENDING_ARROW))
    return pa.concat_tables(found)


def pending_by_segment(tables: OpenTables, replicasets: Mapping[int, ReplicasetState]) -> list[PendingPart]:
    """Return rows of `_pending`, divided by segment and in log order, without those that wait for a definition."""
    whole = read_pending(tables, replicasets, for_definition=False)
    order = [(name, "ascending") for name in ("replicaset_id", "segment", "position", "row")]
    whole = whole.take(pc.sort_indices(whole, sort_keys=order)).combine_chunks()
    keys = (whole["replicaset_id"].to_numpy().astype(np.int64) << 32) | (
        whole["segment"].to_numpy().astype(np.int64) & 0xFFFFFFFF
    )
    cuts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), whole.num_rows]
    parts: list[PendingPart] = []
    for begin, end in pairwise(cuts):
        if begin == end:
            continue
        (rows,) = whole.slice(begin, end - begin).combine_chunks().to_batches()
        first = rows.slice(0, 1).to_pylist()[0]
        origin = (first["source"], first["file"], first["instance_uuid"])
        parts.append((replicasets[first["replicaset_id"]], *origin, rows.select(STORED_COLUMNS)))
    return parts


def unknown_spaces(tables: OpenTables) -> dict[int, frozenset[int]]:
    """Return the ids of the spaces whose rows wait for the space's definition, by replicaset id."""
    found: dict[int, set[int]] = {}
    for file in tables.files(PENDING):
        rows = read_file(tables.location, PENDING, file, ["replicaset_id", "space_id", "reason"])
        pairs = rows.filter(waits_for_definition(rows["reason"])).group_by(["replicaset_id", "space_id"])
        for row in pairs.aggregate([]).to_pylist():
            found.setdefault(row["replicaset_id"], set()).add(row["space_id"])
    return {number: frozenset(ids) for number, ids in found.items()}


def processed_rows_mask(
    rows: pa.Table, replicaset_ids: Sequence[int], spaces: Iterable[tuple[int, int]]
) -> pa.ChunkedArray:
    """Return for each row of `_pending` whether a batch has processed it, and so removes it from the table.

    A batch reads all waiting rows of its replicasets, and writes those that must still wait to `_pending` again. Rows
    that waited for the definition of one of `spaces` (replicaset id, space id) are processed too.
    """
    for_definition = waits_for_definition(rows["reason"])
    own = pc.is_in(rows["replicaset_id"], pa.array(replicaset_ids, pa.int32()))
    mask = pc.and_(own, pc.invert(for_definition))
    for replicaset_id, space_id in spaces:
        pair = pc.and_(pc.equal(rows["replicaset_id"], replicaset_id), pc.equal(rows["space_id"], space_id))
        mask = pc.or_(mask, pc.and_(for_definition, pair))
    return mask


def spaces_awaiting_definition(state: State) -> set[tuple[str, int]]:
    """Return the (replicaset uuid, space id) of each space whose rows wait for its definition."""
    return {(uuid, space_id) for uuid, one in state.replicasets.items() for space_id in one.unknown_spaces}


def released_rows(
    tables: OpenTables, state: State, spaces: Iterable[tuple[str, int]], lowest_number: int
) -> list[PendingRows]:
    """Return the rows that waited for the definition of some spaces, as segments with numbers below all others.

    Args:
        lowest_number: The lowest segment number used so far. The new segments are numbered up to `lowest_number - 1`.
    """
    parts: list[tuple[str, str, str, str | None, pa.RecordBatch]] = []
    for uuid, own in groupby(sorted(spaces), key=lambda pair: pair[0]):
        number = state.replicasets[uuid].id
        rows = read_pending(tables, [number], for_definition=True)
        ids = pa.array([space_id for _, space_id in own], pa.int32())
        ordered = _in_log_order(tables, number, rows.filter(pc.is_in(rows["space_id"], ids)))
        parts += [(uuid, *part) for part in _parts_by_file(ordered)]
    return [
        PendingRows(
            replace(
                waiting_segment(lowest_number - len(parts) + i, uuid, (source, file, instance), rows),
                is_released=True,
            ),
            rows,
        )
        for i, (uuid, source, file, instance, rows) in enumerate(parts)
    ]


def _in_log_order(tables: OpenTables, replicaset_id: int, rows: pa.Table) -> pa.Table:
    """Return rows of `_pending` in the order that they have in `_changelog`: by epoch, segment, position and row."""
    if not rows.num_rows:
        return rows
    bounds = pc.min_max(rows["lsn"]).as_py()
    logged = []
    for file in tables.files_between("_changelog", "lsn", bounds["min"], bounds["max"]):
        columns = ["replicaset_id", "epoch", "segment", *_ROW_ID_COLUMNS]
        found = read_file(tables.location, "_changelog", file, columns)
        logged.append(found.filter(pc.equal(found["replicaset_id"], replicaset_id)).drop(["replicaset_id"]))
    origins = (
        pa.concat_tables(logged).group_by(_ROW_ID_COLUMNS).aggregate([("epoch", "min"), ("segment", "min")])
    )
    origins = origins.rename_columns([*_ROW_ID_COLUMNS, "epoch", "segment"])
    own = rows.select([*_ROW_ID_COLUMNS, "position", "row"])
    own = own.append_column("index", pa.array(np.arange(rows.num_rows, dtype=np.int64)))
    joined = own.join(origins, _ROW_ID_COLUMNS, join_type="left outer")
    order = pc.sort_indices(joined, sort_keys=[(name, "ascending") for name in _LOG_ORDER])
    return rows.take(joined["index"].take(order)).combine_chunks()


def _parts_by_file(rows: pa.Table) -> list[tuple[str, str, str | None, pa.RecordBatch]]:
    names = list(zip(*(rows[name].to_pylist() for name in ("source", "file", "instance_uuid")), strict=True))
    parts, begin = [], 0
    for (source, file, instance), own in groupby(names):
        count = sum(1 for _ in own)
        (batch,) = rows.slice(begin, count).select(STORED_COLUMNS).combine_chunks().to_batches()
        parts.append((source, file, instance, batch))
        begin += count
    return parts


def with_released_counts(
    summaries: Mapping[str, Summary], released: Iterable[PendingRows]
) -> dict[str, Summary]:
    """Return the summaries, by replicaset uuid, with the counts of the rows in `released` (`released_rows`) added."""
    found = dict(summaries)
    for one in released:
        own = found[one.segment.replicaset_uuid]
        kinds = zip(one.rows.column("space_id").to_pylist(), one.rows.column("type").to_pylist(), strict=True)
        counts = Counter((one.segment.number, space_id, kind) for space_id, kind in kinds)
        found[one.segment.replicaset_uuid] = replace(own, row_counts=own.row_counts + counts)
    return found

"""Reads rows of `_pending` that wait only for the definition of their space, and marks those that are processed.

Such a row is in `_changelog` too, but not in the space's table yet. Later rows of the replicaset do not wait for it.
The batch that reads the definition applies such rows before its own rows of the space, in the order of `_changelog`.
`pipeline.plan` decides which rows wait.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.changelog.keyed_rows import SERVER_VERSION
from pipeline.changelog.segment_plan import PENDING_ARROW
from pipeline.pending.parts import (
    PENDING,
    STORED_COLUMNS,
    PendingOrigin,
    PendingPart,
    vclock_before_file,
    waiting_segment,
)
from pipeline.plan.rows.position import LogSegment
from pipeline.plan.rows.summary import Summary
from pipeline.plan.spaces.undefined import waits_for_definition
from pipeline.state import State
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import in_schema
from warehouse.delta.table_files import read_file

_ROW_ID_COLUMNS = ["source", "replica_id", "lsn"]
_LOG_ORDER = ["epoch", "segment", "position", "row"]


@dataclass(frozen=True)
class PendingRows:
    """Waiting rows from one log file, and the segment of this batch that they form."""

    segment: LogSegment
    read: Callable[[], pa.RecordBatch]
    """Reads the rows."""
    part: PendingPart | None = None
    """None for rows that have waited only for the definition of their space."""

    @cached_property
    def rows(self) -> pa.RecordBatch:
        """The rows, in the order of their log."""
        return self.read()


def _rows_without_definition(tables: OpenTables, replicaset_id: int) -> pa.Table:
    """Return the rows of `_pending` that wait only for the definition of their space."""
    found = [PENDING_ARROW.empty_table()]
    for file in tables.files(PENDING):
        rows = in_schema(read_file(tables.location, PENDING, file), PENDING_ARROW)
        own = pc.equal(rows["replicaset_id"], replicaset_id)
        found.append(rows.filter(pc.and_(waits_for_definition(rows["reason"]), own)))
    return pa.concat_tables(found)


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
    rows: pa.Table, parts: Iterable[tuple[int, int]], spaces: Iterable[tuple[int, int]]
) -> pa.ChunkedArray:
    """Return for each row of `_pending` whether a batch has processed it, and so removes it from the table.

    A batch writes those rows of a processed part that must still wait to `_pending` again.

    Args:
        parts: The (replicaset id, number) of each processed part.
        spaces: The (replicaset id, space id) of each space whose rows do not wait for its definition any more.
    """
    for_definition = waits_for_definition(rows["reason"])
    mask = pa.chunked_array([pa.repeat(pa.scalar(value=False), rows.num_rows)])
    for column, pairs, waits in (
        ("segment", parts, pc.invert(for_definition)),
        ("space_id", spaces, for_definition),
    ):
        for replicaset_id, value in pairs:
            own = pc.and_(pc.equal(rows["replicaset_id"], replicaset_id), pc.equal(rows[column], value))
            mask = pc.or_(mask, pc.and_(waits, own))
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
    parts: list[tuple[str, PendingOrigin, pa.RecordBatch]] = []
    for uuid, own in groupby(sorted(spaces), key=lambda pair: pair[0]):
        number = state.replicasets[uuid].id
        rows = _rows_without_definition(tables, number)
        ids = pa.array([space_id for _, space_id in own], pa.int32())
        ordered = _in_log_order(tables, number, rows.filter(pc.is_in(rows["space_id"], ids)))
        parts += [(uuid, *part) for part in _parts_by_file(ordered)]
    return [
        _released(lowest_number - len(parts) + i, uuid, origin, rows)
        for i, (uuid, origin, rows) in enumerate(parts)
    ]


def _released(number: int, replicaset_uuid: str, origin: PendingOrigin, rows: pa.RecordBatch) -> PendingRows:
    server, before = rows.column(SERVER_VERSION)[0].as_py(), vclock_before_file(rows)
    segment = waiting_segment(number, replicaset_uuid, origin, server, before)
    return PendingRows(replace(segment, is_released=True), lambda: rows)


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


def _parts_by_file(rows: pa.Table) -> list[tuple[PendingOrigin, pa.RecordBatch]]:
    names = list(zip(*(rows[name].to_pylist() for name in PendingOrigin._fields), strict=True))
    parts, begin = [], 0
    for origin, own in groupby(names):
        count = sum(1 for _ in own)
        (batch,) = rows.slice(begin, count).select(STORED_COLUMNS).combine_chunks().to_batches()
        parts.append((PendingOrigin(*origin), batch))
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

"""Records vshard's buckets: their states, rows of its garbage collector, and the conflicts of doubled buckets."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import QueryBuilder

from pipeline.plan.spaces.vshard import changed_buckets, newly_doubled_buckets
from pipeline.state import ReplicasetState, State, VshardBucket
from pipeline.work import BatchOutput
from pipeline.write.system_rows import write_system_rows
from schemas.errors import TupleError
from schemas.names import column_name, table_of_exact_tuples
from schemas.states import ChangedSide, ConflictKind, RowMove, VersionState
from schemas.system_tuples import fields_of
from schemas.vshard import WRITABLE_STATES, shard_field
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import DataFile
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import open_file

log = logging.getLogger(__name__)

TABLE = "_vshard"


def bucket_rows(before: State, after: State, epoch: int) -> list[dict[str, Any]]:
    """Return rows of `_vshard` for buckets whose state a batch changed."""
    return [
        {
            "epoch": epoch,
            "replicaset_id": after.replicasets[uuid].id,
            "bucket_id": bucket_id,
            "status": None if new is None else new.status,
            "peer": None if new is None else new.peer,
            "since": None if new is None else new.since,
            "timestamp": None if new is None else new.timestamp,
            "doubled_with": sorted(new.doubled_with) if new is not None and new.doubled_with else None,
        }
        for uuid, bucket_id, new in changed_buckets(before, after)
    ]


def stored_buckets(rows: Iterable[Mapping[str, Any]]) -> dict[int, dict[int, VshardBucket]]:
    """Return the buckets of each replicaset id, from the newest row of `_vshard` of each bucket."""
    found: dict[int, dict[int, VshardBucket]] = {}
    for row in rows:
        if row["status"] is not None:
            doubled = frozenset(row["doubled_with"] or ())
            bucket = VshardBucket(row["status"], row["peer"], row["since"], row["timestamp"], doubled)
            found.setdefault(row["replicaset_id"], {})[row["bucket_id"]] = bucket
    return found


def buckets_writable_in_several(replicasets: Iterable[ReplicasetState]) -> frozenset[int]:
    """Return the ids of buckets to which clients can write in several replicasets: these may be doubled."""
    seen: set[int] = set()
    repeated: set[int] = set()
    for one in replicasets:
        own = {bucket_id for bucket_id, bucket in one.buckets.items() if bucket.status in WRITABLE_STATES}
        repeated |= seen & own
        seen |= own
    return frozenset(repeated)


def mark_collected_rows(written: BatchOutput, location: WarehouseLocation) -> BatchOutput:
    """Mark the rows of vshard's garbage collector in new files of `_changelog`; return the output with these files."""
    if not written.collected_rows.num_rows:
        return written
    files = [_with_collected_marked(file, written.collected_rows, location) for file in written.changelog]
    return replace(written, changelog=files)


def _with_collected_marked(file: DataFile, collected: pa.Table, location: WarehouseLocation) -> DataFile:
    with open_file(location, file.table, file.as_table_file()) as opened:
        found = _are_collected(opened.read(collected.column_names), collected)
        if not found.any():
            return file
        rows = opened.read()
    moved = pa.compute.if_else(pa.array(found), pa.scalar(RowMove.COLLECTED), rows["moved"].cast(pa.string()))
    rows = rows.set_column(rows.schema.get_field_index("moved"), "moved", moved)
    return write_system_rows(location, file.table, rows)


def _are_collected(rows: pa.Table, collected: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    def integers(table: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.asarray(table[name].cast(pa.int64()).fill_null(-1).combine_chunks())

    columns = [integers(rows, name) for name in collected.column_names]
    wanted = [integers(collected, name) for name in collected.column_names]
    result = np.zeros(rows.num_rows, np.bool_)
    for replicaset, instance in set(zip(wanted[0].tolist(), wanted[1].tolist(), strict=True)):
        of_instance = (columns[0] == replicaset) & (columns[1] == instance)
        lsns = wanted[2][(wanted[0] == replicaset) & (wanted[1] == instance)]
        result |= of_instance & np.isin(columns[2], lsns)
    return result


@dataclass(frozen=True)
class _Version:
    """A replicaset's version of a key; `is_table_row` says whether the table's row of the key is this version."""

    tuple: bytes
    global_id: int | None
    lsn: int | None
    timestamp: datetime | None
    is_table_row: bool


def doubled_bucket_conflicts(
    tables: OpenTables, before: State, after: State, epoch: int
) -> list[dict[str, Any]]:
    """Return rows of `_conflicts` for the keys with differing versions in the buckets that this batch has made doubled.

    Reads the tables of sharded spaces as they are after the batch.
    """
    numbers = newly_doubled_buckets(changed_buckets(before, after), before)
    found: list[dict[str, Any]] = []
    for bucket_id in numbers:
        holders = [one for one in after.replicasets.values() if _is_bucket_doubled(one, bucket_id)]
        differing = [
            row
            for pair in _replicaset_pairs_of_bucket(holders, bucket_id)
            for row in _differing_versions(tables, pair, bucket_id, epoch)
        ]
        log.error(
            "bucket %d of vshard is active in replicasets %s at once; %d of its rows differ (_vshard, _conflicts)",
            *(bucket_id, " and ".join(one.uuid for one in holders), len(differing)),
        )
        found += differing
    return found


def _is_bucket_doubled(replicaset: ReplicasetState, bucket_id: int) -> bool:
    return bucket_id in replicaset.buckets and bool(replicaset.buckets[bucket_id].doubled_with)


def _replicaset_pairs_of_bucket(
    holders: Sequence[ReplicasetState], bucket_id: int
) -> Iterable[tuple[ReplicasetState, ReplicasetState]]:
    return (
        (one, other)
        for one, other in combinations(holders, 2)
        if other.id in one.buckets[bucket_id].doubled_with
    )


def _differing_versions(
    tables: OpenTables, pair: tuple[ReplicasetState, ReplicasetState], bucket_id: int, epoch: int
) -> list[dict[str, Any]]:
    one, other = pair
    names = sorted(_sharded_tables(one).keys() | _sharded_tables(other).keys())
    rows: list[dict[str, Any]] = []
    for name in names:
        field_index, column = (_sharded_tables(one) | _sharded_tables(other))[name]
        versions = _versions_in_bucket(tables, name, bucket_id, field_index, column, {one.id, other.id})
        for key, by_replicaset in sorted(versions.items()):
            first, second = by_replicaset.get(one.id), by_replicaset.get(other.id)
            if first is None or second is None or first.tuple != second.tuple:
                rows.append(_conflict_row(name, key, bucket_id, by_replicaset, pair, epoch))
    return rows


def _sharded_tables(replicaset: ReplicasetState) -> dict[str, tuple[int, str]]:
    """Return (index of the field with the bucket id, its column) by table of each sharded space of a replicaset."""
    found = {}
    for space_id, table in replicaset.tables.items():
        rows, space = replicaset.spaces.get(space_id), replicaset.definition(space_id)
        index = None if rows is None else shard_field(rows.indexes.values())
        if space is not None and index is not None and index < len(space.fields):
            found[table] = (index, column_name(space.fields[index].name))
    return found


def _versions_in_bucket(
    tables: OpenTables, table: str, bucket_id: int, field_index: int, column: str, replicaset_ids: set[int]
) -> dict[bytes, dict[int, _Version]]:
    """Return some replicasets' versions of the keys in a bucket, by key and replicaset id."""
    found: dict[bytes, dict[int, _Version]] = {}
    exact = table_of_exact_tuples(tables.location.tables(), table)
    columns = "_key, _tuple, _replicaset_id, _global_id, _lsn, _timestamp"
    for row in _query_rows(tables, exact, f'SELECT {columns} FROM opened WHERE "{column}" = {bucket_id}'):
        if row["_replicaset_id"] in replicaset_ids:
            version = _Version(row["_tuple"], row["_global_id"], row["_lsn"], row["_timestamp"], True)
            found.setdefault(row["_key"], {})[row["_replicaset_id"]] = version
    for row in _query_rows(tables, "_versions", _VERSIONS_NOT_IN_TABLE.format(table=table), exact):
        if row["replicaset_id"] in replicaset_ids and _field_value(row["tuple"], field_index) == bucket_id:
            version = _Version(row["tuple"], row["global_id"], row["lsn"], row["timestamp"], False)
            found.setdefault(row["key"], {})[row["replicaset_id"]] = version
    return found


_VERSIONS_NOT_IN_TABLE = f"""
    SELECT * FROM (
        SELECT *, row_number() OVER (PARTITION BY key, replicaset_id ORDER BY epoch DESC) AS row_index
        FROM opened WHERE space = '{{table}}'
    ) AS newest LEFT ANTI JOIN other ON newest.key = other._key AND newest.replicaset_id = other._replicaset_id
    WHERE row_index = 1 AND state = '{VersionState.PRESENT}'"""
"""A query for the replicasets' newest versions in `_versions`, which are not in the exact table, `other`.

The versions of the replicaset that wrote the table's row are excluded: they are older than the row, and may be of
another bucket."""


def _query_rows(
    tables: OpenTables, table: str, sql: str, other_table: str | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a query over a table, `opened`, and a second one, `other`; no rows without one of them."""
    engine = QueryBuilder()
    for name, one in (("opened", table), ("other", other_table)):
        delta = None if one is None else tables.location.open(one)
        if delta is not None:
            engine = engine.register(name, delta)
        elif one is not None:
            return []
    rows: list[dict[str, Any]] = pa.table(engine.execute(sql).read_all()).to_pylist()
    return rows


def _field_value(tuple_: bytes | None, index: int) -> object:
    try:
        return fields_of(tuple_, "a tuple")[index]
    except (TupleError, IndexError):
        return None


def _conflict_row(
    table: str,
    key: bytes,
    bucket_id: int,
    versions: Mapping[int, _Version],
    pair: tuple[ReplicasetState, ReplicasetState],
    epoch: int,
) -> dict[str, Any]:
    ids = sorted(
        (one.id for one in pair), key=lambda id_: not (id_ in versions and versions[id_].is_table_row)
    )
    row: dict[str, Any] = {
        "epoch": epoch,
        "decided_at": datetime.now(UTC),
        "space": table,
        "key": key,
        "kind": ConflictKind.DOUBLED,
        "note": f"bucket {bucket_id} is active in both replicasets",
    }
    for side, id_ in zip((ChangedSide.WINNER, ChangedSide.LOSER), ids, strict=True):
        version = versions.get(id_)
        row[f"{side}_replicaset_id"] = id_
        for name in ("global_id", "lsn", "timestamp", "tuple"):
            row[f"{side}_{name}"] = None if version is None else getattr(version, name)
    return row

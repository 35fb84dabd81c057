"""Every version of each key of a space, with its period of validity: computed from `_changelog` as a view.

The view shows each replicaset's own versions; `_conflicts` says which of them won between replicasets. An UPDATE's
tuple is computed by the rules of its row's server (`_changelog.server_version`, `udfs.operations.update_rules`). The
view `<table>_history` reads the changelog at the newest epoch and lives in the session: nothing is stored. If the
aggregator first read a space from a snapshot, the history of the space begins with the snapshot's rows, whose time is
unknown. If maintenance has removed rows of a key, the key's history begins with the first remaining row that has a
complete tuple or is a DELETE.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType

from config.deployment import Config
from pipeline.changelog.keyed_rows import SERVER_VERSION
from pipeline.plan.rows.position import LogPosition
from pipeline.plan.rows.summary import APPLIED_TYPES, ControlRow, unsupported_reason
from pipeline.plan.spaces.meanings import History, Lineage, SchemaVersion
from pipeline.plan.spaces.meanings_builder import build_history
from pipeline.plan.spaces.router import build_router
from pipeline.plan.spaces.system_rows import SpaceChange, apply_control_rows
from pipeline.plan.spaces.tables import build_table_layout, check_space
from schemas.errors import UnsupportedError, WarehouseError
from schemas.iproto import SYSTEM_SPACE_ID_MAX, SystemSpace
from schemas.row_types import CHANGE_TYPES, TYPES_WITH_KEY
from schemas.states import RowState, SpaceEvent, VersionState
from udfs.keys.key_order import directions_of, range_bounds_udf, sort_key_column
from udfs.keys.keys import key_columns
from udfs.operations.tuple_format import TupleFormat, format_of
from udfs.operations.update_rules import LATEST, rules_of
from udfs.tuples.tuples import tuple_columns
from udfs.versions.all_versions import (
    INPUT_COLUMNS,
    KEY_COLUMNS,
    POSITION_COLUMNS,
    VERSIONS_ARROW,
    EndOfAllVersions,
    key_versions,
)
from warehouse.delta.newest_epoch import no_batch_error
from warehouse.system_tables import epochs
from warehouse.system_tables.maintenance import cleaned_replicasets
from warehouse.warehouse import Warehouse

SPACE_CHANGE_SPACES = (SystemSpace.SPACE, SystemSpace.INDEX, SystemSpace.TRUNCATE)
"""The system spaces whose rows define, truncate and drop spaces."""

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SEGMENTS_PER_EPOCH = 1 << 20
"""More than an epoch can have segments, so that `epoch * _SEGMENTS_PER_EPOCH + segment` is in log order."""


def committed_changelog(warehouse: Warehouse) -> DataFrame:
    """Return the committed rows of `_changelog` at the newest epoch.

    In the table, `segment` is a number within one batch. Here it is a number over all batches: it grows with the epoch,
    and within an epoch with the table's number. So `POSITION_COLUMNS` sort a replicaset's rows in log order.

    Raises:
        WarehouseError: No batch has been committed yet.
    """
    newest = epochs.last(warehouse)
    if newest is None:
        raise no_batch_error(warehouse.root)
    rows = warehouse.read("_changelog", newest.versions.get("_changelog"))
    segment = F.col("epoch") * _SEGMENTS_PER_EPOCH + F.col("segment") + _SEGMENTS_PER_EPOCH // 2
    return rows.where(f"state = '{RowState.COMMITTED}' AND replicaset_id > 0").withColumn("segment", segment)


@dataclass(frozen=True)
class LogDefinitions:
    """Definitions, truncations and drops of spaces over the whole log."""

    history: History
    """The schema versions and lineages of all spaces, and what a space id means at each position of the log."""
    changes_by_replicaset: Mapping[int, Sequence[SpaceChange]]
    """By replicaset id: the changes of the replicaset's spaces, in the order of its log."""


def definitions_of_log(log: DataFrame, config: Config) -> LogDefinitions:
    """Return the definitions, truncations and drops in the rows of a log (`committed_changelog`)."""
    controls = F.col("space_id").isin([int(one) for one in SPACE_CHANGE_SPACES])
    rows = log.where(controls | _is_unsupported_row()).orderBy(*POSITION_COLUMNS).collect()
    changes = {}
    for replicaset_id in {row.replicaset_id for row in rows}:
        own = [row for row in rows if row.replicaset_id == replicaset_id]
        snapshots = frozenset(row.segment for row in own if row.file.endswith(".snap"))
        changes[replicaset_id] = apply_control_rows({}, {}, map(_control_row, own), snapshots).changes
    return LogDefinitions(build_history({}, changes, build_router(config.spaces, check_space)), changes)


def _is_unsupported_row() -> Column:
    """Return a column that is true for rows of a type that cannot be applied, whose space is therefore refused."""
    applied = [one.name for one in APPLIED_TYPES]
    return (F.col("space_id") > SYSTEM_SPACE_ID_MAX) & ~F.col("type").isin(applied)


def _control_row(row: Any) -> ControlRow:
    packed = (row.key, row.tuple, row.operations, row.body)
    key, tuple_, operations, body = (None if data is None else bytes(data) for data in packed)
    return ControlRow(
        position=LogPosition(row.segment, row.position, row.row),
        type=row.type,
        replica_id=row.replica_id,
        lsn=row.lsn,
        tsn=row.tsn,
        space_id=row.space_id,
        index_base=row.index_base or 0,
        key=key,
        tuple=tuple_,
        operations=operations,
        body=body,
        timestamp=row.timestamp,
        held_reason=unsupported_reason(row.type) if row.space_id > SYSTEM_SPACE_ID_MAX else None,
    )


def space_history(warehouse: Warehouse, config: Config, table: str) -> DataFrame:
    """Return the versions of the keys of a space.

    Returns:
        `key` (canonical, as `_key`), `replicaset_id`, `state` (present, deleted, or unfit: the tuple is not known,
        because a row could not be applied), `row` (the typed columns), `tuple`, `global_id`, `lsn`, `type` (of the row
        that made the version), `epoch`, `valid_from`, `valid_to`, `is_current`, `reason` (why a row could not be
        applied). The times of rows of a snapshot are null.

    Raises:
        WarehouseError: No space has ever been written to the table.
        UnsupportedError: The space's primary key was changed, or some of its rows could not be applied.
    """
    log = committed_changelog(warehouse)
    definitions = definitions_of_log(log, config)
    lineages = _lineages_of_table(definitions.history, table)
    all_versions = definitions.history.versions
    numbers = [n for n in range(len(all_versions)) if _belongs_to_lineage(definitions.history, lineages, n)]
    versions = [all_versions[number] for number in numbers]
    spaces = {one.space_id for one in lineages.values()}
    changes = log.where(F.col("type").isin(*CHANGE_TYPES) & F.col("space_id").isin(sorted(spaces)))
    server_versions = _operation_server_versions(changes)
    formats = [
        format_of(one.space, LATEST if server is None else rules_of(server))
        for server in server_versions
        for one in versions
    ]
    intervals = _definition_intervals(definitions.history, lineages, numbers)
    layout = _format_index_column(intervals, server_versions, len(versions))
    versions = versions * len(server_versions)
    columns = (F.col(name) for name in ("replicaset_id", "space_id", *POSITION_COLUMNS, SERVER_VERSION))
    rows = changes.withColumn("layout", layout(*columns)).where("layout IS NOT NULL")
    keyed = _without_unknown_tuples(_with_keys(rows, versions), cleaned_replicasets(warehouse.location))
    key_version_rows = _key_versions(
        _with_range_deletions(keyed, rows, versions), formats, _truncations_and_drops(definitions, lineages)
    )
    return _with_validity_periods(key_version_rows, versions, config)


def _lineages_of_table(history: History, table: str) -> dict[int, Lineage]:
    """Return, by its number in `history`, each lineage whose keys are in a table, or were until the lineage ended."""
    found = {number: one for number, one in enumerate(history.lineages) if one.table == table}
    if not found:
        raise WarehouseError("no space went to this table", table=table, advice="see _schema.table_name")
    own = {(one.replicaset_id, one.space_id) for one in found.values()}
    reasons = [r.reason for r in history.refusals if (r.replicaset_id, r.space_id) in own]
    if any(len(one.eras) > 1 for one in found.values()):
        reasons.append("the space got another primary key")
    if reasons:
        raise UnsupportedError(
            f"the history cannot be computed: {reasons[0]}", table=table, advice="ask _changelog itself"
        )
    return found


def _belongs_to_lineage(history: History, lineages: Mapping[int, Lineage], version_number: int) -> bool:
    meanings = chain.from_iterable(history.meanings.values())
    return any(meaning.version == version_number and meaning.lineage in lineages for meaning in meanings)


@dataclass(frozen=True)
class DefinitionInterval:
    """A part of a replicaset's log in which a space id has one definition (schema version of the space)."""

    replicaset_id: int
    space_id: int
    version_index: int
    """Index of the schema version among those of the requested table."""
    since: LogPosition
    until: LogPosition | None
    """The first position after the part; None if it has no end."""


def _definition_intervals(
    history: History, lineages: Mapping[int, Lineage], version_numbers: Sequence[int]
) -> list[DefinitionInterval]:
    """Return the parts of all logs in which a space id belongs to one of some lineages."""
    found = []
    for (replicaset_id, space_id), meanings in history.meanings.items():
        ends = [*(meaning.since for meaning in meanings[1:]), None]
        found += [
            DefinitionInterval(replicaset_id, space_id, version_numbers.index(one.version), one.since, until)
            for one, until in zip(meanings, ends, strict=True)
            if one.lineage in lineages
        ]
    return found


def _truncations_and_drops(
    definitions: LogDefinitions, lineages: Mapping[int, Lineage]
) -> dict[int, list[EndOfAllVersions]]:
    """Return, by replicaset id, the truncations and drops of the lineages' spaces, in log order."""
    result: dict[int, list[EndOfAllVersions]] = {}
    for number, lineage in lineages.items():
        meanings = definitions.history.meanings[lineage.replicaset_id, lineage.space_id]
        since = min(meaning.since for meaning in meanings if meaning.lineage == number)
        for change in definitions.changes_by_replicaset[lineage.replicaset_id]:
            is_own = change.space_id == lineage.space_id and change.position >= since
            is_within = lineage.ended is None or change.position <= lineage.ended
            if is_own and is_within and change.kind in (SpaceEvent.TRUNCATED, SpaceEvent.DROPPED):
                position = (change.position.segment, change.position.position, change.position.row)
                epoch, time = change.position.segment // _SEGMENTS_PER_EPOCH, _microseconds(change.timestamp)
                end = EndOfAllVersions(position, epoch, change.lsn, time)
                result.setdefault(lineage.replicaset_id, []).append(end)
    return {replicaset_id: sorted(own, key=lambda end: end.position) for replicaset_id, own in result.items()}


def _microseconds(moment: datetime | None) -> int | None:
    """Return a time in microseconds since 1970; `moment` is in the local time zone, as Spark's driver returns it."""
    return None if moment is None else (moment.astimezone(UTC) - _UNIX_EPOCH) // timedelta(microseconds=1)


def register_history(warehouse: Warehouse, config: Config, table: str) -> str:
    """Register the history as a temporary view of the session, and return the view's name."""
    name = f"{table}_history"
    space_history(warehouse, config, table).createOrReplaceTempView(name)
    return name


def _operation_server_versions(changes: DataFrame) -> list[str | None]:
    """Return a list of None, for rows without a server version, and all server versions of UPDATEs and UPSERTs."""
    operations = changes.where(F.col("type").isin("UPDATE", "UPSERT"))
    found = operations.select(SERVER_VERSION).distinct().collect()
    return [None, *sorted(row[0] for row in found if row[0] is not None)]


def _format_index_column(
    intervals: Sequence[DefinitionInterval], server_versions: Sequence[str | None], version_count: int
) -> Callable[..., Column]:
    """Return an Arrow UDF that computes which tuple format a row has.

    There is a format for each pair of a server version and a schema version. The result is its index: `version_count`
    times the index of the row's server version in `server_versions`, plus the index of the schema version. It is null
    if the space id belongs to another space at the row's position. The UDF's arguments are the row's replicaset id,
    space id, position (segment, position, row) and server version.

    Args:
        intervals: Which schema version a space id has in which part of a log.
        server_versions: The server versions; None for rows without one.
        version_count: Number of schema versions.
    """
    offsets = {server: number * version_count for number, server in enumerate(server_versions)}

    def column(
        replicaset: pa.Array,
        space: pa.Array,
        segment: pa.Array,
        position: pa.Array,
        row: pa.Array,
        server: pa.Array,
    ) -> pa.Array:
        numbers = (replicaset, space, segment, position, row)
        replicasets, spaces, *position_columns = (one.to_numpy(zero_copy_only=False) for one in numbers)
        found = np.full(len(replicasets), -1, np.int32)
        for one in intervals:
            own = (replicasets == one.replicaset_id) & (spaces == one.space_id)
            own &= _is_at_or_after(position_columns, one.since)
            found[own if one.until is None else own & ~_is_at_or_after(position_columns, one.until)] = (
                one.version_index
            )
        is_absent = found < 0
        # Only operations depend on their server; `server_versions` lacks the versions of other rows.
        found += np.array([offsets.get(one, 0) for one in server.to_pylist()], np.int32)
        return pa.array(found, mask=is_absent)

    column.__annotations__ = dict.fromkeys(column.__annotations__, pa.Array)
    make: Any = arrow_udf
    wrapped: Callable[..., Column] = make(column, returnType=IntegerType())
    return wrapped


def _is_at_or_after(position: Sequence[NDArray[np.int64]], since: LogPosition) -> NDArray[np.bool_]:
    """Return for each position of three columns (segment, byte, row) whether it is at or after `since`."""
    segment, byte, row = position
    same_block = (segment == since.segment) & (byte == since.position)
    is_later = (segment > since.segment) | ((segment == since.segment) & (byte > since.position))
    found: NDArray[np.bool_] = is_later | (same_block & (row >= since.row))
    return found


def _with_keys(rows: DataFrame, versions: Sequence[SchemaVersion]) -> DataFrame:
    """Add the canonical key as `_key`; leave out rows without a key, and set the time of rows of snapshots to null."""
    timed = F.when(~F.col("file").endswith(".snap"), F.col("timestamp"))
    from_tuple = ~F.col("type").isin(*TYPES_WITH_KEY)
    data = F.when(from_tuple, F.col("tuple")).otherwise(F.col("key"))
    key = key_columns([one.space for one in versions])(data, F.col("layout"), from_tuple)
    keyed = rows.withColumn("_key", key.getField("key")).withColumn("timestamp", timed)
    return keyed.where("_key IS NOT NULL").select(*INPUT_COLUMNS)


def _without_unknown_tuples(rows: DataFrame, replicaset_ids_with_removed_rows: Collection[int]) -> DataFrame:
    """Leave out UPDATEs and UPSERTs of tuples that are unknown, since maintenance has removed older rows."""
    if not replicaset_ids_with_removed_rows:
        return rows
    knows = F.when(~F.col("type").isin("UPDATE", "UPSERT"), F.struct(*POSITION_COLUMNS))
    first = F.min(knows).over(Window.partitionBy(*KEY_COLUMNS))
    marked = rows.withColumn("_known", F.coalesce(F.struct(*POSITION_COLUMNS) >= first, F.lit(False)))
    return marked.where(
        F.col("_known") | ~F.col("replicaset_id").isin(sorted(replicaset_ids_with_removed_rows))
    ).drop("_known")


def _with_range_deletions(rows: DataFrame, log: DataFrame, versions: Sequence[SchemaVersion]) -> DataFrame:
    """Add, for each DELETE_RANGE, a DELETE of each key in its range that has an earlier row."""
    ranges = log.where(F.col("type") == "DELETE_RANGE")
    if ranges.isEmpty():
        return rows
    bounds = range_bounds_udf([one.space for one in versions])(F.col("body"), F.col("layout"))
    ranges = ranges.withColumn("_bounds", bounds).withColumn("type", F.lit("DELETE"))
    keys = rows.groupBy(*KEY_COLUMNS).agg(F.min(F.struct(*POSITION_COLUMNS)).alias("_first"))
    result = rows
    # Nearly always all definitions sort their keys in the same way.
    for directions in dict.fromkeys(directions_of(one.space) for one in versions):
        layouts = [i for i, one in enumerate(versions) if directions_of(one.space) == directions]
        own = ranges.where(F.col("layout").isin(layouts)).withColumnRenamed("replicaset_id", "_of")
        begin, end, order = F.col("_bounds.begin"), F.col("_bounds.end"), F.col("_order")
        is_in_range = (order >= begin) & ((F.length(end) == 0) | (order < end))
        is_later = (F.col("_of") == F.col("replicaset_id")) & (F.struct(*POSITION_COLUMNS) > F.col("_first"))
        with_order = keys.withColumn("_order", sort_key_column(directions)(F.col("_key")))
        hits = with_order.join(F.broadcast(own), is_in_range & is_later)
        types, null_columns = dict(rows.dtypes), ("tuple", "operations", "index_base")
        columns = [
            (F.lit(None) if name in null_columns else F.col(name)).cast(types[name]).alias(name)
            for name in rows.columns
        ]
        result = result.unionByName(hits.select(*columns))
    return result


def _key_versions(
    rows: DataFrame, formats: Sequence[TupleFormat], ends: Mapping[int, Sequence[EndOfAllVersions]]
) -> DataFrame:
    """Return the versions of each key (`VERSIONS_ARROW`); `ends` are truncations and drops by replicaset."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return key_versions(batches, formats, ends)

    apart = rows.repartition(*KEY_COLUMNS).sortWithinPartitions(*KEY_COLUMNS, *POSITION_COLUMNS)
    return apart.mapInArrow(run, from_arrow_schema(VERSIONS_ARROW))


def _with_validity_periods(
    key_version_rows: DataFrame, versions: Sequence[SchemaVersion], config: Config
) -> DataFrame:
    decode = tuple_columns(build_table_layout([one.space for one in versions], config.types, config.spaces))
    of_key = Window.partitionBy(*KEY_COLUMNS).orderBy(*POSITION_COLUMNS)
    return key_version_rows.select(
        F.col("_key").alias("key"),
        "replicaset_id",
        "state",
        decode(F.col("tuple"), F.col("layout")).alias("row"),
        *("tuple", "global_id", "lsn", "type", "epoch"),
        F.col("timestamp").alias("valid_from"),
        F.lead("timestamp").over(of_key).alias("valid_to"),
        (F.lead("epoch").over(of_key).isNull() & (F.col("state") != VersionState.DELETED)).alias(
            "is_current"
        ),
        "reason",
    )

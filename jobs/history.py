"""Every version of each key of a space, with its period of validity: computed from `_changelog` as a view.

    spark-submit jobs/history.py --config FILE --space SPACE [--sql QUERY]

    from jobs.history import register_history        # in a session of your own
    register_history(Warehouse(spark, "/data/warehouse"), config, "accounts")
    spark.sql("SELECT key, row.balance, valid_from, valid_to FROM accounts_history WHERE is_current")

The view shows each replicaset's own versions; `_conflicts` says which of them won between replicasets. An UPDATE's
tuple is computed by the rules of its row's server (`_changelog.server_version`, `udfs.operations.update_rules`). Rows
of an earlier release have no server version: the rules of the server that wrote their newest log file are used, or, if
that file is gone, those of a new server, with a warning. The view `<table>_history` reads the changelog at the newest
epoch and lives in the session: nothing is stored. A space that was followed from a snapshot begins with the snapshot's
rows, whose time is unknown. Where maintenance has removed rows, the history of a key begins with its first complete
tuple, or DELETE, that is still stored. `udfs.versions.history` computes the versions.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from config.deployment import Config
from jobs.commands.main import main
from jobs.runtime.session import spark_session
from pipeline.changelog.servers import SERVER_VERSION
from pipeline.inputs import server_version_of_file
from pipeline.plan.control import SpaceChange, follow_control_rows
from pipeline.plan.held_rows import APPLIED_TYPES, unsupported_reason
from pipeline.plan.history import History, Lineage, SchemaVersion, build_history
from pipeline.plan.position import LogPosition
from pipeline.plan.router import build_router
from pipeline.plan.summary import ControlRow
from pipeline.plan.tables import CHANGE_TYPES, build_table_layout, check_space
from pipeline.source_options import stream_options
from pipeline.state import State
from schemas.errors import UnsupportedError, WarehouseError
from schemas.iproto import SYSTEM_ID_MAX, SystemSpace
from schemas.states import RowState, SpaceEvent, VersionState
from sources.xlog.options import parse_options
from sources.xlog.stream.follow import Follower
from udfs.keys.key_order import directions_of
from udfs.keys.keys import key_columns
from udfs.keys.range_columns import bound_columns, place_column
from udfs.operations.tuple_format import TupleFormat, format_of
from udfs.operations.update_rules import LATEST, Rules, rules_of
from udfs.tuples.tuples import tuple_columns
from udfs.versions.history import RESULT_SPARK, ROW_COLUMNS, history_arrow
from warehouse import epochs
from warehouse.removed_changes import cleaned_replicasets
from warehouse.warehouse import Warehouse

LOG = logging.getLogger(__name__)

CONTROL = (SystemSpace.SPACE, SystemSpace.INDEX, SystemSpace.TRUNCATE)

KEYS = ["replicaset_id", "_key"]
ORDER = ["segment", "position", "row"]

_SEGMENTS = 1 << 20
"""Larger than the number of segments of an epoch: (epoch, segment) become one number in log order."""


def whole_log(warehouse: Warehouse) -> DataFrame:
    """Return the committed rows of `_changelog` at the newest epoch; `segment` is numbered across epochs.

    Raises
    ------
    WarehouseError
        No batch has been committed yet.

    """
    newest = epochs.last(warehouse)
    if newest is None:
        raise WarehouseError(
            "no batch is done yet", warehouse=warehouse.root, advice="start `aggregator run` first"
        )
    rows = warehouse.read("_changelog", newest.versions.get("_changelog"))
    segment = F.col("epoch") * _SEGMENTS + F.col("segment") + _SEGMENTS // 2
    if SERVER_VERSION not in rows.columns:  # a table of an earlier release
        rows = rows.withColumn(SERVER_VERSION, F.lit(None).cast("string"))
    return rows.where(f"state = '{RowState.COMMITTED}' AND replicaset_id > 0").withColumn("segment", segment)


@dataclass(frozen=True)
class Definitions:
    """Definitions, truncations and drops of spaces over the whole log.

    Parameters
    ----------
    history : History
    changes : mapping of int to sequence of SpaceChange
        The changes of each replicaset's spaces in the order of its log, by replicaset id.

    """

    history: History
    changes: Mapping[int, Sequence[SpaceChange]]


def definitions_of(log: DataFrame, config: Config) -> Definitions:
    """Return the definitions of spaces over the whole log."""
    controls = F.col("space_id").isin([int(one) for one in CONTROL])
    rows = log.where(controls | _is_held()).orderBy(*ORDER).collect()
    changes = {}
    for replicaset_id in {row.replicaset_id for row in rows}:
        own = [row for row in rows if row.replicaset_id == replicaset_id]
        snapshots = frozenset(row.segment for row in own if row.file.endswith(".snap"))
        changes[replicaset_id] = follow_control_rows({}, {}, map(_control, own), snapshots).changes
    return Definitions(build_history({}, changes, build_router(config.spaces, check_space)), changes)


def _is_held() -> Column:
    """Return whether a row blocks its space: no later row of the space can be followed."""
    followed = [one.name for one in APPLIED_TYPES]
    return (F.col("space_id") > SYSTEM_ID_MAX) & ~F.col("type").isin(followed)


def _control(row: Any) -> ControlRow:
    key, tuple_, operations, body = (
        None if data is None else bytes(data) for data in (row.key, row.tuple, row.operations, row.body)
    )
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
        held_reason=unsupported_reason(row.type) if row.space_id > SYSTEM_ID_MAX else None,
    )


def history(warehouse: Warehouse, config: Config, table: str) -> DataFrame:
    """Return the versions of the keys of a space.

    Parameters
    ----------
    warehouse : Warehouse
    config : Config
        Maps spaces to tables.
    table : str
        The space's table.

    Returns
    -------
    DataFrame
        `key` (canonical, as `_key`), `replicaset_id`, `state` (present, deleted, unfit), `row` (the typed columns),
        `tuple`, `global_id`, `lsn`, `type` (of the row that made the version), `epoch`, `valid_from`, `valid_to`,
        `is_current`, `reason` (why a row could not be applied). Times are null if they come from a snapshot.

    Raises
    ------
    WarehouseError
        No space has ever been written to the table.
    UnsupportedError
        The space's primary key was changed, or some of its rows were not followed.

    """
    log = whole_log(warehouse)
    cleaned = cleaned_replicasets(warehouse.place)
    found = definitions_of(log, config)
    lineages = _lineages_of(found.history, table)
    kept = [n for n, version in enumerate(found.history.versions) if _has_version(found.history, lineages, n)]
    versions = [found.history.versions[number] for number in kept]
    intervals = _intervals(found.history, lineages, kept)
    rows, servers = _with_servers(_with_versions(log, intervals), len(versions))
    rules = rules_by_replicaset(rows, config)
    formats = [
        format_of(one.space, rules.get(one.replicaset_id, LATEST) if server is None else rules_of(server))
        for server in servers
        for one in versions
    ]
    versions = versions * len(servers)
    ends = _ends(found, lineages)
    made = _folded(
        _with_ranges(_with_ends(_from_known_tuples(_keyed(rows, versions), cleaned), ends), rows, versions),
        formats,
    )
    return _shown(made, versions, config)


def _lineages_of(history: History, table: str) -> dict[int, Lineage]:
    """Return the lineages whose versions are in a table, or were until they ended, by their number."""
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


def _has_version(history: History, lineages: Mapping[int, Lineage], number: int) -> bool:
    return any(
        meaning.version == number and meaning.lineage in lineages
        for meanings in history.meanings.values()
        for meaning in meanings
    )


@dataclass(frozen=True)
class Interval:
    """A part of a replicaset's log in which a space id has one schema version; `until` is None at the end."""

    replicaset_id: int
    space_id: int
    version: int
    since: LogPosition
    until: LogPosition | None


def _intervals(history: History, lineages: Mapping[int, Lineage], kept: Sequence[int]) -> list[Interval]:
    found = []
    for (replicaset_id, space_id), meanings in history.meanings.items():
        ends = [*(meaning.since for meaning in meanings[1:]), None]
        found += [
            Interval(replicaset_id, space_id, kept.index(one.version), one.since, until)
            for one, until in zip(meanings, ends, strict=True)
            if one.lineage in lineages
        ]
    return found


def _ends(found: Definitions, lineages: Mapping[int, Lineage]) -> list[tuple[int, SpaceChange]]:
    """Return the events that end all versions of a space, with their replicaset ids."""
    result = []
    for number, lineage in lineages.items():
        meanings = found.history.meanings[lineage.replicaset_id, lineage.space_id]
        since = min(meaning.since for meaning in meanings if meaning.lineage == number)
        for change in found.changes[lineage.replicaset_id]:
            is_own = change.space_id == lineage.space_id and change.position >= since
            is_within = lineage.ended is None or change.position <= lineage.ended
            if is_own and is_within and change.kind in (SpaceEvent.TRUNCATED, SpaceEvent.DROPPED):
                result.append((lineage.replicaset_id, change))
    return result


def rules_by_replicaset(log: DataFrame, config: Config) -> dict[int, Rules]:
    """Return the UPDATE rules of replicasets for rows without a server version.

    They come from the header of the newest log file that exists.
    """
    newest = F.max_by(F.struct("source", "file"), F.struct(*ORDER)).alias("newest")
    unknown = log.where(F.col("type").isin("UPDATE", "UPSERT") & F.col(SERVER_VERSION).isNull())
    rows = unknown.groupBy("replicaset_id").agg(newest).collect()
    follower = Follower(parse_options(stream_options(config, State(), 1)))
    found = {}
    for replicaset_id, (source, file) in rows:
        server = server_version_of_file(follower, source, file)
        if server is None:
            LOG.warning("%s of %s is missing: its UPDATEs are computed as by a new server", file, source)
        else:
            found[replicaset_id] = rules_of(server)
    return found


def register_history(warehouse: Warehouse, config: Config, table: str) -> str:
    """Register the history as a temporary view of the session, and return the view's name."""
    name = f"{table}_history"
    history(warehouse, config, table).createOrReplaceTempView(name)
    return name


def _with_versions(log: DataFrame, intervals: Sequence[Interval]) -> DataFrame:
    column: Column = F.lit(None).cast("int")
    place = F.struct(*ORDER)
    for one in intervals:
        here = (F.col("replicaset_id") == one.replicaset_id) & (F.col("space_id") == one.space_id)
        here = here & (place >= _place(one.since))
        if one.until is not None:
            here = here & (place < _place(one.until))
        column = F.when(here, F.lit(one.version)).otherwise(column)
    rows = log.where(F.col("type").isin(*CHANGE_TYPES)).withColumn("layout", column)
    return rows.where("layout IS NOT NULL")


def _with_servers(rows: DataFrame, versions: int) -> tuple[DataFrame, list[str | None]]:
    """Return rows whose `layout` depends on their server too, and the server versions (None: unknown).

    For the n-th server version, n times the number of schema versions is added to `layout`.
    """
    operations = rows.where(F.col("type").isin("UPDATE", "UPSERT"))
    found = operations.select(SERVER_VERSION).distinct().collect()
    servers: list[str | None] = [None, *sorted(row[0] for row in found if row[0] is not None)]
    layout = F.col("layout")
    for number, server in enumerate(servers[1:], start=1):
        own: Column = F.col(SERVER_VERSION) == F.lit(server)
        layout = F.when(own, F.col("layout") + number * versions).otherwise(layout)
    return rows.withColumn("layout", layout), servers


def _place(position: LogPosition) -> Column:
    kinds = ("bigint", "bigint", "int")
    return F.struct(
        *(F.lit(value).cast(kind).alias(n) for value, kind, n in zip(position, kinds, ORDER, strict=True))
    )


def _keyed(rows: DataFrame, versions: Sequence[SchemaVersion]) -> DataFrame:
    timed = F.when(~F.col("file").endswith(".snap"), F.col("timestamp"))
    from_tuple = ~F.col("type").isin("UPDATE", "DELETE")
    data = F.when(from_tuple, F.col("tuple")).otherwise(F.col("key"))
    key = key_columns([one.space for one in versions])(data, F.col("layout"), from_tuple)
    keyed = rows.withColumn("_key", key.getField("key")).withColumn("timestamp", timed)
    return keyed.where("_key IS NOT NULL").select(*KEYS, *ORDER, "epoch", *ROW_COLUMNS)


def _from_known_tuples(rows: DataFrame, cleaned: Collection[int]) -> DataFrame:
    """Return the rows whose previous tuple is stored.

    Parameters
    ----------
    rows : DataFrame
    cleaned : collection of int
        Replicasets with removed rows.

    """
    if not cleaned:
        return rows
    knows = F.when(~F.col("type").isin("UPDATE", "UPSERT"), F.struct(*ORDER))
    first = F.min(knows).over(Window.partitionBy(*KEYS))
    marked = rows.withColumn("_known", F.coalesce(F.struct(*ORDER) >= first, F.lit(False)))
    return marked.where(F.col("_known") | ~F.col("replicaset_id").isin(sorted(cleaned))).drop("_known")


def _with_ends(rows: DataFrame, ends: Sequence[tuple[int, SpaceChange]]) -> DataFrame:
    """Return the rows, and a DELETE of each key that existed before a TRUNCATE or a drop."""
    result = rows
    for replicaset_id, change in ends:
        own = F.col("replicaset_id") == replicaset_id
        before = own & (F.struct(*ORDER) < _place(change.position))
        values = {
            **dict(zip(ORDER, change.position, strict=True)),
            "epoch": change.position.segment // _SEGMENTS,
            "type": "DELETE",
            "lsn": change.lsn,
            "timestamp": change.timestamp,
            "layout": 0,
        }
        kinds = dict(rows.dtypes)
        others = [
            F.lit(values.get(name)).cast(kinds[name]).alias(name) for name in rows.columns if name not in KEYS
        ]
        result = result.unionByName(rows.where(before).select(*KEYS).distinct().select(*KEYS, *others))
    return result


def _with_ranges(rows: DataFrame, log: DataFrame, versions: Sequence[SchemaVersion]) -> DataFrame:
    """Return the rows, and a DELETE of each key that existed before a DELETE_RANGE that covers it."""
    ranges = log.where(F.col("type") == "DELETE_RANGE")
    if ranges.isEmpty():
        return rows
    bounds = bound_columns([one.space for one in versions])(F.col("body"), F.col("layout"))
    ranges = ranges.withColumn("_bounds", bounds).withColumn("type", F.lit("DELETE"))
    keys = rows.groupBy(*KEYS).agg(F.min(F.struct(*ORDER)).alias("_first"))
    result = rows
    # Nearly always all definitions sort their keys in the same way.
    for directions in dict.fromkeys(directions_of(one.space) for one in versions):
        layouts = [i for i, one in enumerate(versions) if directions_of(one.space) == directions]
        own = ranges.where(F.col("layout").isin(layouts)).withColumnRenamed("replicaset_id", "_of")
        begin, end, place = F.col("_bounds.begin"), F.col("_bounds.end"), F.col("_place")
        held = (place >= begin) & ((F.length(end) == 0) | (place < end))
        held = held & (F.col("_of") == F.col("replicaset_id")) & (F.struct(*ORDER) > F.col("_first"))
        placed = keys.withColumn("_place", place_column(directions)(F.col("_key")))
        hits = placed.join(F.broadcast(own), held)
        kinds = dict(rows.dtypes)
        nothing = ("tuple", "operations", "index_base")
        columns = [
            (F.lit(None) if name in nothing else F.col(name)).cast(kinds[name]).alias(name)
            for name in rows.columns
        ]
        result = result.unionByName(hits.select(*columns))
    return result


def _folded(rows: DataFrame, formats: Sequence[TupleFormat]) -> DataFrame:
    carried = [*ORDER, "epoch", "type"]

    def run_(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return history_arrow(batches, KEYS, carried, formats)

    apart = rows.repartition(*KEYS).sortWithinPartitions(*KEYS, *ORDER)
    kinds = dict(rows.dtypes)
    schema = ", ".join([f"`{name}` {kinds[name]}" for name in (*KEYS, *carried)])
    return apart.mapInArrow(run_, f"{schema}, {RESULT_SPARK}")


def _shown(made: DataFrame, versions: Sequence[SchemaVersion], config: Config) -> DataFrame:
    decode = tuple_columns(build_table_layout([one.space for one in versions], config.types, config.spaces))
    of_key = Window.partitionBy(*KEYS).orderBy(*ORDER)
    return made.select(
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


def show(config: Config, space: str, sql: str | None = None) -> None:
    """Print the result of a query about a space's history."""
    spark = spark_session(config, "history")
    warehouse = Warehouse(spark, config.warehouse, config.database)
    view = register_history(warehouse, config, config.spaces.table(space))
    query = sql or f"SELECT * FROM {view} ORDER BY key, replicaset_id, epoch, lsn"
    spark.sql(query).show(truncate=False)


if __name__ == "__main__":
    sys.exit(main("history"))

"""Every version of each key of a space, from when to when: computed from `_changelog`, as the view `<table>_history`.

    spark-submit jobs/history.py --config FILE --space SPACE [--sql QUERY]

    from jobs.history import register_history        # in a session of your own
    register_history(Warehouse(spark, "/data/warehouse"), config, "accounts")
    spark.sql("SELECT key, row.balance, valid_from, valid_to FROM accounts_history WHERE is_current")

Versions are each replicaset's own, as its servers had them; who won between replicasets is in `_conflicts`. An UPDATE's
tuple is computed as the server that wrote the replicaset's newest log would (`udfs.update_rules`); where that file is
not there any more, as a new server would, and a warning says so. It reads the changelog of the space at the newest
epoch's cut, and its view lives in the session: nothing is stored. A space that was followed from a snapshot
begins with what the snapshot held, whose time is not known.
Not here: the fold (`udfs.history`).
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from jobs.batch.columns import check_space, layout_of, type_options
from jobs.batch.control import follow
from jobs.batch.layouts import Layout, Route, Routes, Wipe, route_spaces
from jobs.batch.route import router_of
from jobs.batch.rows import with_keys
from jobs.batch.scan import server_of
from jobs.batch.state import State
from jobs.batch.summary import ControlRow, Order
from jobs.cli import parser, run
from config.deployment import Config
from jobs.options import stream_options
from jobs.session import spark_session
from schemas.errors import UnsupportedError, WarehouseError
from schemas.iproto import SystemSpace
from schemas.space import Space
from sources.xlog.follow import Follower
from sources.xlog.options import parse_options
from tables import epochs
from tables.warehouse import Warehouse
from udfs.history import RESULT_SPARK, ROW_COLUMNS, history_arrow
from udfs.tuple_format import TupleFormat, format_of
from udfs.tuples import tuple_columns
from udfs.update_rules import LATEST, Rules, rules_of

LOG = logging.getLogger(__name__)

CONTROL = (SystemSpace.SPACE, SystemSpace.INDEX, SystemSpace.TRUNCATE)
CHANGES = ("INSERT", "REPLACE", "UPDATE", "UPSERT", "DELETE")

KEYS = ["replicaset_id", "_key"]
ORDER = ["segment", "position", "row"]

_SEGMENTS = 1 << 20
"""More segments than an epoch has: (epoch, segment) become one number in the order of the log."""


def whole_log(warehouse: Warehouse) -> DataFrame:
    """Return the committed rows of `_changelog` at the newest cut; `segment` counts on over the epochs.

    Raises
    ------
    WarehouseError
        No batch is done yet.

    """
    newest = epochs.last(warehouse)
    if newest is None:
        raise WarehouseError(
            "no batch is done yet", warehouse=warehouse.root, advice="run jobs/aggregate.py first"
        )
    rows = warehouse.read("_changelog", newest.versions.get("_changelog"))
    segment = F.col("epoch") * _SEGMENTS + F.col("segment") + _SEGMENTS // 2
    return rows.where("state = 'committed' AND replicaset_id > 0").withColumn("segment", segment)


def routes_of(log: DataFrame, config: Config) -> Routes:
    """Return how spaces were defined, truncated and dropped over the whole log."""
    rows = log.where(F.col("space_id").isin([int(one) for one in CONTROL])).orderBy(*ORDER).collect()
    router = router_of(config.spaces, check_space)
    changes = {}
    for replicaset_id in {row.replicaset_id for row in rows}:
        own = [row for row in rows if row.replicaset_id == replicaset_id]
        snapshots = frozenset(row.segment for row in own if row.file.endswith(".snap"))
        changes[replicaset_id] = follow({}, {}, map(_control, own), snapshots).changes

    def read(replicaset_id: int, space: Space, _unread: bool) -> Any:
        return router(replicaset_id, space, False)  # its rows that could not be read are not in the log

    return route_spaces({}, changes, read)


def _control(row: Any) -> ControlRow:
    key, tuple_, operations, body = (
        None if data is None else bytes(data) for data in (row.key, row.tuple, row.operations, row.body)
    )
    return ControlRow(
        order=Order(row.segment, row.position, row.row),
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
    )


def history(warehouse: Warehouse, config: Config, table: str) -> DataFrame:
    """Return the versions of the keys of a space.

    Parameters
    ----------
    warehouse : Warehouse
    config : Config
        Names which space goes to which table.
    table : str
        The space's table.

    Returns
    -------
    DataFrame
        `key` (canonical, as `_key`), `replicaset_id`, `state` (present, deleted, unfit), `row` (the typed columns),
        `tuple`, `global_id`, `lsn`, `type` (what made the version), `epoch`, `valid_from`, `valid_to`, `is_current`,
        `reason` (why a row could not be applied). Times are null where a snapshot did not tell them.

    Raises
    ------
    WarehouseError
        No space ever went to the table.
    UnsupportedError
        The space was renamed or got another primary key on the way.

    """
    log = whole_log(warehouse)
    routes = routes_of(log, config)
    kept = [number for number, layout in enumerate(routes.layouts) if layout.table == table]
    if not kept:
        raise WarehouseError("no space went to this table", table=table, advice="see _schema.table_name")
    layouts = [routes.layouts[number] for number in kept]
    own = {(layout.replicaset_id, layout.space.id) for layout in layouts}
    for refusal in routes.refusals:
        if (refusal.replicaset_id, refusal.space_id) in own:
            raise UnsupportedError(
                f"the history cannot be told: {refusal.reason}", table=table, advice="ask _changelog itself"
            )
    ways = [(kept.index(route.layout), route) for route in routes.routes if route.layout in kept]
    laid_out = _laid_out(log, ways)
    rules = rules_by_replicaset(laid_out, config)
    formats = [format_of(layout.space, rules.get(layout.replicaset_id, LATEST)) for layout in layouts]
    wipes = [wipe for wipe in routes.wipes if wipe.table == table]
    made = _folded(_with_wipes(_keyed(laid_out, layouts), wipes), formats)
    return _shown(made, layouts, config)


def rules_by_replicaset(log: DataFrame, config: Config) -> dict[int, Rules]:
    """Return how the servers of replicasets compute an UPDATE, by the header of the newest log that has one."""
    newest = F.max_by(F.struct("source", "file"), F.struct(*ORDER)).alias("newest")
    rows = log.where(F.col("type").isin("UPDATE", "UPSERT")).groupBy("replicaset_id").agg(newest).collect()
    follower = Follower(parse_options(stream_options(config, State(), 1)))
    known = {source.name for source in config.sources}
    found = {}
    for replicaset_id, (source, file) in rows:
        server = server_of(follower, source, file) if source in known else None
        if server is None:
            LOG.warning(
                "%s of %s is not there: its UPDATEs are told as a new server computes them", file, source
            )
        else:
            found[replicaset_id] = rules_of(server)
    return found


def register_history(warehouse: Warehouse, config: Config, table: str) -> str:
    """Make the history known to the session as a temporary view, and return the view's name."""
    name = f"{table}_history"
    history(warehouse, config, table).createOrReplaceTempView(name)
    return name


def _laid_out(log: DataFrame, ways: Sequence[tuple[int, Route]]) -> DataFrame:
    column: Column = F.lit(None).cast("int")
    place = F.struct(*ORDER)
    for number, route in ways:
        here = (F.col("replicaset_id") == route.replicaset_id) & (F.col("space_id") == route.space_id)
        here = here & (place >= _place(route.since))
        if route.until is not None:
            here = here & (place < _place(route.until))
        column = F.when(here, F.lit(number)).otherwise(column)
    rows = log.where(F.col("type").isin(*CHANGES)).withColumn("layout", column)
    return rows.where("layout IS NOT NULL")


def _place(order: Order) -> Column:
    kinds = ("bigint", "bigint", "int")
    return F.struct(
        *(F.lit(value).cast(kind).alias(name) for value, kind, name in zip(order, kinds, ORDER, strict=True))
    )


def _keyed(rows: DataFrame, layouts: Sequence[Layout]) -> DataFrame:
    timed = F.when(~F.col("file").endswith(".snap"), F.col("timestamp"))
    keyed = with_keys(rows, layouts).withColumn("_key", F.col("k.key")).withColumn("timestamp", timed)
    return keyed.where("_key IS NOT NULL").select(*KEYS, *ORDER, "epoch", *ROW_COLUMNS)


def _with_wipes(rows: DataFrame, wipes: Sequence[Wipe]) -> DataFrame:
    """Return the rows with a DELETE of each key that was there before a TRUNCATE or a drop."""
    result = rows
    for wipe in wipes:
        own = F.col("replicaset_id") == wipe.replicaset_id
        before = own & (F.struct(*ORDER) < _place(wipe.order))
        values = {
            **dict(zip(ORDER, wipe.order, strict=True)),
            "epoch": wipe.order[0] // _SEGMENTS,
            "type": "DELETE",
            "lsn": wipe.lsn,
            "timestamp": wipe.timestamp,
            "layout": 0,
        }
        kinds = dict(rows.dtypes)
        told = [
            F.lit(values.get(name)).cast(kinds[name]).alias(name) for name in rows.columns if name not in KEYS
        ]
        result = result.unionByName(rows.where(before).select(*KEYS).distinct().select(*KEYS, *told))
    return result


def _folded(rows: DataFrame, formats: Sequence[TupleFormat]) -> DataFrame:
    carried = [*ORDER, "epoch", "type"]

    def run_(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return history_arrow(batches, KEYS, carried, formats)

    apart = rows.repartition(*KEYS).sortWithinPartitions(*KEYS, *ORDER)
    kinds = dict(rows.dtypes)
    schema = ", ".join([f"`{name}` {kinds[name]}" for name in (*KEYS, *carried)])
    return apart.mapInArrow(run_, f"{schema}, {RESULT_SPARK}")


def _shown(made: DataFrame, layouts: Sequence[Layout], config: Config) -> DataFrame:
    decode = tuple_columns(layout_of([layout.space for layout in layouts], type_options(config.types)))
    of_key = Window.partitionBy(*KEYS).orderBy(*ORDER)
    return made.select(
        F.col("_key").alias("key"),
        "replicaset_id",
        "state",
        decode(F.col("tuple"), F.col("layout")).alias("row"),
        *("tuple", "global_id", "lsn", "type", "epoch"),
        F.col("timestamp").alias("valid_from"),
        F.lead("timestamp").over(of_key).alias("valid_to"),
        (F.lead("epoch").over(of_key).isNull() & (F.col("state") != "deleted")).alias("is_current"),
        "reason",
    )


def show(config: Config, options: argparse.Namespace) -> None:
    """Print what a query says of a space's history."""
    spark = spark_session(config, "history")
    warehouse = Warehouse(spark, config.warehouse, config.database)
    view = register_history(warehouse, config, config.spaces.table(options.space))
    query = options.sql or f"SELECT * FROM {view} ORDER BY key, replicaset_id, epoch, lsn"
    spark.sql(query).show(truncate=False)


def main() -> int:
    """Run the command."""
    arguments = parser((__doc__ or "").partition("\n")[0])
    arguments.add_argument("--space", required=True, metavar="SPACE", help="the space's name")
    arguments.add_argument(
        "--sql", metavar="QUERY", help="of the view <table>_history; default: its first rows"
    )
    return run(show, arguments)


if __name__ == "__main__":
    sys.exit(main())

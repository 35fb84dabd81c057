"""Decisions → the Delta tables of spaces.

One MERGE a space's table, side by side; one append where it is empty, by delta-rs where the driver holds the rows.
Typed columns are made here and only here, from the exact tuple. What does not fit its format goes to `_quarantine` and
stays a version (`unfit`), so that a later UPDATE finds it.
Not here: what wins (`jobs.batch.resolve`), what other tables tell of it (`jobs.batch.tell`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from jobs.batch.base import PRESENT
from jobs.batch.masks import Mask
from schemas.layout import ERROR_COLUMN, TableLayout
from schemas.names import exact_table
from schemas.space import Space
from schemas.tables import VERSION_COLUMNS
from tables.spaces import merge_rows
from tables.warehouse import Warehouse
from tables.write import BESIDE
from udfs.literals import array_literal
from udfs.tuples import decode_tuples, tuple_columns

NO_FORMAT = -1


@dataclass(frozen=True)
class Target:
    """One space's table in a batch.

    Parameters
    ----------
    number : int
        In column `table` of the frames.
    name : str
        The table's.
    layout : TableLayout
        Its typed columns.
    formats : mapping of int to int
        Replicaset id to the index of its format in `layout`.
    is_empty : bool
        Whether nothing was ever written to it.
    spaces : tuple of Space
        The space's definitions, in the order of the layout's formats.
    mask : Mask or None
        Of a table that readers see without some fields.

    """

    number: int
    name: str
    layout: TableLayout
    formats: Mapping[int, int]
    is_empty: bool
    spaces: tuple[Space, ...] = ()
    mask: Mask | None = None

    @property
    def exact(self) -> str:
        """The table that holds the exact tuples."""
        return self.name if self.mask is None else exact_table(self.name)

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables that a change of a row goes to."""
        return tuple(dict.fromkeys((self.exact, self.name)))


def with_writes(decided: DataFrame) -> DataFrame:
    """Return the decided versions with `put` (it becomes the row) and `writes` (its key's row changes by it)."""
    put = F.col("wins") & (F.col("state") == PRESENT)
    moved = F.col("changed") | ~F.col("is_row")
    gone = ~put & F.coalesce(F.col("winner.state") != PRESENT, F.lit(True))
    last_of_key = F.col("is_row") | (
        F.col("changed") & F.col("row_replicaset_id").eqNullSafe(F.col("replicaset_id"))
    )
    writes = (put & moved) | (gone & last_of_key)
    return decided.withColumn("writes", F.coalesce(writes, F.lit(False))).withColumn("put", put)


_CARRIED = frozenset(
    ("_key", "tuple", "global_id", "replicaset_id", "lsn", "timestamp", "created", "began", "put")
)
"""What a table's rows are made of, beside their typed columns."""


def typed(changes: DataFrame, target: Target) -> DataFrame:
    """Return what changes in a table, with its columns in a struct `typed`; its `_error` says what does not fit.

    Parameters
    ----------
    changes : DataFrame
        At least put, tuple, replicaset_id.

    """
    decode = tuple_columns(target.layout)
    tuple_ = F.when(F.col("put"), F.col("tuple"))
    keep = F.col("put") & F.col("typed").getField(ERROR_COLUMN).isNull()
    return (
        changes.select([name for name in changes.columns if name in _CARRIED])
        .withColumn("typed", decode(tuple_, format_column(target)))
        .withColumn("keep", keep)
    )


@dataclass(frozen=True)
class Here:
    """What changes in a table, in the driver: no task and no worker types it.

    Parameters
    ----------
    rows : pyarrow.Table
        The changes.
    schema : StructType
        Of `rows`.
    typed : pyarrow.StructArray
        Their `TableLayout.decoded_schema`.
    keep : pyarrow.Array
        Whether a change puts a tuple that fits.

    """

    rows: pa.Table
    schema: StructType
    typed: pa.StructArray
    keep: pa.Array

    @property
    def misfits(self) -> int:
        """How many tuples do not fit."""
        return int(self.rows["put"].combine_chunks().true_count - self.keep.true_count)

    def frame(self, spark: SparkSession, target: Target) -> DataFrame:
        """Return the same as `typed`."""
        rows, schema = self.rows, StructType(list(self.schema.fields))
        # Columns side by side, as pyspark loses the nulls of a variant within a struct.
        fields = target.layout.decoded_schema().fields
        for number, field in enumerate(fields):
            rows = rows.append_column(f"typed_{number}", self.typed.field(number))
            schema = schema.add(f"typed_{number}", field.dataType)
        frame = spark.createDataFrame(rows.append_column("keep", self.keep), schema.add("keep", "boolean"))
        whole = F.struct(*[F.col(f"typed_{number}").alias(field.name) for number, field in enumerate(fields)])
        return frame.select("*", whole.alias("typed"))

    def columns(self, target: Target) -> pa.Table:
        """Return the columns of the table."""
        whole = {f.name: self.typed.field(f.name) for f in target.layout.spark_schema()}
        return pa.table(whole | {name: self.rows[source] for name, source in _sources()})

    def changes(self, target: Target) -> pa.Table:
        """Return the columns of the table, and `tables.write.BESIDE`."""
        keep, began = BESIDE
        return self.columns(target).append_column(keep, self.keep).append_column(began, self.rows["began"])


def typed_here(changes: pa.Table, schema: StructType, target: Target) -> Here:
    """Type what changes in a table, as `typed` does, of rows that the driver holds.

    Parameters
    ----------
    changes : pyarrow.Table
    schema : StructType
        Of `changes`.

    """
    put = changes["put"].combine_chunks()
    tuples = pc.if_else(put, changes["tuple"].combine_chunks(), pa.scalar(None, pa.binary()))
    known = pa.array(target.formats.keys(), pa.int32())
    # A tuple that a policy made bears minus the id of the replicaset whose format it has.
    place = pc.index_in(pc.abs(changes["replicaset_id"].combine_chunks()), known)
    which = pa.array(target.formats.values(), pa.int32()).take(place)
    decoded = decode_tuples(tuples, target.layout, which)
    return Here(changes, schema, decoded, pc.and_(put, pc.is_null(decoded.field(ERROR_COLUMN))))


def format_column(target: Target) -> Column:
    """Return the index of the format of a version's tuple in the table's layout."""
    indexes = [target.formats.get(i, NO_FORMAT) for i in range(max(target.formats, default=0) + 1)]
    # A tuple that a policy made bears minus the id of the replicaset whose format it has.
    index = F.get(array_literal(indexes, "int"), F.abs(F.col("replicaset_id")))
    return F.nullif(index, F.lit(NO_FORMAT))


def table_columns(target: Target) -> dict[str, Column]:
    """Return the columns of a space's table, from a frame of typed changes."""
    columns = {field.name: F.col("typed").getField(field.name) for field in target.layout.spark_schema()}
    return columns | {name: F.col(source) for name, source in _sources()}


def _sources() -> Iterator[tuple[str, str]]:
    """Return the columns that every space's table has, with those of a version."""
    sources = ("_key", "tuple", "global_id", "replicaset_id", "lsn", "timestamp", "created")
    return zip((name for name, _ in VERSION_COLUMNS), sources, strict=True)


def write_table(warehouse: Warehouse, target: Target, changes: DataFrame, *, goes_on: bool) -> None:
    """Write one space's table, and the one that readers see of a masked one.

    Parameters
    ----------
    changes : DataFrame
        From `typed`; of a masked one read twice.
    goes_on : bool
        Whether `began` decides if the row before lends its `_created`: the changes have not met it.

    """
    for table in target.tables:
        _write(warehouse, target, table, changes, goes_on=goes_on)


def _write(warehouse: Warehouse, target: Target, table: str, changes: DataFrame, *, goes_on: bool) -> None:
    columns = table_columns(target)
    if target.mask is not None and table == target.name:
        columns = target.mask.columns(columns, target.layout)
    beside = dict(zip(BESIDE, (F.col("keep"), F.col("began")), strict=True))
    wanted = changes.select(*[column.alias(name) for name, column in (columns | beside).items()])
    if target.is_empty:
        warehouse.append(table, wanted.where(BESIDE[0]).drop(*BESIDE))
        return
    merge_rows(warehouse, table, wanted, list(columns), goes_on=goes_on)


def write_here(warehouse: Warehouse, target: Target, here: Here, *, goes_on: bool) -> int:
    """Write as `write_table` does, a small table without Spark; return how many tuples do not fit."""
    by_spark = list(target.tables)
    if target.is_empty:
        warehouse.append_arrow(target.exact, here.columns(target).filter(here.keep))
        by_spark.remove(target.exact)
    elif warehouse.merge_arrow(target.exact, here.changes(target), goes_on=goes_on):
        by_spark.remove(target.exact)
    if by_spark:
        changes = here.frame(warehouse.spark, target)
        for table in by_spark:
            _write(warehouse, target, table, changes, goes_on=goes_on)
    return here.misfits

"""What is expected of the tables of spaces, made from the newest definitions of their spaces in `_schema`.

Each tuple is decoded once more by its replicaset's definition (`udfs.tuples`), and must say what the typed columns say.
Variants have no equality: they are compared as JSON. A row whose replicaset defines the space no more is not decoded,
and a column of another type than its field's is told as such, not compared.
Not here: unique secondary indexes (`jobs.secondary`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType, VariantType

from config.deployment import Config
from jobs.validation.check import Check, Cut, Facts, few, shown
from jobs.validation.suites import known_ids, no_later, present, unique
from pipeline.encode.columns import encoding_of
from pipeline.plan.tables import TablePlan, current_plan
from pipeline.state import State
from pipeline.write.table_change import table_schema
from schemas.errors import UnsupportedError
from schemas.layout import ERROR_COLUMN, MISFITS_COLUMN
from schemas.names import held_in
from schemas.types import Carrier
from udfs.tuples import tuple_columns

UNLIKE = "_unlike"
"""The columns that do not say what `_tuple` says, joined by commas, or why it cannot be decoded. A column whose value
does not fit says what `_tuple` says if it is null and `_misfits` names it."""

_ABSENT = "none"
_COLUMNS = StructType(
    [StructField(name, StringType()) for name in ("table", "column", "expected_type", "found_type")]
)


@dataclass(frozen=True)
class SpaceTable:
    """A space's table at the cut, and how it must look.

    Parameters
    ----------
    name : str
    rows : DataFrame
    plan : TablePlan or None
        None where no replicaset defines the space, or two contradict each other.

    """

    name: str
    rows: DataFrame
    plan: TablePlan | None

    def found(self) -> Mapping[str, DataType]:
        """Return the columns that the table has."""
        return {one.name: one.dataType for one in self.rows.schema}

    def wanted(self) -> Mapping[str, DataType]:
        """Return the columns that it must have; none where nobody knows."""
        if self.plan is None:
            return {}
        wanted = {one.name: one.dataType for one in table_schema(encoding_of(self.plan))}
        if MISFITS_COLUMN not in self.found():
            # No batch of this release has written the table yet: all of its rows fit.
            del wanted[MISFITS_COLUMN]
        return wanted


def space_tables(cut: Cut, state: State, config: Config, names: Iterable[str]) -> list[SpaceTable]:
    """Return the tables of spaces with what the newest definitions make of them."""
    return [
        SpaceTable(name, cut(held_in(state.versions, name)), _plan(state, config, name)) for name in names
    ]


def _plan(state: State, config: Config, table: str) -> TablePlan | None:
    try:
        return current_plan(state, config, table)
    except UnsupportedError:
        return None


def format_column(plan: TablePlan) -> Column:
    """Return the index of the format of a version's tuple, by the column `replicaset_id`; null where it has none."""
    indexes = [F.lit(plan.formats.get(i)).cast("int") for i in range(max(plan.formats, default=0) + 1)]
    # A tuple that a policy made has minus the id of the replicaset whose format it has.
    return F.get(F.array(*indexes), F.abs(F.col("replicaset_id")))


def columns_check(cut: Cut, tables: Sequence[SpaceTable]) -> Check:
    """Return what is expected of the columns of all tables of spaces: the types of the newest definitions."""
    import great_expectations.expectations as gxe

    rows = [
        {
            "table": one.name,
            "column": name,
            "expected_type": _said(wanted, name),
            "found_type": _said(found, name),
        }
        for one in tables
        for wanted, found in [(one.wanted(), one.found())]
        if wanted
        for name in dict.fromkeys([*wanted, *found])
    ]
    same = gxe.ExpectColumnPairValuesToBeEqual(
        column_A="found_type",
        column_B="expected_type",
        description="each column has the type of its field in the newest definition",
    )
    frame = few(cut("_schema").sparkSession, rows, _COLUMNS)
    return Check("_schema_columns", frame, (same,), ("table", "column", "expected_type", "found_type"))


def _said(columns: Mapping[str, DataType], name: str) -> str:
    return columns[name].simpleString() if name in columns else _ABSENT


def space_check(table: SpaceTable, facts: Facts, own: Sequence[Any] = ()) -> Check:
    """Return what is expected of one table of a space.

    Parameters
    ----------
    table : SpaceTable
    facts : Facts
    own : sequence
        Expectations of the user's.

    """
    import great_expectations.expectations as gxe

    signs = [sign * one for one in facts.replicasets for sign in (1, -1)]
    expected = [
        unique("_key", "no two rows have one primary key"),
        *(present(column) for column in ("_key", "_tuple", "_replicaset_id")),
        known_ids("_global_id", facts),
        gxe.ExpectColumnValuesToBeInSet(
            column="_replicaset_id",
            value_set=signs,
            description="_replicaset_id is a replicaset that was followed",
        ),
        *no_later("_timestamp", facts),
        *no_later("_created", facts),
    ]
    if table.plan is not None:
        said = "typed columns say what _tuple says"
        expected.append(gxe.ExpectColumnValuesToBeNull(column=UNLIKE, description=said))
        # Which columns are null because their values do not fit, `UNLIKE` looks at.
        fits = f"{MISFITS_COLUMN} IS NULL" if MISFITS_COLUMN in table.found() else None
        expected += [present(column, fits) for column in _never_null(table)]
    return Check(table.name, compared(table), (*expected, *own), ("_key",))


def _never_null(table: SpaceTable) -> list[str]:
    if table.plan is None:
        return []
    layout, found = table.plan.layout, table.found()
    fields = zip(layout.names, layout.fields, strict=True)
    # What may hold anything may hold nil.
    kept = [(n, f) for n, f in fields if layout.carrier_of(f) is not Carrier.VARIANT]
    return [name for name, one in kept if not one.is_nullable and name in found]


def compared(table: SpaceTable) -> DataFrame:
    """Return the rows as Great Expectations can read them, with `UNLIKE`."""
    found = table.found()
    if table.plan is None:
        return table.rows.select(*[shown(name, kind) for name, kind in found.items()])
    row = F.struct(*[F.col(f"`{name}`") for name in found]).alias("row")
    replicaset = F.abs("_replicaset_id").alias("replicaset_id")
    apart = table.rows.select(row, replicaset, F.col("_tuple").alias("tuple"))
    which = format_column(table.plan)
    tuple_ = F.when(which.isNotNull(), F.col("tuple"))
    decode = tuple_columns(table.plan.layout)
    decoded = apart.withColumn("typed", decode(tuple_, F.coalesce(which, F.lit(0))))
    same = [F.when(tuple_.isNotNull() & ~_same(name, kind), F.lit(name)) for name, kind in _comparable(table)]
    typed = F.col("typed")
    error = F.when(typed.getField(MISFITS_COLUMN).isNull(), typed.getField(ERROR_COLUMN))
    unlike = F.coalesce(error, F.nullif(F.concat_ws(",", *same), F.lit(""))).alias(UNLIKE)
    rows = decoded.select("row", unlike).select("row.*", UNLIKE)
    return rows.select(*[shown(name, kind) for name, kind in found.items()], UNLIKE)


def _comparable(table: SpaceTable) -> list[tuple[str, DataType]]:
    if table.plan is None:
        return []
    found = table.found()
    typed = {one.name: one.dataType for one in table.plan.layout.spark_schema()}
    return [(name, kind) for name, kind in typed.items() if found.get(name) == kind]


def _same(name: str, kind: DataType) -> Column:
    held, said = F.col("row").getField(name), F.col("typed").getField(name)
    if isinstance(kind, VariantType):
        return F.to_json(held).eqNullSafe(F.to_json(said))
    return held.eqNullSafe(said)

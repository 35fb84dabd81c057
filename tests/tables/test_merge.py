"""A batch's changes are merged by delta-rs into a small table, by Spark into another one: to the same rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, VariantType

from schemas.errors import WarehouseError
from schemas.types import VARIANT_ARROW
from tables import spaces, warehouse, write
from tables.read import rows_of
from tables.warehouse import Warehouse

pytestmark = pytest.mark.spark

FIELDS = ("keep", "began", "s", "t", "select", "_key__q", "note__u0_4")
"""Columns of fields whose names mean something to an engine or to ourselves."""

SCHEMA = spaces.table_schema(
    StructType(
        [
            *(StructField(name, StringType()) for name in FIELDS),
            StructField("any", VariantType()),
            StructField("number", IntegerType()),
        ]
    )
)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
VARIANTS = (None, "null", "7", '"text"', '[1, {"a": null}]')


def made(spark: SparkSession, rows: list[dict[str, Any]]) -> tuple[pa.Table, DataFrame]:
    """Return rows as the driver holds them, and as Spark does."""
    columns = [field for field in SCHEMA if not isinstance(field.dataType, VariantType)]
    plain = StructType([*columns, StructField("json", StringType())])
    for name in write.BESIDE:
        plain = plain.add(name, "boolean")
    frame = spark.createDataFrame([tuple(row.get(f.name) for f in plain) for row in rows], plain)
    return frame.drop("json").toArrow().append_column("any", variants(spark, rows)), frame.withColumn(
        "any", F.parse_json("json")
    ).drop("json")


def variants(spark: SparkSession, rows: list[dict[str, Any]]) -> pa.Array:
    # PySpark loses the nulls of a column of variants on its way here, so there are none on it.
    given = spark.createDataFrame([(row["json"] or "0",) for row in rows], "json string")
    said = given.select(F.parse_json("json").alias("any")).toArrow()["any"].to_pylist()
    parts = zip(rows, said, strict=True)
    return pa.array([None if row["json"] is None else one for row, one in parts], VARIANT_ARROW)


def change(key: int, **values: Any) -> dict[str, Any]:
    return {
        **{name: f"{name} {key}" for name in FIELDS},
        "json": VARIANTS[key % len(VARIANTS)],
        "_key": bytes([key]),
        "_tuple": b"\x91" + bytes([key]),
        "_global_id": 1,
        "_replicaset_id": 1,
        "_lsn": key,
        "_timestamp": NOON,
        "_created": NOON,
        "_keep": True,
        "_began": True,
        **values,
    }


CHANGES = st.lists(
    st.builds(
        change,
        st.integers(0, 7),
        number=st.none() | st.integers(-(2**31), 2**31 - 1),
        _lsn=st.integers(1, 2**63 - 1),
        _timestamp=st.none() | st.integers(-3, 3).map(lambda hours: NOON + timedelta(hours=hours)),
        _created=st.none() | st.integers(-3, 3).map(lambda hours: NOON + timedelta(hours=hours)),
        _keep=st.booleans(),
        _began=st.booleans(),
    ),
    unique_by=lambda row: row["_key"],
    max_size=6,
)


def shown(found: Warehouse, table: str) -> list[str]:
    rows = (
        found.read(table).withColumn("kind", F.schema_of_variant("any")).withColumn("any", F.to_json("any"))
    )
    return sorted(str(tuple(row)) for row in rows.collect())


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(CHANGES, min_size=2, max_size=3), goes_on=st.booleans(), number=st.uuids())
def test_both_engines_merge_to_the_same_rows(
    spark: SparkSession, tmp_path: Path, batches: list[Any], goes_on: bool, number: Any
) -> None:
    place = Warehouse(spark, str(tmp_path), f"w{number.hex}")
    for table in ("here", "there"):
        place.create(table, SCHEMA)
    # All rows are there before: what lends something needs a row to lend it.
    for batch in [[change(key) for key in range(4)], *batches]:
        arrow, frame = made(spark, batch)
        assert place.merge_arrow("here", arrow, goes_on=goes_on)
        spaces.merge_rows(place, "there", frame, SCHEMA.names, goes_on=goes_on)
        assert shown(place, "here") == shown(place, "there")


def test_what_a_row_lends_its_successor(spark: SparkSession, tmp_path: Path) -> None:
    place = Warehouse(spark, str(tmp_path))
    place.create("held", SCHEMA)
    hour = timedelta(hours=1)
    place.merge_arrow("held", made(spark, [change(key) for key in range(4)])[0], goes_on=True)
    later = [
        change(0, _created=NOON + hour, _timestamp=NOON + hour, _began=False),
        change(1, _created=NOON + hour, _timestamp=NOON - hour, _began=False),
        change(2, _created=NOON + hour, _timestamp=NOON - hour, _began=True),
        change(3, _keep=False),
    ]
    place.merge_arrow("held", made(spark, later)[0], goes_on=True)
    found = {r["_key"][0]: (r["_created"], r["_timestamp"]) for r in rows_of(place.opened("held"))}
    assert found == {0: (NOON, NOON + hour), 1: (NOON, NOON), 2: (NOON + hour, NOON - hour)}


def test_one_commit_that_says_whose_it_is(spark: SparkSession, tmp_path: Path) -> None:
    place = Warehouse(spark, str(tmp_path))
    place.create("held", SCHEMA)
    place.merge_arrow("held", made(spark, [change(1)])[0], goes_on=False)
    (last, *_) = DeltaTable(place.path("held")).history(1)
    assert (last["version"], last["operation"], last["userMetadata"]) == (1, "MERGE", write.MARK)


def test_other_columns_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = Warehouse(spark, str(tmp_path))
    place.create("held", SCHEMA)
    arrow, _ = made(spark, [change(1)])
    with pytest.raises(WarehouseError, match=r"other columns.*number"):
        place.merge_arrow("held", arrow.drop_columns(["number"]), goes_on=False)


@pytest.mark.parametrize(
    "feature", ["delta.enableDeletionVectors", "delta.enableRowTracking", "delta.columnMapping.mode"]
)
def test_what_users_turn_on_is_left_to_spark(spark: SparkSession, tmp_path: Path, feature: str) -> None:
    place = Warehouse(spark, str(tmp_path))
    place.create("held", SCHEMA)
    value = "name" if feature.endswith("mode") else "true"
    spark.sql(f"ALTER TABLE delta.`{place.path('held')}` SET TBLPROPERTIES ('{feature}' = '{value}')")
    before = place.version("held")
    arrow, frame = made(spark, [change(1), change(2)])
    assert not place.merge_arrow("held", arrow, goes_on=False)
    assert place.version("held") == before
    spaces.merge_rows(place, "held", frame, SCHEMA.names, goes_on=False)
    gone = made(spark, [change(2, _keep=False)])[1]
    spaces.merge_rows(place, "held", gone, SCHEMA.names, goes_on=False)
    keys = StructType([field for field in SCHEMA if field.name == "_key"])
    assert [row[0] for row in place.near("held", None, keys).collect()] == [b"\x01"]


def test_a_large_table_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Warehouse(spark, str(tmp_path))
    place.create("held", SCHEMA)
    arrow, _ = made(spark, [change(1)])
    assert place.merge_arrow("held", arrow, goes_on=False)
    monkeypatch.setattr(warehouse, "KEYED_BYTES", 10)
    assert not place.merge_arrow("held", arrow, goes_on=False)

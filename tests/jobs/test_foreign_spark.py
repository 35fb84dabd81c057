"""Spark as the other writer: what each of its commands does to a table of a space, and how the table is mended."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from observe.deployment_problems import deployment_problems
from pipeline.requests.mend import mend_tables
from tests.pipeline.test_set_aside import HIT, OTHER, Two
from tests.soaked import partly_soaked

MAPPED = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"

HARMLESS = {
    "optimize": ("OPTIMIZE {t}",),
    "z-order": ("OPTIMIZE {t} ZORDER BY (id)",),
    "vacuum": ("VACUUM {t}",),
    "properties": ("ALTER TABLE {t} SET TBLPROPERTIES ('note' = 'x')",),
    "comment": ("COMMENT ON TABLE {t} IS 'a table'",),
    "change data feed": ("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",),
    "column": ("ALTER TABLE {t} ADD COLUMN note STRING",),
    "column, then optimize": ("ALTER TABLE {t} ADD COLUMN note STRING", "OPTIMIZE {t}"),
    "deletion vectors": ("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",),
}

HARMFUL = {
    "delete": ("DELETE FROM {t} WHERE id > 2",),
    "delete by vectors": (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "DELETE FROM {t} WHERE id > 2",
    ),
    "update": ("UPDATE {t} SET value = 0",),
    "merge": ("MERGE INTO {t} USING (SELECT 3 AS k) ON id = k WHEN MATCHED THEN DELETE",),
    "insert": ("INSERT INTO {t} SELECT * FROM {t} LIMIT 1",),
    "restore": ("RESTORE TABLE {t} TO VERSION AS OF 0",),
    "overwrite": ("INSERT OVERWRITE {t} SELECT * FROM {t} LIMIT 1",),
    "rename column": (MAPPED, "ALTER TABLE {t} RENAME COLUMN name TO called"),
    "drop column": (MAPPED, "ALTER TABLE {t} DROP COLUMN name"),
    "column mapping": (MAPPED,),
    "constraint": ("ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0)",),
    "row tracking": ("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",),
    "clustering": ("ALTER TABLE {t} CLUSTER BY (id)",),
    "in-commit timestamps": (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')",
    ),
    "v2 checkpoint": (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '1')",
        "INSERT INTO {t} SELECT * FROM {t} WHERE false",
    ),
    "append-only": ("ALTER TABLE {t} SET TBLPROPERTIES ('delta.appendOnly' = 'true')",),
    "type widening": ("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",),
}


def act(spark: SparkSession, two: Two, statements: tuple[str, ...]) -> None:
    for one in statements:
        spark.sql(one.format(t=f"delta.`{two.path}`"))


@pytest.mark.spark
@pytest.mark.parametrize(
    "change",
    partly_soaked(["column, then optimize"], [one for one in HARMLESS if one != "column, then optimize"]),
)
def test_what_changes_no_rows_makes_no_difference(spark: SparkSession, tmp_path: Path, change: str) -> None:
    two = Two(tmp_path)
    two.tables.run()
    with two.tables.writer() as (_, writer):
        act(spark, two, HARMLESS[change])
        two.write(range(4, 9), 2)
        two.tables.batch(writer)
    act(spark, two, HARMLESS[change] if "column" not in change else ("VACUUM {t}",))
    two.write(range(7, 12), 3)
    two.tables.run()
    assert two.rows("hit") == two.winners(HIT)
    assert deployment_problems(two.tables.config()) == []


IN_SUITE = ["merge", "v2 checkpoint"]


@pytest.mark.spark
@pytest.mark.parametrize("change", partly_soaked(IN_SUITE, [one for one in HARMFUL if one not in IN_SUITE]))
def test_a_changed_table_is_set_aside_and_rebuilt(spark: SparkSession, tmp_path: Path, change: str) -> None:
    two = Two(tmp_path)
    two.tables.run()
    with two.tables.writer() as (_, writer):
        act(spark, two, HARMFUL[change])
        two.write(range(4, 9), 2)
        two.tables.batch(writer)
    config = two.tables.config()
    named = {
        one.condition for one in deployment_problems(config) if one.subject in ("table hit", "space hit")
    }
    assert named == {"table_changed", "spaces_refused"}
    assert two.rows("other") == two.winners(OTHER)
    two.snapshot()
    with two.tables.writer() as (warehouse, writer):
        two.write(range(7, 10), 3)
        two.tables.batch(writer)
        mend_tables(config, warehouse, writer, "hit", "mend")
    two.write(range(2, 11), 4)
    two.tables.run()
    assert two.rows("hit") == two.winners(HIT)
    assert deployment_problems(config) == []
    assert spark.read.format("delta").load(str(two.path)).count() == len(two.winners(HIT))
    assert DeltaTable(str(two.path)).version() > 2

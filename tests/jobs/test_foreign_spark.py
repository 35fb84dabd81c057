"""Spark as the other writer: what each of its commands does to a table of a space, and how the table is mended."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.pipeline.test_set_aside import (
    HIT,
    MOMENTS,
    Act,
    Two,
    is_set_aside_and_rebuilt,
    makes_no_difference,
)
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
    "another type": ("CREATE OR REPLACE TABLE {t} USING delta AS SELECT CAST(id AS STRING) AS id FROM {t}",),
    "a default": (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
        "ALTER TABLE {t} ALTER COLUMN name SET DEFAULT 'x'",
    ),
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


def acts(spark: SparkSession, two: Two, *statements: str) -> Act:
    def act(_table: DeltaTable) -> None:
        for one in statements:
            spark.sql(one.format(t=f"delta.`{two.path}`"))

    return act


def cases(changes: Mapping[str, object], *in_suite: tuple[str, str]) -> list[Any]:
    return partly_soaked(in_suite, [case for case in product(changes, MOMENTS) if case not in in_suite])


@pytest.mark.spark
@pytest.mark.parametrize(("change", "when"), cases(HARMLESS, ("column, then optimize", MOMENTS[1])))
def test_what_changes_no_rows_makes_no_difference(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, when: str
) -> None:
    two = Two(tmp_path)
    makes_no_difference(two, acts(spark, two, *HARMLESS[change]), when, monkeypatch)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("change", "when"), cases(HARMFUL, ("merge", MOMENTS[1]), ("v2 checkpoint", MOMENTS[0]))
)
def test_a_changed_table_is_set_aside_and_rebuilt(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, when: str
) -> None:
    two = Two(tmp_path)
    is_set_aside_and_rebuilt(two, acts(spark, two, *HARMFUL[change]), when, monkeypatch)
    assert spark.read.format("delta").load(str(two.path)).count() == len(two.winners(HIT))

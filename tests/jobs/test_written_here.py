"""A first batch that the driver writes without Spark, and one that Spark writes: equal rows for every reader."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import VariantType

from tests.jobs.deployment import Deployment
from tests.truth import own

pytestmark = pytest.mark.spark

SPACES = ("types", "docs", "auto", "keys_decimal", "accounts")
"""All field types; tuples without a format, whose fields are variants; fields of any type; keys; a MERGE later."""


def deployed(folder: Path, **settings: Any) -> Deployment:
    spaces, types = {"include": list(SPACES)}, {"nested": "variant"}
    return Deployment(folder, {"a1": own().directory("a1")}, spaces=spaces, types=types, **settings)


def plain(rows: DataFrame) -> list[str]:
    """Return rows as sorted texts; variants in Spark's form, with their types."""
    columns = [
        F.struct(F.to_json(F.col(f"`{field.name}`")), F.schema_of_variant(F.col(f"`{field.name}`")))
        if isinstance(field.dataType, VariantType)
        else F.col(f"`{field.name}`")
        for field in rows.schema
    ]
    return sorted(str(tuple(row)) for row in rows.select(*columns).collect())


def test_both_executors_write_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    one, other = deployed(tmp_path / "here"), deployed(tmp_path / "there", local_bytes=1)
    one.write(max_bytes_per_trigger=1 << 30)
    other.run(max_bytes_per_trigger=1 << 30)
    here, there = one.opened(spark), other.opened(spark)
    found: dict[str, Any] = {name: (here.read(name), there.read(name)) for name in SPACES}
    for name, (ours, theirs) in found.items():
        assert ours.schema == theirs.schema
        assert plain(ours) == plain(theirs) != [], name

"""A warehouse and a checkpoint in folders with unusual names work; others are refused by the configuration."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.jobs.deployment import Deployment
from tests.soaked import partly_soaked
from tests.truth import OWN_ROOT
from warehouse import catalog

A = OWN_ROOT / "2.6.0" / "a1"


@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    partly_soaked(
        ["ä#b c'd%e"], ["a%b", "a b", "a#b", "ä", "a?b", "a*b", "a{b}", "a'b", 'a"b', "a`b", "a;b", "a=b"]
    ),
)
def test_a_folder_with_an_unusual_name_works(tmp_path: Path, spark: SparkSession, name: str) -> None:
    deployment = Deployment(tmp_path / name, {"a1": A})
    deployment.run()
    warehouse = deployment.opened(spark)
    without = len(deployment.rows("accounts", ["_key"]))
    assert without > 0
    assert warehouse.read("accounts").count() == without
    catalog.register_tables(warehouse, ["accounts"])
    assert spark.table(f"{deployment.database}.accounts").count() == without
    assert [one.name for one in tmp_path.iterdir()] == [name]

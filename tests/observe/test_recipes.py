"""The recipes of docs/sql.md, run on a default deployment: exact sums, and nested values that can be read."""

import re
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from observe.sql_views import view_statements
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment
from tests.udfs.messages import EXACT, decimal_ext

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|sql)\n((?:#|--) (\w+).*?)```", PAGE, re.DOTALL)
RECIPES = [(f"{name} {i}", text) for i, (language, text, name) in enumerate(BLOCKS) if language == "python"]
FOLDER = "/data/warehouse/aggregator.db"

BALANCES = ("12345678901234567.01", "0.020000000000000001", "-0.3", "9999999999999999999.5")
with localcontext(EXACT):
    TOTAL = sum((Decimal(text) for text in BALANCES), Decimal(0))
COLORS = [("red", Decimal("12345678901234567.01"), 7), ("blue", Decimal("0.5"), 1)]
NAMES = [(1, "Ann"), (2, "Bob")]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = tmp_path_factory.mktemp("recipes")
    node = Node(folder, "a1").define(600, "accounts", (("id", "unsigned"), ("balance", "decimal")))
    for number, text in enumerate(BALANCES):
        node.put(600, number, decimal_ext(text))
    node.define(601, "items", (("id", "unsigned"), ("tags", "map")))
    for number, (color, price, size) in enumerate(COLORS):
        node.put(601, number, {"color": color, "price": decimal_ext(str(price)), "sizes": [size, 2]})
    node.define(602, "docs", (("id", "unsigned"),)).redefine(602, "docs", ())
    for number, name in NAMES:
        node.put(602, number, {"name": name})
    return Deployment.aggregated(folder, node)


def test_the_page_has_a_recipe_for_each_reader() -> None:
    names = [name.split()[0] for name, _ in RECIPES]
    assert names == ["Polars", "DuckDB", "pandas", "DuckDB", "Polars", "pandas"]


@pytest.mark.parametrize(("name", "recipe"), RECIPES, ids=[name for name, _ in RECIPES])
def test_a_recipe_finds_what_the_server_has(name: str, recipe: str, deployment: Deployment) -> None:
    found: dict[str, Any] = {}
    with localcontext():
        exec(recipe.replace(FOLDER, str(deployment.folder / "warehouse" / "aggregator.db")), found)
    if "total" in found:
        assert found["total"] == TOTAL, name
    else:
        assert found["colors"] == COLORS
        assert found["names"] == NAMES


@pytest.mark.spark
def test_spark_finds_the_same(spark: SparkSession, deployment: Deployment) -> None:
    # Another test of the session may have registered tables of a folder that is gone.
    spark.sql("DROP DATABASE IF EXISTS aggregator CASCADE")
    for statement in view_statements(deployment.config(), [], words={"accounts", "items", "docs"}):
        spark.sql(statement)
    (total,) = spark.sql("SELECT sum(balance) FROM aggregator.accounts").first() or (None,)
    assert total == TOTAL
    (text,) = [text for language, text, name in BLOCKS if language == "sql" and name == "Spark"]
    colors, names = (one for one in text.split(";\n") if one.strip())
    assert sorted(tuple(row) for row in spark.sql(colors.split("\n", 1)[1]).collect()) == sorted(COLORS)
    assert sorted(tuple(row) for row in spark.sql(names.split("\n", 1)[1]).collect()) == [
        ("1", "Ann"),
        ("2", "Bob"),
    ]

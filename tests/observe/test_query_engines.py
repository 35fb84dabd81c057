"""The engines of the report: the same rows from Spark and without it, and which one is taken."""

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from observe import query_engines
from observe.query_engines import LocalEngine, SparkEngine, engine_of
from observe.report.facts import collect_facts
from observe.report.printed_queries import all_result_lines
from tests.jobs.deployment import Deployment
from tests.truth import own
from warehouse.warehouse import Warehouse


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Return the tables of a recording in which both replicasets write the same keys."""
    sources = {name: own().directory(name) for name in ("a1", "b1")}
    made = Deployment(tmp_path_factory.mktemp("asked"), sources)
    made.write()
    return made


def content(warehouse: Warehouse) -> tuple[Mapping[str, Any], list[str]]:
    facts = collect_facts(warehouse)
    assert not facts.failed_queries
    return facts.rows_by_query, list(all_result_lines(warehouse, warehouse.tables()))


@pytest.mark.spark
def test_both_engines_give_the_same_rows(
    spark: SparkSession, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = deployment.config()
    rows, printed = content(Warehouse(None, config.warehouse, config.database))
    assert all(rows[name] for name in ("instances", "sources", "conflicts", "spaces", "quarantine"))
    monkeypatch.setattr(query_engines, "LARGEST_WITHOUT_SPARK_BYTES", 0)
    rows_of_spark, printed_of_spark = content(deployment.opened(spark))
    assert rows.keys() == rows_of_spark.keys()
    for name, found in rows.items():
        if name == "lag_over_time":
            assert [row["lag"] for row in found] == pytest.approx(
                [row["lag"] for row in rows_of_spark[name]], abs=1e-3
            )
        else:
            assert found == rows_of_spark[name], name
    assert printed == printed_of_spark
    assert not any("failed" in line for line in printed)


def test_small_tables_need_no_session(deployment: Deployment) -> None:
    config = deployment.config()
    warehouse = Warehouse(None, config.warehouse, config.database)
    assert isinstance(engine_of(warehouse, ["_changelog", "not there"]), LocalEngine)


def test_large_tables_start_spark_once(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_engines, "LARGEST_WITHOUT_SPARK_BYTES", 0)
    config, started = deployment.config(), list[Any]()

    def start() -> Any:
        started.append("a session")
        return started[-1]

    warehouse = Warehouse(None, config.warehouse, config.database)
    assert isinstance(engine_of(warehouse, ["_changelog"], start), SparkEngine)
    assert started == ["a session"]

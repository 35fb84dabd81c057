"""The printed queries on spaces of every type, without a format, and what is printed where a query fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.report import report
from observe.report.printed_queries import TitledQuery, contended_table_queries, result_lines
from tests.jobs.deployment import Deployment
from tests.truth import own

OWN = ["_key", "_tuple", "_replicaset_id", "_global_id", "_lsn", "_timestamp"]
ANY_TYPES = """
    SELECT 1 AS id, parse_json('{"a": [1, 2]}') AS any, parse_json('3') AS scalar, X'01' AS _key, X'90' AS _tuple,
           1 AS _replicaset_id, 4L AS _global_id, 9L AS _lsn, TIMESTAMP '2024-05-02' AS _timestamp
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    "columns", [["any", "id", "scalar"], ["id", "any"], []], ids=["variant first", "second", "none"]
)
def test_the_queries_of_a_contended_table(spark: SparkSession, columns: list[str]) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS printed")
    try:
        spark.sql(f"CREATE TABLE printed.t USING parquet AS {ANY_TYPES}")
        spark.sql(
            "CREATE TABLE printed._conflicts USING parquet AS SELECT 't' AS space, X'01' AS key, 'last_write_wins' AS "
            "policy, 7L AS epoch, 1 AS winner_replicaset_id, 2 AS loser_replicaset_id, "
            "TIMESTAMP '2024-05-02' AS winner_timestamp, TIMESTAMP '2024-05-01' AS loser_timestamp"
        )
        for query in contended_table_queries("printed", "t", [*columns, *OWN]):
            lines = list(result_lines(spark, query))
            assert not any("failed" in line for line in lines), lines
            assert any(line.startswith("|") and "2024-05-02" in line for line in lines), lines
    finally:
        spark.sql("DROP DATABASE printed CASCADE")


@pytest.mark.spark
def test_a_query_that_fails_is_one_line(spark: SparkSession) -> None:
    lines = list(result_lines(spark, TitledQuery("Nothing", "SELECT * FROM nowhere.nothing")))
    assert lines[:2] == ["-- Nothing", "SELECT * FROM nowhere.nothing;"]
    assert lines[2].startswith("-- this query failed: ")
    assert len(lines) <= 5


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_recordings_of_two_replicasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = own()
    deployment = Deployment(tmp_path, {name: recording.directory(name) for name in ("a1", "b1")})
    deployment.run()
    page = tmp_path / "page.html"
    report(deployment.config(), str(page))
    shown = capsys.readouterr().out
    assert "failed" not in shown
    assert "Who won which conflict" in shown
    assert 'id="attention"' in page.read_text()

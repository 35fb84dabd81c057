"""The session of a job in plain Python: Delta without options, UTC, the job's own Python, valid Spark settings."""

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from jobs.runtime.session import (
    CONF_FOLDER,
    DELTA_EXTENSION,
    JAVA_ARCHIVE,
    delta_coordinates,
    may_use_class_archive,
)

pytestmark = pytest.mark.spark


def test_the_session_of_plain_python(spark: SparkSession) -> None:
    assert DELTA_EXTENSION in (spark.conf.get("spark.sql.extensions") or "")
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "1"
    assert spark.sql("SELECT timestamp_seconds(0) :: string").first() == ("1970-01-01 00:00:00",)


def test_workers_run_the_jobs_own_python(spark: SparkSession) -> None:
    python = udf(lambda _: sys.executable)
    assert spark.range(1).select(python("id")).first() == (sys.executable,)


def test_every_setting_is_one_that_spark_knows(spark: SparkSession) -> None:
    """Spark accepts a mistyped setting silently."""
    lines = (CONF_FOLDER / "spark-defaults.conf").read_text().splitlines()
    settings = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    given = dict(spark.sparkContext.getConf().getAll())
    assert settings.items() <= {**given, **{name: spark.conf.get(name) or "" for name in settings}}.items()
    known = {row.key for row in spark.sql("SET -v").collect()} | {"spark.driver.memory"}
    known |= {"spark.sql.catalog.spark_catalog", "spark.ui.showConsoleProgress"}
    delta = {name for name in settings if name.startswith("spark.databricks.delta.")}
    assert settings.keys() - known - delta == set()


def test_the_coordinates_are_those_of_the_locked_versions() -> None:
    assert delta_coordinates() == "io.delta:delta-spark_4.2_2.13:4.4.0"


@pytest.mark.skipif(not JAVA_ARCHIVE.is_file(), reason="set-up has made no archive of Java's classes")
def test_java_has_the_archive_of_its_classes_in_memory(spark: SparkSession) -> None:
    """Java continues without one that does not fit it, and says nothing."""
    jvm: Any = spark.sparkContext._jvm
    maps = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/maps")
    if not maps.is_file():
        pytest.skip("shows no mapped files of a process")
    assert str(JAVA_ARCHIVE) in maps.read_text()


@pytest.mark.parametrize(
    ("environment", "setting", "expected"),
    [
        ({}, "", True),
        ({"SPARK_HOME": "/opt/another/spark"}, "", False),
        ({"PYSPARK_SUBMIT_ARGS": "--driver-class-path /x pyspark-shell"}, "", False),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.driver.extraClassPath=/x pyspark-shell"}, "", False),
        ({"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/x"}, "", False),
        ({"SPARK_SUBMIT_OPTS": "-Xmx1g"}, "spark.driver.memory 1g", True),
        ({}, "spark.driver.extraClassPath /x", False),
    ],
)
def test_the_archive_is_used_where_nobody_names_another_class_path(
    tmp_path: Path, environment: dict[str, str], setting: str, expected: bool
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(setting + "\n")
    archive = tmp_path / "classes.jsa"
    archive.touch()
    given = {"SPARK_CONF_DIR": str(tmp_path), **environment}
    assert may_use_class_archive(given, archive) is expected
    assert not may_use_class_archive(given, tmp_path / "nowhere")

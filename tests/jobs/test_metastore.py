"""`aggregator sql` and tables in a Hive metastore (Derby), each in a process of its own, as a user starts them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def written(folder: Path) -> Node:
    node = Node(folder, "a1").define(600, "users", (("id", "unsigned"), ("name", "string"), ("tags", "any")))
    node.put(600, 1, "Ann", {"a": [1]}).put(600, 2, "Bob", None).close()
    return node


def configured(folder: Path, deployment: Deployment) -> Path:
    file = folder / "deployment.yaml"
    file.write_text(deployment.config().model_dump_json(exclude_defaults=True))
    return file


def run(folder: Path, *words: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aggregator", *words],
        cwd=folder,
        input=typed,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_statements_and_the_function_for_tuples(tmp_path: Path) -> None:
    node = written(tmp_path)
    deployment = Deployment.aggregated(tmp_path, node)
    file = configured(tmp_path, deployment)
    asked = "SELECT id, tuple_json(_tuple) AS t FROM users ORDER BY id"
    done = run(tmp_path, "sql", "--config", str(file), "--json", asked)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["t"] for row in rows] == ['[1,"Ann",{"a":[1]}]', '[2,"Bob",null]']
    typed = "SELECT nothing;\nSELECT count(*)\nFROM aggregator_views.who_wrote;"
    done = run(tmp_path, "sql", "--config", str(file), typed=typed)
    assert done.returncode == 1
    assert "error:" in done.stderr
    assert "|2       |" in done.stdout


def test_the_job_registers_each_table_when_it_is_made(tmp_path: Path) -> None:
    node = written(tmp_path)
    deployment = Deployment.of(tmp_path, node)
    file = configured(tmp_path, deployment)
    hive = [
        *("--conf", "spark.sql.catalogImplementation=hive"),
        *(
            "--conf",
            f"spark.hadoop.javax.jdo.option.ConnectionURL=jdbc:derby:;databaseName={tmp_path}/derby;create=true",
        ),
    ]
    done = run(tmp_path, "run", "--config", str(file), "--once", *hive)
    assert done.returncode == 0, done.stderr[-3000:]
    # A session that knows nothing but the metastore finds the tables by name.
    script = (
        "from pyspark.sql import SparkSession\n"
        "from tests.jobs.test_metastore import hive_session\n"
        f"spark = hive_session({str(tmp_path)!r})\n"
        "print(sorted(row.tableName for row in spark.sql('SHOW TABLES IN aggregator').collect()))\n"
        "print(spark.sql('SELECT id, name FROM aggregator.users ORDER BY id').collect())\n"
    )
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=600, check=False
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert "'_cluster'" in found.stdout
    assert "'users'" in found.stdout
    assert "name='Bob'" in found.stdout


def hive_session(folder: str):  # type: ignore[no-untyped-def]
    """Return a session with Derby's metastore, Delta, and no configuration of the aggregator."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.catalogImplementation", "hive")
        .config(
            "spark.hadoop.javax.jdo.option.ConnectionURL",
            f"jdbc:derby:;databaseName={folder}/derby;create=true",
        )
        .getOrCreate()
    )

"""The tables over JDBC: beeline queries Spark's Thrift server, with the statements of `jobs.views`."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from observe.sql_views import view_statements
from tests.jobs.deployment import Deployment
from tests.jobs.thrift import ThriftServer
from tests.jobs.written import Node, replicasets_of

pytestmark = [pytest.mark.spark, pytest.mark.soak]

FIELDS = (("id", "unsigned"), ("name", "string"), ("tags", "array"))


def test_the_tables_and_views_answer_over_jdbc(
    spark: SparkSession,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    a, b = (Node(tmp_path, name).define(600, "users", FIELDS) for name in ("a1", "b1"))
    a.put(600, 1, "a", [1, "x"], at=1).put(600, 2, "a", None, at=2).close()
    b.put(600, 2, "b", None, at=9).close()
    sources = {name: tmp_path / name for name in ("a1", "b1")}
    made = Deployment(tmp_path, sources, replicasets_of("a1", "b1"), types={"nested": "variant"})
    made.run()
    views = tmp_path / "views.sql"
    views.write_text("".join(f"{statement};\n" for statement in view_statements(made.config(), [])))
    folder = tmp_path / "thrift"
    folder.mkdir()
    with ThriftServer(folder) as server:
        done = server.run("--silent=true", "-f", str(views))
        assert done.returncode == 0, done.stderr[-3000:]
        cluster = server.ask(f"SELECT global_id, uuid FROM {made.database}._cluster ORDER BY global_id")
        users = server.ask(f"SELECT id, name, to_json(tags) AS tags FROM {made.database}.users ORDER BY id")
        wrote = server.ask(f"SELECT * FROM {made.database}_views.who_wrote")
        whole = server.run("--outputformat=csv2", "-e", f"SELECT * FROM {made.database}.users")
    assert [row["global_id"] for row in cluster] == ["1", "2", "3"]
    assert users == [{"id": "1", "name": "a", "tags": '[1,"x"]'}, {"id": "2", "name": "b", "tags": "NULL"}]
    assert [(row["space"], row["replicaset"]) for row in wrote] == [("users", "a1"), ("users", "b1")]
    assert "Unrecognized type name: variant" in whole.stderr

"""The functions for SQL, on the tables of a recording and on its logs."""

import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sources.xlog.datasource import register
from tests.jobs.deployment import Deployment
from tests.truth import own
from warehouse.sql_functions import register_functions

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def deployed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    sources = {name: own().directory(name) for name in ("a1", "b1")}
    deployment = Deployment(tmp_path_factory.mktemp("functions"), sources)
    deployment.write()
    config = deployment.config()
    register_functions(spark, config.warehouse, config.database)
    for table in ("accounts", "_changelog", "_conflicts", "_cluster"):
        path = deployment.folder / "warehouse" / f"{deployment.database}.db" / table
        spark.read.format("delta").load(str(path)).createOrReplaceTempView(table)
    return deployment


@pytest.mark.usefixtures("deployed")
def test_the_global_ids_are_those_of_changelog(spark: SparkSession) -> None:
    wrong = spark.sql(
        "SELECT l.* FROM _changelog l JOIN (SELECT DISTINCT replicaset_id, replicaset_uuid FROM _cluster) c "
        "USING (replicaset_id) WHERE replica_id IS NOT NULL AND source != 'aggregator' "
        "AND global_id(replicaset_uuid, replica_id, lsn) IS DISTINCT FROM l.global_id"
    )
    assert wrong.count() == 0
    nobody = spark.sql("SELECT global_id('no such', 1, 1), global_id(NULL, NULL, NULL)")
    assert nobody.first() == (None, None)


def test_rows_of_the_logs_get_global_ids(spark: SparkSession, deployed: Deployment) -> None:
    register(spark)
    sources = [{"name": name, "path": str(path)} for name, path in deployed.sources.items()]
    rows = spark.read.format("xlog").option("sources", json.dumps(sources)).load()
    named = rows.where("replica_id > 0").selectExpr("global_id(replicaset_uuid, replica_id, lsn) AS id")
    known = {row["global_id"] for row in deployed.rows("_cluster", ["global_id"])}
    found = {row.id for row in named.distinct().collect()}
    assert None not in found
    assert found <= known
    assert len(found) > 1


@pytest.mark.usefixtures("deployed")
def test_fields_of_exact_tuples_by_name(spark: SparkSession) -> None:
    columns = [name for name in spark.table("accounts").columns if not name.startswith("_")]
    assert len(columns) > 2
    differs = " OR ".join(
        f"CAST(tuple_field(_tuple, 'accounts', '{name}') AS DOUBLE) IS DISTINCT FROM CAST({name} AS DOUBLE)"
        for name in ("id", "updated")
    )
    assert spark.sql(f"SELECT * FROM accounts WHERE {differs}").count() == 0
    whole = spark.sql("SELECT tuple_json(_tuple) AS t, key_json(_key) AS k, id FROM accounts").collect()
    assert whole
    assert all(json.loads(row.t)[0] == json.loads(row.k)[0] == row.id for row in whole)
    without = "SELECT tuple_field(NULL, 'accounts', 'id'), tuple_field(X'9101', 'accounts', 'updated')"
    assert spark.sql(without).first() == (None, None)
    for wrong_name, text in (("'accounts', 'none'", "has no field 'none'"), ("'none', 'id'", "no table has")):
        with pytest.raises(PySparkException, match=text):
            spark.sql(f"SELECT tuple_field(_tuple, {wrong_name}) FROM accounts").collect()


def test_values_of_messagepack(spark: SparkSession) -> None:
    register_functions(spark)
    found = spark.sql(
        "SELECT msgpack_json(X'81A16101'), msgpack_json(X'C1'), msgpack_json(NULL), tuple_json(X'01')"
    ).first()
    assert found is not None
    assert json.loads(found[0]) == {"a": 1}
    assert tuple(found)[1:] == (None, None, None)


A = (
    "0" * 26
    + ":01DT3V6WF6K5K12JBV8B563TXP:01DT3TREEM05JE0G8NFRACKJ3Y:01DT3TPFFQV48H3D51300DH53S:01DT3P4BTHN2T3QZTR9V78CPV5"
)
B = (
    "0" * 26
    + ":01DT3TREEM05JE0G8NFRACKJ3Y:01DT3TPFFQV48H3D51300DH53S:"
    + "0" * 26
    + ":01DT3P4BTHN2T3QZTR9V78CPV5"
)


def test_rids_are_compared(spark: SparkSession) -> None:
    register_functions(spark)
    rows = [(A, A), (A, B), (B, A), (A, "text"), (None, A)]
    frame = spark.createDataFrame(
        [tuple(None if x is None else x if x == "text" else f"{x}:1:0:0:0:1" for x in row) for row in rows],
        "a string, b string",
    )
    found = frame.select(F.expr("rid_compare(a, b)").alias("v")).collect()
    assert [row.v for row in found] == ["same", "sync from a", "sync from b", None, None]

"""`spark.read.format("xlog")` in a real Spark: columns, rows, options, tasks."""

import json
from pathlib import Path

import msgpack
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from schemas.xrow import SOURCES_ARROW, XROW_ARROW
from sources.xlog.datasource import register, spark_schema
from sources.xlog.format.block import encode_block
from tests.oracle.log import read_log
from tests.sources.xlog.logs import SPACE, Server, insert
from tests.truth import own

pytestmark = pytest.mark.spark


def read(spark: SparkSession, path: Path | None = None, **options: str) -> DataFrame:
    register(spark)
    reader = spark.read.format("xlog").options(**options)
    return reader.load() if path is None else reader.load(str(path))


def test_a_directory_is_a_table_of_every_row_as_it_was_logged(spark: SparkSession) -> None:
    frame = read(spark, own().directory("a1"))
    assert frame.schema == spark_schema(XROW_ARROW)
    found = {
        (row.file, row.replica_id or 0, row.group_id or 0, row.lsn): (row.space_id, row.tuple)
        for row in frame.collect()
    }
    expected = {
        (path.name, row.replica_id, row.group_id, row.lsn): row.body
        for path in own().logs("a1")
        for row in read_log(path)
    }
    assert found.keys() == expected.keys()
    assert len(found) > 1000
    for position, (space_id, tuple_) in found.items():
        body = expected[position]
        assert space_id == (msgpack.unpackb(body[0x10]) if 0x10 in body else None)
        assert tuple_ is None or bytes(tuple_) == body[0x21]


def test_sources_carry_their_replicaset_and_the_order_of_their_rows(spark: SparkSession) -> None:
    named = [{"name": node, "path": str(own().directory(node))} for node in own().nodes]
    frame = read(spark, sources=json.dumps(named), includeSnapshot="true")
    assert frame.schema == spark_schema(SOURCES_ARROW)
    read_ = {
        (row.replicaset_uuid, row.source)
        for row in frame.select("replicaset_uuid", "source").distinct().collect()
    }
    assert read_ == {(own().info(node).replicaset_uuid, node) for node in ("a1", "b1")}, (
        "one member of each leads"
    )
    logged = frame.where("replica_id is not null").orderBy("segment", "position", "row")
    for uuid, _ in read_:
        mine = logged.where(f.col("replicaset_uuid") == uuid).select("replica_id", "lsn").collect()
        for id_ in (1, 2):
            lsns = [row.lsn for row in mine if row.replica_id == id_]
            assert lsns == list(range(lsns[0], lsns[0] + len(lsns))), "no hole, in the order of the log"


def test_a_large_file_is_read_by_several_tasks(spark: SparkSession, tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.open()
    block = encode_block(
        b"".join(insert(1, lsn, SPACE, [lsn, "x" * 100]) for lsn in range(1, 1001)), compress=False
    )
    server.append(block * 40)
    assert server.open().stat().st_size > 4 << 20
    positions = (
        read(spark, tmp_path, splitBytes="1m").select(f.spark_partition_id(), "position", "row").collect()
    )
    assert len({task for task, _, _ in positions}) == 5
    assert len(positions) == len({(position, row) for _, position, row in positions}) == 40_000
    assert read(spark, tmp_path).rdd.getNumPartitions() == 1
    assert read(spark, tmp_path, minPartitions="2").rdd.getNumPartitions() == 2


def test_sql_reads_it(spark: SparkSession) -> None:
    register(spark)
    path = own().directory("b1")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW log USING xlog OPTIONS (path '{path}', spaces '320')")
    rows = spark.sql("SELECT type, lsn FROM log WHERE tuple IS NOT NULL ORDER BY lsn").collect()
    expected = [row for log in own().logs("b1") for row in read_log(log) if row.number(0x10) == 320]
    assert [row.lsn for row in rows] == [row.lsn for row in expected if 0x21 in row.body]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"maxRows": "5"}, "(?i)unknown option 'maxRows'"),
        ({"mode": "LENIENT"}, "mode"),
        ({"spaces": "accounts"}, "accounts"),
    ],
)
def test_a_wrong_option_is_refused_when_the_table_is_named(
    spark: SparkSession, options: dict[str, str], named: str
) -> None:
    with pytest.raises(PySparkException, match=named):
        read(spark, Path("/nowhere"), **options)


def test_damage_names_file_offset_and_class_and_permissive_shows_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    Server(tmp_path).write(rows=5)
    path = tmp_path / "00000000000000000000.xlog"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(PySparkException, match=rf"XlogChecksumError: .*file {path.name}, offset \d+"):
        read(spark, tmp_path).collect()
    frame = read(spark, tmp_path, mode="PERMISSIVE")
    assert frame.where("_corrupt_record is null").count() == 4
    assert "checksum" in frame.where("_corrupt_record is not null").first()["_corrupt_record"]  # type: ignore[index]


def test_a_gap_is_not_jumped_in_silence(spark: SparkSession, tmp_path: Path) -> None:
    server = Server(tmp_path)
    for _ in range(3):
        server.write(rows=2).rotate()
    (tmp_path / "00000000000000000002.xlog").unlink()
    with pytest.raises(PySparkException, match="XlogGapError"):
        read(spark, tmp_path).count()
    assert read(spark, tmp_path, gaps="report").count() == 4

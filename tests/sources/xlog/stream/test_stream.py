"""`spark.readStream.format("xlog")` in a real Spark: growing files, restarts, sources that come and go."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sources.xlog.directory.offset import from_document
from tests.sources.xlog.logs import BLOCK, A, B, Server
from tests.sources.xlog.streams import run_once, running, sources, wait_for
from tests.truth import REPOSITORY

pytestmark = pytest.mark.spark

PATIENCE_SECONDS = 300


def progress(query: StreamingQuery) -> dict[str, Any]:
    """Return what Spark reports of the source."""
    last = query.lastProgress
    assert last is not None
    found: dict[str, Any] = json.loads(last.json)["sources"][0]
    return found


def test_rows_appear_as_they_are_written(spark: SparkSession, tmp_path: Path) -> None:
    server = Server(tmp_path / "a1").write(rows=2)
    log = server.open()
    with running(spark, tmp_path / "checkpoint", {}, server.path) as (query, found):
        assert wait_for(query, found, 2) == [1, 2]
        before = log.read_bytes()
        server.write(rows=1)
        whole = log.read_bytes()
        log.write_bytes(whole[:-1])  # a torn tail is not there yet
        query.processAllAvailable()
        assert found.lsns == [1, 2]
        log.write_bytes(whole)
        assert wait_for(query, found, 3) == [1, 2, 3]
        server.rotate()
        server.write(rows=2)  # rotation is followed
        assert wait_for(query, found, 5) == [1, 2, 3, 4, 5]
        server.snapshot()
        server.write(rows=1)
        assert wait_for(query, found, 6) == [1, 2, 3, 4, 5, 6]
        assert len(before) < len(whole)
        query.processAllAvailable()
        assert progress(query)["latestOffset"] == progress(query)["endOffset"], "no lag is left"


def test_a_file_that_vanished_stops_the_query_by_name(spark: SparkSession, tmp_path: Path) -> None:
    server = Server(tmp_path / "a1").write(rows=2)
    run_once(spark, tmp_path / "checkpoint", {}, server.path)
    server.rotate().write(rows=2)
    (server.path / "00000000000000000000.xlog").unlink()
    with pytest.raises(StreamingQueryException, match=r"XlogMissingError.*00000000000000000000\.xlog"):
        run_once(spark, tmp_path / "checkpoint", {}, server.path)


def test_available_now_reads_all_in_limited_batches(spark: SparkSession, tmp_path: Path) -> None:
    server = Server(tmp_path / "a1")
    for _ in range(3):
        server.write(rows=20).rotate()
    found = run_once(spark, tmp_path / "checkpoint", {"maxBytesPerTrigger": f"{20 * BLOCK}b"}, server.path)
    assert found.lsns == list(range(1, 61))
    filled = [len(rows) for rows in found.batches.values() if rows]
    assert max(filled) <= 21
    assert len(filled) in (3, 4)
    server.write(rows=1)
    assert run_once(spark, tmp_path / "checkpoint", {}, server.path).lsns == [61], "nothing was left"


@pytest.mark.soak
def test_a_killed_query_repeats_its_batch_and_continues(spark: SparkSession, tmp_path: Path) -> None:
    server = Server(tmp_path / "a1").write(rows=3)
    server.snapshot(rows=4)
    server.write(rows=8).rotate().write(rows=8)
    report = tmp_path / "report"
    arguments = [str(server.path), str(tmp_path / "checkpoint"), str(report), "2"]
    command = [sys.executable, "-m", "tests.sources.xlog.killed", *arguments]
    ended = subprocess.run(
        command, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert ended.returncode == 9, ended.stderr
    first = {
        number: [tuple(row) for row in rows]
        for number, rows in map(json.loads, report.read_text().splitlines())
    }
    assert sorted(first) == [0, 1, 2]
    server.write(rows=3)  # what happens meanwhile does not change the batch
    server.rotate()
    server.snapshot(rows=9)
    server.write(rows=2)
    again = run_once(
        spark, tmp_path / "checkpoint", {"maxBytesPerTrigger": "200", "start": "snapshot"}, server.path
    )
    assert min(again.batches) == 2
    assert again.batches[2] == first[2] != []
    rows = first[0] + first[1] + again.rows
    assert len(rows) == len(set(rows)) + 3, "the four rows of the snapshot have no lsn of their own"
    assert [lsn for file, _, lsn in rows if file.endswith(".xlog")] == list(range(4, 25))


@pytest.mark.soak
def test_sources_come_and_go_under_one_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    a1, b1 = Server(tmp_path / "a1", "a1"), Server(tmp_path / "b1", "b1")
    for server in (a1, b1):
        server.snapshot()
        server.write(rows=3)
    checkpoint = tmp_path / "checkpoint"
    found = run_once(spark, checkpoint, sources(a1.path))
    assert found.lsns == [1, 2, 3]
    a1.write(rows=2)
    found = run_once(spark, checkpoint, sources(b1.path))
    assert found.lsns == [1, 2, 3], "the rows of the one that came, none of the one that went"
    b1.write(rows=1)
    found = run_once(spark, checkpoint, sources(b1.path, a1.path))
    assert sorted(found.lsns) == [4, 4, 5], "those of the one that came back continue"


def test_a_source_that_cannot_be_read_is_reported_while_the_others_continue(
    spark: SparkSession, tmp_path: Path
) -> None:
    a1 = Server(tmp_path / "a1", "a1")
    a1.snapshot()
    a1.write(rows=3)
    options = sources(a1.path, tmp_path / "b1")
    with pytest.raises(StreamingQueryException, match=r"SourceError.*b1"):
        run_once(spark, tmp_path / "checkpoint", options)
    skip = options | {"on_source_error": "skip"}
    with running(spark, tmp_path / "checkpoint", skip) as (query, found):
        assert wait_for(query, found, 3) == [1, 2, 3]
        query.processAllAvailable()
        assert "does not exist" in progress(query)["latestOffset"]["unreadable"]["b1"]
        late = Server(tmp_path / "b1", "b1")
        late.snapshot()
        late.write(rows=2)
        assert wait_for(query, found, 5) == [1, 2, 3, 1, 2]
        query.processAllAvailable()
        assert set(from_document(progress(query)["endOffset"])) == {A, B}


def test_a_stream_refuses_what_only_a_batch_can_obey(spark: SparkSession, tmp_path: Path) -> None:
    Server(tmp_path / "a1").write()
    with pytest.raises(StreamingQueryException, match="fromVclock bounds a batch read"):
        run_once(spark, tmp_path / "checkpoint", {"fromVclock": '{"1": 5}'}, tmp_path / "a1")

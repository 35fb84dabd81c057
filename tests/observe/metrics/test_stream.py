"""The real stream's JSON log and status page, compared with the tables that it wrote."""

import io
import json
import logging
import urllib.request
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent

from config.deployment import load
from observe.metrics.committed_batches import CommittedBatch, CommittedBatchReader, PendingCounts
from observe.metrics.listener import MetricsListener, metrics_listener
from observe.metrics.stream_metrics import StreamMetrics
from observe.status_page import status_page
from pipeline.batch import BatchResult
from schemas.errors import ConfigurationError
from sources.iproto.address import Address
from tests.jobs.deployment import Deployment
from tests.observe.metrics.test_stream_metrics import samples
from tests.observe.report.warehouses import write_warehouse
from tests.truth import own
from warehouse.delta.location import location_of
from warehouse.delta.read import query_rows
from warehouse.system_tables.gaps import Gap

DEMO = """
warehouse: w
checkpoint: c
sources: [{name: a1, path: a1}]
"""


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_each_batch_has_a_log_line_that_agrees_with_the_tables(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    recording = own()
    deployment = Deployment(
        tmp_path,
        {name: recording.directory(name) for name in ("a1", "b1")},
        spaces={"include": ["accounts"]},
        metrics={"log": str(file)},
    )
    deployment.run()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["event"] == "started"
    assert next(line for line in lines if line["event"] == "stopped")["error"] is None
    batches = {line["epoch"]: line for line in lines if line["event"] == "batch"}
    epochs = deployment.rows("_epochs")
    assert {number: line["rows"] for number, line in batches.items()} == {
        e["epoch"]: e["rows"] for e in epochs
    }
    in_changelog: dict[tuple[Any, ...], int] = {}
    for row in deployment.rows("_changelog", ["epoch", "source", "global_id", "replicaset_id"]):
        if row["replicaset_id"]:
            key = (row["epoch"], row["source"], row["global_id"])
            in_changelog[key] = in_changelog.get(key, 0) + 1
    logged = {
        (n, o["source"], o["origin"]): o["rows"] for n, line in batches.items() for o in line["origins"]
    }
    assert logged == in_changelog
    conflicts = sum(sum(line["conflicts"].values()) for line in batches.values())
    assert conflicts == len(deployment.rows("_conflicts"))
    assert conflicts > 0
    with_rows = [line for line in batches.values() if line["rows"]]
    assert all(line["phases"]["triggerExecution"] >= line["phases"]["addBatch"] > 0 for line in with_rows)
    assert all(line["steps"]["_changelog"] <= line["steps"]["_epochs"] for line in with_rows)
    assert all(
        origin["lag_seconds"] is None or origin["lag_seconds"] > 0
        for line in with_rows
        for origin in line["origins"]
    )


def test_committed_batches_are_read_once_each(tmp_path: Path) -> None:
    write_warehouse(tmp_path, 3)
    committed = CommittedBatchReader(location_of(str(tmp_path)))
    assert list(committed.new_batches()) == []
    assert {gap.replicaset_id for gap in committed.open_gaps()} == {1}
    committed._last_epoch = 0  # as if the reader had been created after the first batch
    found = list(committed.new_batches())
    assert [one.epoch for one in found] == [1, 2, 3, 4, 5]
    assert [(one.source, one.global_id, one.row_count) for one in found[0].origins] == [
        ("source-1", 3, 3),
        ("source-2", 5, 3),
        ("source-3", 7, 3),
    ]
    assert [len(one.changed_gaps) for one in found] == [3, 2, 0, 0, 0]
    assert sum(found[1].conflicts_by_space.values()) == 2
    assert found[2].quarantined_by_space == {"accounts": 6}
    assert found[2].misfits_by_space == {}
    assert list(committed.new_batches()) == []
    waiting = query_rows(table_of(tmp_path, "_pending"), "SELECT count(*) AS n FROM opened")[0]["n"]
    assert sum(committed.pending_counts().pending_rows_by_replicaset.values()) == waiting > 0


def table_of(folder: Path, name: str) -> Any:
    opened = location_of(str(folder)).open(name)
    assert opened is not None
    return opened


class _Committed(CommittedBatchReader):
    """A reader with batches that have just been committed."""

    def __init__(self, *batches: CommittedBatch) -> None:
        self._batches = list(batches)

    def new_batches(self) -> Any:
        yield from self._batches
        self._batches = []

    def pending_counts(self) -> PendingCounts:
        return PendingCounts({1: 4}, {})


def test_warnings_are_log_lines_and_messages(caplog: pytest.LogCaptureFixture) -> None:
    gap = Gap(1, "a1", 2, 5, 7, "missing", "open", "7.xlog")
    lines = io.StringIO()
    listener = MetricsListener(
        StreamMetrics(5, None),
        _Committed(CommittedBatch(0, "q", 0, datetime(2026, 11, 20, tzinfo=UTC), 3, changed_gaps=(gap,))),
        lines,
    )
    with caplog.at_level(logging.WARNING):
        listener.finish()
    batch, warning = (json.loads(line) for line in lines.getvalue().splitlines())
    assert (batch["event"], batch["gaps"]) == ("batch", 1)
    assert (warning["event"], warning["warning"], warning["source"]) == ("warning", "gap_open", "a1")
    assert "lsns 5 to 7 are missing" in caplog.text
    assert "could not be reported" not in caplog.text


def test_a_late_event_does_not_report_the_next_batch() -> None:
    """Spark's event of a batch may arrive when the next batch is in the tables: each keeps its own durations."""
    query, lines = str(uuid.UUID(int=1)), io.StringIO()
    started = {"id": query, "runId": query, "name": None, "timestamp": "2026-11-20T00:00:00.000Z"}
    moment = datetime(2026, 11, 20, tzinfo=UTC)
    committed = _Committed(*(CommittedBatch(number + 1, query, number, moment, 5) for number in (0, 1)))
    metrics = StreamMetrics(5, None)
    listener = MetricsListener(metrics, committed, lines)
    listener.onQueryStarted(QueryStartedEvent.fromJson(started))
    for number in (0, 1):
        listener.batch_done(BatchResult(number, 5, 1.0, 1, {"_epochs": float(number)}))
    for number in (0, 1):
        phases = {"triggerExecution": 1000 * (number + 1)}
        sink = {"description": "", "numOutputRows": 0, "metrics": {}}
        progress = {**started, "batchId": number, "batchDuration": 0, "durationMs": phases}
        event: dict[str, Any] = {"progress": {**progress, "stateOperators": [], "sources": [], "sink": sink}}
        listener.onQueryProgress(QueryProgressEvent.fromJson(event))
    batches = [line for line in map(json.loads, lines.getvalue().splitlines()) if line["event"] == "batch"]
    assert [(one["batch"], one["phases"], one["steps"]) for one in batches] == [
        (number, {"triggerExecution": number + 1.0}, {"_epochs": float(number)}) for number in (0, 1)
    ]
    assert samples(metrics)["aggregator_batch_seconds_sum",] == 3.0


def test_the_status_page_has_metrics_in_the_format_of_prometheus() -> None:
    metrics = StreamMetrics(5, None)
    with status_page(Address("127.0.0.1", 0), metrics, metrics.status) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status") as answer:
            status = json.load(answer)
    assert "aggregator_gaps_open" in {family.name for family in families}
    assert status == {
        "epoch": None,
        "lag": [],
        "stale": [],
        "gaps": [],
        "behind_bytes": {},
        "problems": [],
    }


def test_metrics_are_off_without_their_section(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text(DEMO)
    with metrics_listener(None, load(file), once=True) as listener:  # type: ignore[arg-type]
        assert listener is None
    file.write_text(DEMO + "metrics: {log: m.jsonl}\n")
    metrics = load(file).metrics
    assert metrics is not None
    assert (metrics.log, metrics.status, metrics.stale) == (str(tmp_path / "m.jsonl"), None, "10 minutes")
    file.write_text(DEMO + "metrics: {log: stderr, stale: soon}\n")
    with pytest.raises(ConfigurationError, match=r"'soon' is not a time.*metrics.stale"):
        load(file)

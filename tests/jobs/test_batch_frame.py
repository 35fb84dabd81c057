"""Every batch is made of the stream's DataFrame: its rows are counted, its jobs are named, its plan is what is said."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from benchmarks.logs import MemberLogs
from pipeline.executors import choice, distributed
from pipeline.executors.row_counts import RangeCount, store_row_counts
from tests.jobs.deployment import Deployment
from tests.soaked import partly_soaked
from tests.sources.subscribe.following import await_until

pytestmark = pytest.mark.spark

SHARED, OWN = "shared", "own"


class Counted(StreamingQueryListener):
    """Keeps the number of input rows of each batch."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.observed_rows: dict[int, int] = {}
        self.has_ended = False

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802, ARG002
        self.has_ended = False

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        if event.progress.numInputRows:
            self.rows[event.progress.batchId] = event.progress.numInputRows
            self.observed_rows[event.progress.batchId] = event.progress.observedMetrics["log"].rows

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802, ARG002
        self.has_ended = True


@pytest.fixture
def counted(spark: SparkSession) -> Iterator[Counted]:
    listener = Counted()
    spark.streams.addListener(listener)
    yield listener
    spark.streams.removeListener(listener)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[MemberLogs]:
    folder = tmp_path_factory.mktemp("logs")
    members = [MemberLogs(folder, name, [SHARED, OWN]) for name in ("a1", "b1")]
    for number, member in enumerate(members):
        member.replace(SHARED, range(number * 300, 900))
        member.update(SHARED, range(400, 500))
    members[0].replace(OWN, range(700))
    return members


def deployed(folder: Path, members: list[MemberLogs], **settings: Any) -> Deployment:
    sources = {one.name: one.path for one in members}
    return Deployment(folder, sources, {one.name: one.replicaset for one in members}, **settings)


def job_names(spark: SparkSession) -> list[str]:
    """Return the descriptions of Spark's jobs, the newest first, as its UI shows them."""
    java: Any = spark.sparkContext._jsc
    jobs = java.sc().statusStore().jobsList(None)
    found = (jobs.apply(i).description() for i in range(jobs.size()))
    return [one.get() for one in found if one.isDefined()]


LARGE = "large"

SETTINGS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "auto": ({}, {"driver_alone", "driver"}),
    "driver": ({"executor": "driver"}, {"driver_alone", "driver"}),
    "tasks": ({"executor": "tasks"}, {"tasks"}),
    "too large when decoded": ({"local_bytes": 61_000}, {"tasks"}),
    LARGE: ({}, {"driver_alone"}),
    f"{LARGE}, too large when decoded": ({"local_bytes": 61_000}, {"tasks"}),
}

IN_SUITE = ["auto", LARGE]


@pytest.mark.parametrize("name", partly_soaked(IN_SUITE, sorted(SETTINGS.keys() - set(IN_SUITE))))
def test_spark_counts_the_rows_of_the_log(
    name: str,
    members: list[MemberLogs],
    counted: Counted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, executors = SETTINGS[name]
    deployment = deployed(tmp_path, members, **settings)
    if name.startswith(LARGE):
        monkeypatch.setattr(choice, "CELL_LOG_BYTES", 0)
    config = deployment.config()
    folder = Path(config.cache.counts_folder(config.checkpoint))
    store_row_counts(str(folder), [RangeCount("of a killed job", 0, 1, 1, 1)])
    deployment.run(max_bytes_per_trigger=60_000)
    await_until(lambda: counted.has_ended, "the end of the query")
    epochs = deployment.rows("_epochs", ["batch_id", "rows", "executor"])
    assert len(epochs) > 1
    assert counted.rows == {row["batch_id"]: row["rows"] for row in epochs}
    assert counted.observed_rows == counted.rows
    assert {row["executor"] for row in epochs} == executors
    assert not folder.exists()
    assert deployment.rows("_changelog", ["lsn"])


def test_the_plan_of_a_large_batch_has_the_source_the_remap_one_exchange_and_the_merge(
    spark: SparkSession,
    members: list[MemberLogs],
    counted: Counted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And Spark's jobs have the names of their batch, and Spark counts the rows that tasks process."""
    plans: list[str] = []
    collect = distributed._collect_reports

    def kept(make_frame: Any) -> list[Any]:
        frame: DataFrame = make_frame()
        jvm: Any = frame._jdf
        plans.append(jvm.queryExecution().executedPlan().toString())
        return collect(make_frame)

    monkeypatch.setattr(distributed, "_collect_reports", kept)
    deployment = deployed(tmp_path, members, local_bytes=61_000)
    deployment.run()
    await_until(lambda: counted.has_ended, "the end of the query")
    (epoch,) = deployment.rows("_epochs", ["batch_id", "rows", "executor"])
    assert counted.rows == counted.observed_rows == {epoch["batch_id"]: epoch["rows"]}
    assert epoch["executor"] == "tasks"
    assert {"batch 1: read", "batch 1: merge own and 1 more"} <= set(job_names(spark)[:20])
    (plan,) = plans
    whole = plan.partition("InMemoryRelation")[0]
    nodes = re.findall(r"^[\s:+\-*()\d]*([A-Z]\w+)", whole, re.MULTILINE)
    assert nodes == [
        *("AdaptiveSparkPlan", "MapInArrow", "Exchange", "MapInArrow"),
        *("Project", "ArrowEvalPython", "InMemoryTableScan"),
    ]
    assert "remapped(" in whole
    assert plan.count("Exchange") == 1

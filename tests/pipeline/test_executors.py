"""The local and the distributed executor write the same tables, row for row, system tables included, on any cuts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from pipeline.executors import choice
from pipeline.executors.cells import report_cell
from pipeline.executors.distributed import (
    JOB_ATTEMPTS,
    LOST_EXCHANGE_TEXT,
    DistributedExecutor,
    _collect_reports,
)
from tests.pipeline.deployment import Deployment, contents
from tests.soaked import IS_SOAK, partly_soaked
from tests.truth import Recording, own, recordings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "by priority, with deletes": {
        "policies": {
            "default": {
                "policy": "source_priority",
                "priority": [own().info("b1").replicaset_uuid],
                "deletes": "all",
            }
        },
        "types": {"nested": "variant"},
    },
    "by time, made tuples, masks": {
        "policies": {
            "spaces": {
                "accounts": {"sequence": ["updated"]},
                "counters": {"policy": "sum", "columns": ["value"]},
            }
        },
        "spaces": {"masks": {"accounts": {"email": "drop", "name": "hash"}}, "mask_key_env": "MASK_KEY"},
    },
}


FURTHER = [(recording, seed) for recording in recordings() for seed in range(1, 6)]
"""Recordings and the seeds of their cuts; `make test` takes the first one."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("recording", "seed"), partly_soaked(FURTHER[:1], FURTHER[1:]))
def test_both_executors_write_the_same_tables(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    recording: Recording,
    seed: int,
) -> None:
    monkeypatch.setenv("MASK_KEY", "0123456789abcdef0123")
    nodes = ("a1", "b1") if seed % 2 else (*recording.side("A"), *recording.side("B"))
    sources = {name: recording.directory(name) for name in nodes}
    draw = random.Random(seed)
    # Two batches: the second one meets rows, keys and versions of the first.
    cuts = [draw.choice((1, 5_000, 40_000, 200_000)) for _ in range(4)] if IS_SOAK else [40_000, 200_000]
    alone = Deployment(tmp_path / "local", sources, None, None, **POLICIES[policy])
    alone.run(cuts)
    local = contents(alone)
    assert sum(local["_changelog"].values()) > 1_000
    limits = [choice.CELL_LOG_BYTES, 0]  # cells hold their rows, or tasks read them again
    for limit in limits if IS_SOAK else [limits[[*POLICIES].index(policy)]]:
        monkeypatch.setattr(choice, "CELL_LOG_BYTES", limit)
        distributed = partial(DistributedExecutor, spark)
        deployment = Deployment(tmp_path / str(limit), sources, None, distributed, **POLICIES[policy])
        deployment.run(cuts)
        found = contents(deployment)
        assert local.keys() == found.keys()
        for table in local:
            assert local[table] == found[table], table


class Job:
    """Starts of a job of Spark: some of them fail, the next one ends with one report."""

    def __init__(self, *failures: str) -> None:
        self.failures = list(failures)
        self.starts = 0

    def toArrow(self) -> pa.Table:  # noqa: N802
        self.starts += 1
        if self.failures:
            raise PySparkException(self.failures.pop(0))
        return pa.Table.from_batches([report_cell(0, "a report")])


LOST = f"Job aborted due to stage failure: A {LOST_EXCHANGE_TEXT}. However, Spark cannot rollback the ResultStage 3"


def test_a_job_that_loses_exchanged_rows_starts_again() -> None:
    """A real cluster that loses a worker does this in `tests/jobs/test_standalone.py`, a soak."""
    job = Job(LOST, LOST)
    assert _collect_reports(cast("Callable[[], DataFrame]", lambda: job)) == ["a report"]
    assert job.starts == 3


@pytest.mark.parametrize(("failures", "starts"), [([LOST] * 9, JOB_ATTEMPTS), (["another error"], 1)])
def test_a_job_that_fails_again_and_again_or_otherwise_is_an_error(failures: list[str], starts: int) -> None:
    job = Job(*failures)
    with pytest.raises(PySparkException, match=failures[0][:20]):
        _collect_reports(cast("Callable[[], DataFrame]", lambda: job))
    assert job.starts == starts

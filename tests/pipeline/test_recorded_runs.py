"""Vinyl runs with several statements of one key: a table that begins from a snapshot has the server's tuples."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.executors.distributed import DistributedExecutor
from tests.live.server import find_servers
from tests.pipeline.deployment import Deployment, contents
from tests.recordings.scripted import RUNS, Truth
from tests.soaked import partly_soaked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDED = RUNS.directory
CHECKPOINTS = len(RUNS.truths()) - 1


def held(deployment: Deployment, truth: Truth) -> Truth:
    return {space: sorted(tuple_.hex() for tuple_ in deployment.tuples(space)) for space in truth}


def expected(truth: Truth) -> Truth:
    return {space: sorted(tuples) for space, tuples in truth.items()}


def with_snapshots(folder: Path, recorded: Path, numbers: list[int], logs: list[int]) -> Path:
    """Return a copy of a directory with some of its snapshots and logs; the first one of each has number 0."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, chosen in (("snap", numbers), ("vylog", numbers), ("xlog", logs)):
        files = sorted(recorded.glob(f"*.{suffix}"))
        for number, path in enumerate(files):
            if number in chosen:
                shutil.copy(path, folder)
            else:
                (folder / path.name).unlink(missing_ok=True)
    for path in recorded.iterdir():
        if path.is_dir():
            shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize("number", partly_soaked([1, CHECKPOINTS], range(2, CHECKPOINTS)))
def test_a_table_begins_with_what_the_server_held_at_its_checkpoint(tmp_path: Path, number: int) -> None:
    folder = with_snapshots(tmp_path / "a1", RECORDED, [number], [])
    deployment = Deployment(tmp_path, {"a1": folder}, start="snapshot")
    deployment.run()
    truth = RUNS.truths()[number - 1]
    assert held(deployment, truth) == expected(truth)


@pytest.mark.parametrize(
    ("read", "snapshot", "budget"),
    [
        *((1, CHECKPOINTS, None), (1, 3, 1_200), (2, 5, 300)),
        *(
            pytest.param(*pair, None, marks=pytest.mark.soak)
            for pair in combinations(range(1, CHECKPOINTS + 1), 2)
            if pair != (1, CHECKPOINTS)
        ),
    ],
)
def test_a_table_continues_from_a_checkpoint_behind_logs_that_are_gone(
    tmp_path: Path, read: int, snapshot: int, budget: int | None
) -> None:
    folder = with_snapshots(tmp_path / "a1", RECORDED, [0], list(range(read)))
    deployment = Deployment(tmp_path, {"a1": folder})
    deployment.run()
    assert held(deployment, RUNS.truths()[read - 1]) == expected(RUNS.truths()[read - 1])
    with_snapshots(folder, RECORDED, [snapshot], [])
    deployment.run(budget)
    assert held(deployment, RUNS.truths()[snapshot - 1]) == expected(RUNS.truths()[snapshot - 1])
    with_snapshots(folder, RECORDED, [snapshot], list(range(snapshot, CHECKPOINTS + 1)))
    deployment.run(budget)
    assert held(deployment, RUNS.truths()[-1]) == expected(RUNS.truths()[-1])


@pytest.mark.parametrize("size", [2_000, pytest.param(200, marks=pytest.mark.soak)])
def test_the_distributed_executor_writes_the_same_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Byte ranges smaller than a run: the statements of one key are in several tasks."""
    monkeypatch.setattr("sources.xlog.stream.batch.range_bytes", lambda *_: size)
    found = []
    for name, make in (
        ("local", None),
        ("distributed", partial(DistributedExecutor, spark)),
    ):
        folder = with_snapshots(tmp_path / name / "a1", RECORDED, [0], [0, 1])
        deployment = Deployment(tmp_path / name, {"a1": folder}, None, make)
        deployment.run()
        with_snapshots(folder, RECORDED, [CHECKPOINTS], [])
        deployment.run()
        found.append(contents(deployment))
        assert held(deployment, RUNS.truths()[-2]) == expected(RUNS.truths()[-2])
    for table in found[0].keys() - {
        "_epochs"
    }:  # so many small files of `_changelog` are joined: a commit more
        assert found[0][table] == found[1][table], table


@pytest.mark.live
@pytest.mark.parametrize(
    "binary", find_servers() or [pytest.param("", marks=pytest.mark.skip("no Tarantool"))]
)
def test_a_server_of_another_version(tmp_path: Path, binary: str) -> None:
    recorded = tmp_path / "server"
    truths = RUNS.record(recorded, binary)
    folder = with_snapshots(tmp_path / "a1", recorded, [0], [0])
    deployment = Deployment(tmp_path, {"a1": folder})
    deployment.run()
    for number in range(2, len(truths)):
        with_snapshots(folder, recorded, [number], [])
        deployment.run()
        assert held(deployment, truths[number - 1]) == expected(truths[number - 1])

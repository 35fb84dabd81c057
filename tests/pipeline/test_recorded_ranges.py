"""Ranges that a real Tarantool 3.9 deleted, over keys of every type: the tables hold what it held, in any cut."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.executors.distributed import DistributedExecutor
from schemas.names import table_name
from tests.live.server import find_servers
from tests.pipeline.deployment import Deployment, contents
from tests.recordings.scripted import RANGES, Truth
from tests.soaked import partly_soaked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDED = RANGES.directory


def unlike(deployment: Deployment, truth: Truth) -> dict[str, tuple[list[str], list[str]]]:
    """Return the tuples that only one side has, by space."""
    found = {}
    for space, tuples in truth.items():
        one, other = Counter(tuple_.hex() for tuple_ in deployment.tuples(space)), Counter(tuples)
        if one != other:
            found[space] = (list((one - other).elements()), list((other - one).elements()))
    return found


@pytest.mark.parametrize("start", ["logs", "snapshot"])
@pytest.mark.parametrize("cut", partly_soaked(["all", "each"], ["random", "more"]))
def test_the_tables_hold_what_the_server_held(tmp_path: Path, cut: str, start: str) -> None:
    dice = random.Random(1)
    budget: dict[str, Any] = {
        "all": None,
        "random": [dice.choice([500, 3_000, 9_000]) for _ in range(10)],
        "more": [dice.choice([500, 3_000, 9_000]) for _ in range(40)],
        "each": [1] * 10,
    }
    deployment = Deployment(tmp_path, {"a1": RECORDED}, start=start)
    deployment.run(budget[cut])
    assert unlike(deployment, RANGES.truths()[-1]) == {}
    assert deployment.rows("_quarantine") == []
    if start == "logs":
        logged = [row for row in deployment.rows("_changelog") if row["type"] == "DELETE_RANGE"]
        assert len(logged) > 200
        assert {row["space"] for row in logged} == set(RANGES.truths()[-1])


@pytest.mark.parametrize("logs", range(1, 12, 2))
def test_they_hold_what_it_held_at_the_end_of_each_log(tmp_path: Path, logs: int) -> None:
    folder = tmp_path / "a1"
    folder.mkdir()
    for path in (sorted(RECORDED.glob("*.snap"))[0], *sorted(RECORDED.glob("*.xlog"))[:logs]):
        shutil.copy(path, folder)
    deployment = Deployment(tmp_path, {"a1": folder})
    deployment.run()
    assert unlike(deployment, RANGES.truths()[logs - 1]) == {}


@pytest.mark.soak
def test_the_distributed_executor_writes_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    found = []
    for name, make in (
        ("local", None),
        ("distributed", partial(DistributedExecutor, spark)),
    ):
        deployment = Deployment(tmp_path / name, {"a1": RECORDED}, None, make)
        deployment.run([25_000])
        found.append(contents(deployment))
        assert unlike(deployment, RANGES.truths()[-1]) == {}
    for table in map(table_name, RANGES.truths()[-1]):
        assert found[0][table] == found[1][table], table
    assert found[0] == found[1]


def servers() -> list[str]:
    """Return the servers here that have DELETE_RANGE."""
    return [one for one in find_servers() if "3.9" in one]


@pytest.mark.live
@pytest.mark.parametrize(
    "binary", servers() or [pytest.param("", marks=pytest.mark.skip("no Tarantool 3.9"))]
)
def test_a_server_does_what_was_recorded(tmp_path: Path, binary: str) -> None:
    assert RANGES.record(tmp_path / "again", binary) == RANGES.truths()

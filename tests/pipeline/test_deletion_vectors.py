"""With deletion vectors, without them, and with a setting that changes between batches, the tables are equal."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.executors.distributed import DistributedExecutor
from pipeline.lookup import key_copies
from schemas.tables import SYSTEM_TABLES
from tests.pipeline.deployment import Deployment, contents
from tests.pipeline.test_executors import POLICIES
from tests.soaked import partly_soaked
from tests.truth import own
from warehouse.delta.location import location_of
from warehouse.delta.table_files import live_files
from warehouse.delta.table_log import read_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONE_BYTE = {"deletion_vectors": "auto", "deletion_vectors_above": 1}
MODES: Mapping[str, Mapping[str, Any]] = {
    "always": {"deletion_vectors": "always"},
    "one byte": ONE_BYTE,
    "never": {"deletion_vectors": "never"},
}


def sources() -> dict[str, Path]:
    return {name: own().directory(name) for name in ("a1", "b1")}


def cuts(draw: random.Random) -> list[int]:
    return [draw.choice((1, 300, 5_000, 40_000, 200_000)) for _ in range(8)]


def rows_of(deployment: Deployment) -> dict[str, Counter[str]]:
    """Return the rows of all tables; versions of tables, which `_epochs` has, depend on the setting."""
    return {table: rows for table, rows in contents(deployment).items() if table != "_epochs"}


def vectors_of(deployment: Deployment) -> dict[str, int]:
    """Return how many files of each table have a deletion vector."""
    location = location_of(str(deployment.folder / "warehouse"))
    files = {table: live_files(read_log(location, table)) for table in location.tables()}
    counts = {table: sum(file.vector is not None for file in listed) for table, listed in files.items()}
    return {table: count for table, count in counts.items() if count}


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASK_KEY", "0123456789abcdef0123")
    # Files of some rows have stored copies, too.
    monkeypatch.setattr(key_copies, "SMALL_BYTES", 2_000)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", partly_soaked(range(1), range(1, 50)))
def test_the_tables_are_equal_in_each_mode(tmp_path: Path, policy: str, seed: int) -> None:
    found = {}
    for mode, settings in MODES.items():
        deployment = Deployment(tmp_path / mode, sources(), **POLICIES[policy], **settings)
        deployment.run(cuts(random.Random(seed)))
        found[mode] = rows_of(deployment)
        assert bool(vectors_of(deployment)) is (mode != "never")
        assert not vectors_of(deployment).keys() & SYSTEM_TABLES.keys()
    for mode, rows in found.items():
        for table, wanted in found["never"].items():
            assert rows[table] == wanted, (mode, table)


@pytest.mark.parametrize("seed", partly_soaked(range(1), range(1, 50)))
def test_the_setting_may_change_between_any_two_batches(tmp_path: Path, seed: int) -> None:
    policy = "by time, made tuples, masks"
    plain = Deployment(tmp_path / "never", sources(), **POLICIES[policy], **MODES["never"])
    plain.run(cuts(random.Random(seed)))
    changed, draw = Deployment(tmp_path / "changed", sources(), **POLICIES[policy]), random.Random(-seed)
    modes = list(MODES.values())
    sizes = iter(cuts(random.Random(seed)))
    while True:
        changed.settings = {**changed.settings, **draw.choice(modes)}
        before = changed.batches
        changed.run([next(sizes, 1 << 30)], batches=1)
        if changed.batches == before:
            break
    wanted, found = rows_of(plain), rows_of(changed)
    for table in wanted:
        assert found[table] == wanted[table], table


def test_the_distributed_executor_writes_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    policy, sizes = "by time, made tuples, masks", cuts(random.Random(3))[:4]
    found = []
    for name, distributed in (
        ("local", None),
        ("distributed", lambda log_stream, segments: DistributedExecutor(spark, log_stream, segments)),
    ):
        folder = tmp_path / name
        deployment = Deployment(
            folder, sources(), None, distributed, **POLICIES[policy], **MODES["always"], local_bytes=1
        )
        deployment.run(sizes)
        assert vectors_of(deployment)
        found.append(rows_of(deployment))
    local, distributed_ = found
    for table in local:
        assert local[table] == distributed_[table], table

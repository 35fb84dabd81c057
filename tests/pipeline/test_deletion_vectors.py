"""With deletion vectors, without them, and with a setting that changes between batches, the tables are equal."""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from pipeline.commit.epoch import commit_epoch
from pipeline.compaction.after_batch import CompactionCredits, compact_after_batch
from pipeline.compaction.choose import deleted_share, sparse_files
from pipeline.compaction.rewrite import compact
from pipeline.executors.distributed import DistributedExecutor
from pipeline.lookup import key_copies
from pipeline.write.limits import CHECK_EVERY_COMMITS, COMPACTION_SHARE, SPARSE_SHARE
from schemas.tables import SYSTEM_TABLES
from tests.pipeline.deployment import Deployment, rows_of_tables
from tests.pipeline.test_executors import POLICIES
from tests.soaked import partly_soaked
from tests.truth import own
from warehouse.delta.data_files import DataFile
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


MASKED = "by time, made tuples, masks"


@cache
def rows_without_vectors(policy: str, seed: int) -> dict[str, Counter[str]]:
    """Return the rows of all tables without deletion vectors, which several tests compare with others."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as folder:
        plain = Deployment(Path(folder), sources(), **POLICIES[policy], **MODES["never"])
        plain.run(cuts(random.Random(seed)))
        assert not vectors_of(plain)
        return rows_of_tables(plain)


@pytest.mark.parametrize("policy", partly_soaked([MASKED], sorted(POLICIES.keys() - {MASKED})))
@pytest.mark.parametrize("seed", partly_soaked(range(1), range(1, 50)))
@pytest.mark.parametrize("mode", partly_soaked(["one byte"], ["always"]))
def test_the_tables_are_equal_in_each_mode(tmp_path: Path, policy: str, seed: int, mode: str) -> None:
    deployment = Deployment(tmp_path, sources(), **POLICIES[policy], **MODES[mode])
    deployment.run(cuts(random.Random(seed)))
    found = rows_of_tables(deployment)
    # Where the first batch has nearly all rows, later ones delete few, and files with them are compacted.
    assert vectors_of(deployment) or seed
    assert not vectors_of(deployment).keys() & SYSTEM_TABLES.keys()
    for table, wanted in rows_without_vectors(policy, seed).items():
        assert found[table] == wanted, table


@pytest.mark.parametrize("seed", partly_soaked(range(1), range(1, 50)))
def test_the_setting_may_change_between_any_two_batches(tmp_path: Path, seed: int) -> None:
    changed, draw = Deployment(tmp_path, sources(), **POLICIES[MASKED]), random.Random(-seed)
    modes = list(MODES.values())
    sizes = iter(cuts(random.Random(seed)))
    while True:
        changed.settings = {**changed.settings, **draw.choice(modes)}
        before = changed.batches
        changed.run([next(sizes, 1 << 30)], batches=1)
        if changed.batches == before:
            break
    wanted, found = rows_without_vectors(MASKED, seed), rows_of_tables(changed)
    for table in wanted:
        assert found[table] == wanted[table], table


@pytest.mark.parametrize("policy", partly_soaked([MASKED], sorted(POLICIES.keys() - {MASKED})))
@pytest.mark.parametrize("seed", partly_soaked([3], [0, 1, 2, *range(4, 50)]))
@pytest.mark.parametrize("mode", partly_soaked(["always"], ["one byte"]))
def test_the_distributed_executor_writes_the_same_rows(
    spark: SparkSession, tmp_path: Path, policy: str, seed: int, mode: str
) -> None:
    executor = partial(DistributedExecutor, spark)
    deployment = Deployment(
        tmp_path, sources(), None, executor, **POLICIES[policy], **MODES[mode], local_bytes=1
    )
    deployment.run(cuts(random.Random(seed)))
    found = rows_of_tables(deployment)
    assert vectors_of(deployment) or seed != 3
    for table, wanted in rows_without_vectors(policy, seed).items():
        assert found[table] == wanted, table


def test_compaction_leaves_deleted_rows_out_and_a_purge_leaves_no_vector(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, sources(), **POLICIES[MASKED], **MODES["always"])
    deployment.run(cuts(random.Random(0)))
    location = location_of(str(deployment.folder / "warehouse"))
    for purge in (False, True):
        with deployment.writer() as (warehouse, writer):
            tables = warehouse.open_tables
            names = [name for name in writer.state.versions if name not in SYSTEM_TABLES]
            before = {name: tables.version(name) for name in names}
            written = {name: compact(tables, name, purge=purge) for name in names}
            assert all(written[name] > 0 for name in vectors_of(deployment)), (
                "a table has vectors, and was not written"
            )
            versions = {name: tables.version(name) for name in names if tables.version(name) != before[name]}
            writer.state = commit_epoch(tables, writer.state, versions, ("compaction", int(purge)))
        shares = [
            deleted_share(file)
            for name in names
            for file in live_files(read_log(location, name))
            if file.vector
        ]
        assert all(share <= 1 / SPARSE_SHARE for share in shares)
        found = rows_of_tables(deployment)
        for table, wanted in rows_without_vectors(MASKED, 0).items():
            assert found[table] == wanted, table
    assert vectors_of(deployment) == {}
    for name in names:
        rows = DeltaTable(location.uri(name)).to_pyarrow_table
        if "deletionVectors" not in read_log(location, name).features:
            assert rows().num_rows == len(deployment.rows(name))


def test_sparse_files_are_written_again_within_the_credit_of_batches(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, sources(), **POLICIES[MASKED], **MODES["always"])
    deployment.run([2_000, 2_000, 2_000, 5_000, 5_000, 10_000, *[30_000] * 40])
    with deployment.writer() as (warehouse, _):
        tables, credits = warehouse.open_tables, CompactionCredits()
        name = next(name for name in vectors_of(deployment) if sparse_files(tables.files(name)))
        sparse = sparse_files(tables.files(name))
        before, many = {name: tables.version(name)}, {name: CHECK_EVERY_COMMITS}
        assert compact_after_batch(tables, before, many, credits, {}) == {}, (
            "without a credit nothing is written"
        )
        size = sum(file.size for file in sparse)
        credits.add(name, [DataFile(name, "p", -(-size // COMPACTION_SHARE), 1, "{}")])
        after = compact_after_batch(tables, before, many, credits, {})
        assert after == {name: before[name] + len(sparse)}
        assert sparse_files(tables.files(name)) == []
        assert 0 <= credits.of(name) < COMPACTION_SHARE

"""The local and the distributed executor write the same tables, row for row, system tables included, on any cuts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.executors.distributed import DistributedExecutor
from tests.pipeline.deployment import Deployment, contents
from tests.truth import own

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "by priority, with deletes": {
        "policies": {
            "default": {
                "policy": "source_priority",
                "priority": [own().info("b1").replicaset_uuid],
                "deletes": "all",
            }
        }
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


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [1])
def test_both_executors_write_the_same_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, seed: int
) -> None:
    monkeypatch.setenv("MASK_KEY", "0123456789abcdef0123")
    recording = own()
    sources = {name: recording.directory(name) for name in ("a1", "b1")}
    draw = random.Random(seed)
    cuts = [draw.choice((1, 5_000, 40_000, 200_000)) for _ in range(4)]
    found = []
    for name, distributed in (
        ("local", None),
        ("distributed", lambda log_stream, segments: DistributedExecutor(spark, log_stream, segments)),
    ):
        deployment = Deployment(tmp_path / name, sources, None, distributed, **POLICIES[policy])
        deployment.run(cuts)
        found.append(contents(deployment))
    local, distributed_ = found
    assert local.keys() == distributed_.keys()
    for table in local:
        assert local[table] == distributed_[table], table
    assert sum(local["_changelog"].values()) > 5_000

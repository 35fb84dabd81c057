"""Many UPDATEs of one key: the memory of a batch is bounded by its rows, and its time by their bytes."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline import partition
from schemas.errors import UnsupportedError
from tests.pipeline.deployment import Deployment
from tests.pipeline.memory_case import CHAINS, chain_of

MIB = 1 << 20
GROWING = {"splice", "fields"}


def run(rows: int, chains: Sequence[str], limit: int, folder: Path) -> list[dict[str, int]]:
    case = ["tests.pipeline.memory_case", "local", str(rows), "1", str(folder), ",".join(chains), str(limit)]
    command = [sys.executable, "-m", *case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_32_mib_of_updates_of_one_key_take_their_bytes(tmp_path: Path) -> None:
    """Before, a batch took a copy of the last tuple for each row, and the time of all rows before for each row."""
    rows, limit = 8_000, 2 * MIB
    fitting = limit // 4003
    for chain, found in zip(CHAINS, run(rows, [*CHAINS], limit, tmp_path), strict=True):
        assert found["driver"] < 350 + 8 * 32, chain
        assert found["seconds"] < 60, chain
        assert found["rows"] == (0 if chain in GROWING else 1), chain
        quarantined = pytest.approx(rows - fitting, abs=3) if chain in GROWING else 0
        assert found["quarantined"] == quarantined, chain


@pytest.mark.soak
@pytest.mark.parametrize("chain", CHAINS)
def test_2_gib_of_updates_of_one_key_take_the_memory_of_a_batch(tmp_path: Path, chain: str) -> None:
    (found,) = run(2 * 1024 * MIB // 4000, [chain], 16 * MIB, tmp_path)
    assert found["driver"] < 350 + 8 * 128
    assert found["rows"] == (0 if chain in GROWING else 1)


def test_more_of_one_key_than_a_batch_holds_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "MAX_COLUMN_BYTES", 400_000)
    member = chain_of(tmp_path / "logs", 200, "set")
    deployment = Deployment(tmp_path, {"a1": member.path}, {"a1": member.replicaset})
    with pytest.raises(UnsupportedError, match="one key's UPDATEs and UPSERTs in a batch"):
        deployment.run()
    assert deployment.run(budget=1) > 1  # in smaller batches it is read
    assert len(deployment.rows("orders", ["_key"])) == 1


def test_a_row_that_makes_a_tuple_too_long_is_named(tmp_path: Path) -> None:
    member = chain_of(tmp_path / "logs", 20, "fields")
    deployment = Deployment(
        tmp_path, {"a1": member.path}, {"a1": member.replicaset}, max_tuple_bytes="40 KiB"
    )
    deployment.run()
    rows = sorted(
        deployment.rows("_quarantine", ["space", "lsn", "reason", "tuple"]), key=lambda row: row["lsn"]
    )
    assert rows[0]["space"] == "orders"
    assert "where max_tuple_bytes is 40960" in rows[0]["reason"]
    assert len(rows) == 10
    assert len(rows[0]["tuple"]) > 40_000
    assert {row["tuple"] for row in rows[1:]} == {None}
    assert deployment.rows("orders", ["_key"]) == []

"""The rolling proof with a real server: slices cover each key, a difference is found, errors are lines of the log."""

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from config.deployment import Proof
from jobs.prove import servers_to_read
from observe.facts import DeploymentFacts
from observe.problems import proof_problems
from observe.proof import rolling, space_proof
from observe.proof.rolling import RollingProof
from observe.proof.space_proof import ProofLimits, ReadRateLimit
from pipeline.commit.load import load_state
from schemas.problems import Problem
from sources.iproto.client import connect
from sources.iproto.space_pages import SpacePages
from tests.jobs.deployment import Deployment
from tests.jobs.test_prove import CHANGE_A_BYTE, CREATE, FILL
from tests.live.server import Tarantool
from warehouse.delta.location import location_of
from warehouse.warehouse import Warehouse

pytestmark = pytest.mark.live

HOUR = 3600.0


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling, "SLICE_TUPLES", 300)
    monkeypatch.setattr(rolling, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(space_proof, "COMPARISON_PAUSE_SECONDS", 0.01)


@pytest.fixture
def deployment(tmp_path: Path, tarantool: Tarantool) -> Deployment:
    tarantool.eval(CREATE + FILL)
    found = Deployment(tmp_path, {"a1": tarantool.directory})
    found.write()
    return found


def proof_of(
    deployment: Deployment, server: Tarantool, every: str = "2 hours", share: float = 0.5
) -> RollingProof:
    config = deployment.config()
    peers = servers_to_read(config, [f"unix/:{server.socket}"])
    state = load_state(Warehouse(None, config.warehouse, config.database))
    section = Proof(every=every, share_of_time=share)
    file = str(deployment.folder / "proof.json")
    return RollingProof(section, location_of(config.warehouse, config.database), peers, lambda: state, file)


def compared_slices(proof: RollingProof, limit: int = 100) -> int:
    """Compare slices until none is due, or up to a limit; return their number."""

    async def run() -> int:
        count = 0
        while count < limit and await proof.compare_next(proof.replicasets[0]):
            count += 1
        return count

    return asyncio.run(run())


def facts_of(deployment: Deployment) -> DeploymentFacts:
    return DeploymentFacts(deployment.location)


def problems_of(deployment: Deployment, after_hours: float = 0.0) -> list[Problem]:
    now = datetime.now(UTC) + timedelta(hours=after_hours)
    return list(proof_problems(facts_of(deployment), HOUR, now))


def test_slices_cover_each_key_and_a_restart_continues_the_round(
    deployment: Deployment, tarantool: Tarantool
) -> None:
    assert [one.condition for one in problems_of(deployment, 2)] == ["proof_stale"]
    began = datetime.now(UTC)
    assert compared_slices(proof_of(deployment, tarantool), 2) == 2
    assert deployment.rows("_validations") == []
    assert compared_slices(proof_of(deployment, tarantool)) > 2
    stored = {row["table"]: row for row in deployment.rows("_validations")}
    assert {table: row["rows"] for table, row in stored.items()} == {"orders": 2727, "pairs": 700}
    assert all(row["holds"] and row["unexpected"] == 0 for row in stored.values())
    facts = facts_of(deployment)
    assert facts.proven_at == min(row["validated_at"] for row in stored.values()) > began
    assert problems_of(deployment) == []
    assert [one.condition for one in problems_of(deployment, 1.1)] == ["proof_stale"]
    assert compared_slices(proof_of(deployment, tarantool)) == 0  # the next round is not due yet


@pytest.mark.parametrize("key", [2, 2999])
def test_a_difference_is_found_in_its_slice_and_is_gone_after_the_next_round(
    deployment: Deployment, tarantool: Tarantool, key: int, caplog: pytest.LogCaptureFixture
) -> None:
    tarantool.eval(CHANGE_A_BYTE, key, "stete")
    assert compared_slices(proof_of(deployment, tarantool)) > 3
    first, *others = (row for row in deployment.rows("_validations") if row["table"] == "orders")
    assert (first["holds"], first["unexpected"]) == (False, 1)
    assert f"key [{key}]" in first["examples"]
    assert [row["holds"] for row in others] == [False]
    assert "stete" in caplog.text
    found = [one for one in problems_of(deployment) if one.condition == "proof_differs"]
    assert [(one.subject, one.text[:12]) for one in found] == [("table orders", "1 keys diffe")]
    tarantool.eval(CHANGE_A_BYTE, key, "state")
    assert compared_slices(proof_of(deployment, tarantool, every="10 milliseconds"), 20) == 20
    assert [one for one in problems_of(deployment) if one.condition == "proof_differs"] == []


def test_a_server_that_is_away_is_one_line_and_the_round_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Tarantool(tmp_path / "master", socket=str(tmp_path / "socket")) as server:
        server.eval(CREATE + FILL)
        deployment = Deployment(tmp_path, {"a1": server.directory})
        deployment.write()
        proof = proof_of(deployment, server)
        assert compared_slices(proof, 2) == 2
        server.stop()
        with caplog.at_level(logging.WARNING):
            assert compared_slices(proof) == 0
            assert compared_slices(proof) == 0
        assert caplog.text.count("is not compared") == 1
        server.start()
        assert compared_slices(proof) > 2
    assert sorted(row["rows"] for row in deployment.rows("_validations")) == [700, 2727]


def test_tables_that_lag_are_tried_again_and_then_named(
    deployment: Deployment, tarantool: Tarantool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling, "PATIENCE_SECONDS", 0.2)
    tarantool.eval("box.space.orders:replace{1, 'later', 1}")
    assert compared_slices(proof_of(deployment, tarantool)) > 4
    stored = {row["table"]: row for row in deployment.rows("_validations")}
    assert (stored["orders"]["holds"], stored["pairs"]["holds"]) == (False, True)
    assert "do not reach the vclock" in stored["orders"]["error"]
    (stale,) = problems_of(deployment, 2)
    assert "do not reach the vclock" in stale.text


def test_the_thread_compares_and_ends(deployment: Deployment, tarantool: Tarantool) -> None:
    tarantool.eval(CHANGE_A_BYTE, 1234, "stete")
    began = time.monotonic()
    with proof_of(deployment, tarantool).running():
        while not deployment.rows("_validations") and time.monotonic() - began < 60:
            time.sleep(0.1)
        stopped = time.monotonic()
    assert time.monotonic() - stopped < rolling.STOP_SECONDS / 2
    assert [row["unexpected"] for row in deployment.rows("_validations")] == [1]


async def test_requests_wait_for_the_server_at_most_the_share_of_time(
    deployment: Deployment, tarantool: Tarantool
) -> None:
    peer = servers_to_read(deployment.config(), [f"unix/:{tarantool.socket}"])[0][0]
    began = time.monotonic()
    connection = await connect(peer, 20)
    limit = ReadRateLimit(ProofLimits(share_of_time=0.1), connection)
    pages = SpacePages(connection, tarantool.eval("return box.space.orders.id"))
    for _ in range(20):
        await limit.wait(len(await pages.read_page(None, 1000)))
    spent = connection.answer_seconds
    connection.close()
    assert 0.0 < spent / (time.monotonic() - began) <= 0.1

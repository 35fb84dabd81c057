"""Recorded servers whose rules are easily taken otherwise: the tables have the servers' tuples, on every cut."""

from pathlib import Path

import pytest

from pipeline.batch import MakeDistributed
from tests.pipeline.deployment import Deployment
from tests.recordings import rules
from tests.soaked import partly_soaked
from udfs.versions.key_state import UNCHECKED_CONSTRAINT


@pytest.mark.parametrize("budget", partly_soaked([None, 1], [400]))
def test_spaces_that_a_replace_of_their_definition_creates(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None
) -> None:
    """2.6.0: direct REPLACE rows of `_space` and `_index`, and triggers that make such rows of INSERTs."""
    folder = rules.directory("ddl_by_replace")
    deployment = Deployment(tmp_path, {"a1": folder}, distributed=executor)
    deployment.run(budget)
    held = rules.truth("ddl_by_replace")
    assert {name: deployment.tuples(name) for name in held} == held
    assert deployment.rows("_pending") == []
    assert deployment.rows("_quarantine") == []


@pytest.mark.parametrize("budget", partly_soaked([None, 1], [400]))
def test_upserts_of_vinyl_whose_results_do_not_fit(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None
) -> None:
    """3.9: the server keeps the tuple; beside each vinyl space is a memtx one for which it has refused the rows."""
    deployment = Deployment(tmp_path, {"a1": rules.directory("vinyl_upserts")}, distributed=executor)
    deployment.run(budget)
    held = rules.truth("vinyl_upserts")
    assert {name: deployment.tuples(name) for name in held} == held
    reasons = {(row["space"], row["reason"]) for row in deployment.rows("_quarantine") if not row["misfits"]}
    assert reasons == {("ck_vinyl", UNCHECKED_CONSTRAINT)}

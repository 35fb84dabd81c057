"""Recorded servers whose rules are easily taken otherwise: the tables have the servers' tuples, on every cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.batch import MakeDistributed
from tests.pipeline.deployment import Deployment
from tests.recordings import rules


@pytest.mark.parametrize("budget", [None, 1, 400])
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

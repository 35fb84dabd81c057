"""What a batch asks of the store for each table: on a local disk a listing takes time for each commit of the log."""

from pathlib import Path

import pytest

from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment
from warehouse.delta.location import WarehouseLocation

SPACES = range(600, 604)


def test_a_table_that_a_batch_has_open_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, "a1")
    for space in SPACES:
        node.define(space, f"space{space}").put(space, 1, "x", 5, 1, at=1)
    node.close()
    deployment = Deployment.of(tmp_path, node)
    looked_for: list[str] = []
    has = WarehouseLocation.has

    def recording_has(location: WarehouseLocation, table: str) -> bool:
        looked_for.append(table)
        return has(location, table)

    monkeypatch.setattr(WarehouseLocation, "has", recording_has)
    with deployment.writer() as (_, writer):
        while deployment.batch(writer) is not None:
            pass
        assert {"space600", "space603"} <= set(looked_for)
        looked_for.clear()
        for space in SPACES:
            node.put(space, 2, "y", 6, 1, at=2)
        node.close()
        while deployment.batch(writer) is not None:
            pass
    assert looked_for == []
    assert all(len(deployment.table(f"space{space}")) == 2 for space in SPACES)

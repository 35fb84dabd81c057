"""Read your writes: a row is said to be in the tables exactly when the tables of a committed epoch have it."""

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from prometheus_client.core import CollectorRegistry

from jobs.wait import wait
from observe import applied_rows
from observe.applied_rows import AppliedRows, applied_row
from observe.status_page import status_page
from schemas.errors import ConfigurationError
from sources.iproto.address import Address
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment
from warehouse.delta.location import WarehouseLocation

UNKNOWN = "00000000-0000-4000-8000-00000000dead"


def written(folder: Path, rows: int) -> tuple[Deployment, Node]:
    node = Node(folder, "a1").define(600, "users", (("id", "unsigned"),))
    for number in range(rows):
        node.put(600, number)
    node.close()
    return Deployment.of(folder, node), node


def test_no_row_is_said_to_be_there_before_its_epoch(tmp_path: Path) -> None:
    deployment, node = written(tmp_path, 300)
    asked = 0
    while True:
        with deployment.writer() as (_, writer):
            if deployment.batch(writer, 1) is None:
                break
        location = deployment.location
        rows = deployment.rows("_changelog", ["lsn", "epoch", "global_id"])
        epochs = {row["lsn"]: row["epoch"] for row in rows if row["global_id"] == 2}
        last = max(epochs, default=0)
        for lsn in {1, last, last // 2, last + 1, last + 100} - {0}:
            found = applied_row(location, node.uuid, lsn)
            assert found.is_applied == (lsn <= last), (lsn, last)
            assert found.settled_lsn == last
            assert found.epoch == (epochs[lsn] if lsn <= last else None)
            asked += 1
        if asked > 60:
            deployment.run()
            break
    assert applied_row(deployment.location, node.uuid, 300).is_applied


def test_an_instance_that_the_tables_do_not_know_is_waited_for(tmp_path: Path) -> None:
    deployment, node = written(tmp_path, 3)
    location = deployment.location
    slept: list[float] = []
    assert not AppliedRows(location).wait(node.uuid, 1, 0.05, slept.append).is_applied
    deployment.run()
    found = AppliedRows(location).wait(UNKNOWN, 1, 0.05)
    assert (found.is_applied, found.settled_lsn, found.epoch) == (False, 0, None)
    assert AppliedRows(location).wait(node.uuid, 3, 0).is_applied


def test_many_questions_read_the_tables_once_for_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, node = written(tmp_path, 3)
    deployment.run()
    opened: list[str] = []
    read = WarehouseLocation.open

    def counted(location: WarehouseLocation, table: str, version: int | None = None) -> DeltaTable | None:
        opened.append(table)
        return read(location, table, version)

    monkeypatch.setattr(WarehouseLocation, "open", counted)
    monkeypatch.setattr(applied_rows, "POLL_SECONDS", 1000.0)
    asked = AppliedRows(deployment.location)
    assert asked.wait(node.uuid, 1, 0).is_applied
    assert opened.count("_vclock") == 1
    opened.clear()
    for lsn in (2, 3, 3):
        assert asked.wait(node.uuid, lsn, 0).is_applied
    assert opened == []
    last = asked.wait(node.uuid, 3, 0).settled_lsn
    assert not asked.wait(node.uuid, last + 1, 0).is_applied
    node.put(600, 99).close()
    deployment.run()
    assert asked.wait(node.uuid, last + 1, 0).is_applied
    assert opened.count("_vclock") > 0


def test_it_returns_soon_after_the_epoch(tmp_path: Path) -> None:
    deployment, node = written(tmp_path, 3)
    deployment.run()
    begun = applied_row(deployment.location, node.uuid, 1).settled_lsn
    node.put(600, 99).close()
    results: list[Any] = []
    waiter = threading.Thread(
        target=lambda: results.append(AppliedRows(deployment.location).wait(node.uuid, begun + 1, 60))
    )
    waiter.start()
    deployment.run()
    waiter.join(60)
    assert results[0].is_applied


def test_the_command_and_its_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deployment, node = written(tmp_path, 3)
    deployment.run()
    config = deployment.config()
    assert wait(config, node.uuid, 2, 0) == 0
    assert f"lsn 2 of {node.uuid} is in the tables since epoch 0" in capsys.readouterr().out
    assert wait(config, 2, 10**6, 0, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["is_applied"] is False
    with pytest.raises(ConfigurationError, match="no instance has the global id 77"):
        wait(config, 77, 1, 0)


def test_the_page_of_the_status_server(tmp_path: Path) -> None:
    deployment, node = written(tmp_path, 3)
    deployment.run()
    location = deployment.location
    pages = {"/wait": AppliedRows(location).page}
    with status_page(Address("127.0.0.1", 0, None), CollectorRegistry(), dict, pages) as port:
        address = f"http://127.0.0.1:{port}/wait?instance={node.uuid}&lsn="
        with urllib.request.urlopen(f"{address}2") as answer:
            assert json.load(answer)["is_applied"] is True
        with urllib.request.urlopen(f"{address}{10**6}&timeout=0.1") as answer:
            assert json.load(answer)["is_applied"] is False
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/wait?instance=x")

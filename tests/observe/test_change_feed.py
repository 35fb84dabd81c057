"""Applying the change feed in order gives the table at each epoch; the feed has no unchanged rows."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs.changes import show
from jobs.explain import show as explain_batch
from observe.change_feed import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, changes
from schemas.errors import ConfigurationError, WarehouseError
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment
from tests.soaked import partly_soaked
from tests.truth import OWN_ROOT
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.newest_epoch import last_epoch
from warehouse.delta.read import query_rows, rows_of

USERS = 600
IMAGE = ("_tuple", "_replicaset_id", "_global_id", "_lsn")


def rows_at(location: WarehouseLocation, table: str, version: int) -> dict[bytes, tuple[Any, ...]]:
    opened = location.open(table, version)
    assert opened is not None
    return {row["_key"]: tuple(row[name] for name in IMAGE) for row in rows_of(opened, ["_key", *IMAGE])}


def apply_changes(rows: dict[bytes, tuple[Any, ...]], changed: pa.Table) -> None:
    """Apply a part of a feed, and check that each operation fits the current row."""
    for row in changed.select(["_key", *IMAGE, "_change_type"]).to_pylist():
        key, image, kind = row["_key"], tuple(row[name] for name in IMAGE), row["_change_type"]
        if kind == INSERT:
            assert key not in rows
            rows[key] = image
        elif kind == UPDATE_AFTER:
            assert rows[key] != image
            rows[key] = image
        else:
            assert rows[key] == image
            assert kind in (DELETE, UPDATE_BEFORE)
            if kind == DELETE:
                del rows[key]


@pytest.fixture(scope="module", params=["never", "always"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WarehouseLocation:
    """Return the tables of the recorded replicasets after many batches, without deletion vectors and with them."""
    folder = tmp_path_factory.mktemp("feed")
    sources = {name: OWN_ROOT / "2.6.0" / name for name in ("a1", "b1")}
    deployment = Deployment(folder, sources, deletion_vectors=request.param)
    deployment.run(budget=20_000)
    return deployment.location


TABLES = ["accounts", "docs", "counters", "ledger", "types", "rekeyed", "to_trunc"]
IN_SUITE = [("accounts", 7), ("accounts", 1_000_000), ("types", 7), ("rekeyed", 7), ("to_trunc", 7)]
"""Tables whose changes differ in kind, in small ranges of rows, and one table in a single range."""


@pytest.mark.parametrize(
    ("table", "range_rows"),
    partly_soaked(IN_SUITE, sorted({*product(TABLES, (7, 1_000_000))} - {*IN_SUITE})),
)
def test_applying_the_feed_gives_the_table_at_each_epoch(
    recorded: WarehouseLocation, table: str, range_rows: int
) -> None:
    epochs = recorded.open("_epochs")
    assert epochs is not None
    versions = {row["epoch"]: dict(row["versions"]).get(table) for row in rows_of(epochs)}
    assert len(versions) > 5
    rows: dict[bytes, tuple[Any, ...]] = {}
    parts = list(changes(recorded, table, range_rows=range_rows))
    for epoch, version in sorted(versions.items()):
        for part in parts:
            if part.epoch == epoch:
                apply_changes(rows, part.rows)
        assert rows == ({} if version is None else rows_at(recorded, table, version))


def test_a_consumer_continues_where_it_stopped(recorded: WarehouseLocation) -> None:
    complete = [(part.epoch, part.rows.num_rows) for part in changes(recorded, "accounts")]
    middle = complete[len(complete) // 2][0]
    first = [(part.epoch, part.rows.num_rows) for part in changes(recorded, "accounts", upto=middle)]
    second = [(part.epoch, part.rows.num_rows) for part in changes(recorded, "accounts", after=middle)]
    assert first
    assert second
    assert first + second == complete


def test_an_unchanged_row_in_a_changed_file_is_left_out(tmp_path: Path) -> None:
    a = Node(tmp_path, "a1").define(USERS, "users")
    for key in range(100):
        a.put(USERS, key, "name", key, 1)
    deployment = Deployment.aggregated(tmp_path, a)
    a.put(USERS, 5, "other", 5, 2).delete(USERS, 6).put(USERS, 200, "new", 1, 1).close()
    deployment.run()
    (part,) = changes(deployment.location, "users", after=0)
    kinds = part.rows.select(["id", "_change_type"]).to_pylist()
    assert [(int(row["id"]), row["_change_type"]) for row in kinds] == [
        (5, UPDATE_BEFORE),
        (5, UPDATE_AFTER),
        (6, DELETE),
        (200, INSERT),
    ]


def test_a_masked_table_has_a_feed_without_tuples(tmp_path: Path) -> None:
    a = Node(tmp_path, "a1").define(USERS, "users")
    a.put(USERS, 1, "secret", 1, 1).put(USERS, 2, "hidden", 1, 1).close()
    masks = {"masks": {"users": {"name": "drop"}}}
    deployment = Deployment.aggregated(tmp_path, a, spaces=masks)
    a.put(USERS, 1, "other", 2, 2).close()
    deployment.run()
    (part,) = changes(deployment.location, "users", after=0)
    assert not {"_tuple", "name"} & set(part.rows.column_names)
    assert part.rows["_change_type"].to_pylist() == [UPDATE_BEFORE, UPDATE_AFTER]


def test_a_masked_table_has_the_changes_of_made_rows(tmp_path: Path) -> None:
    """The last writer, which names the row, stays the same where another replicaset changes the sum."""
    a, b = (Node(tmp_path, name).define(USERS, "users") for name in ("a1", "b1"))
    a.put(USERS, 1, "secret", 5, 1).put(USERS, 2, "x", 1, 1).close()
    b.put(USERS, 1, "hidden", 7, 1, at=9).put(USERS, 2, "y", 1, 1, at=9).close()
    settings: dict[str, Any] = {
        "spaces": {"masks": {"users": {"name": "drop"}}},
        "policies": {"spaces": {"users": {"policy": "sum", "columns": ["value"]}}},
    }
    sources = {node.path.name: node.path for node in (a, b)}
    deployment = Deployment(tmp_path, sources, replicasets_of(*sources), **settings)
    deployment.run()
    a.put(USERS, 1, "secret", 50, 1, at=3).close()
    deployment.run()
    (part,) = changes(deployment.location, "users", after=0)
    shown = part.rows.select(["id", "value", "_change_type"]).to_pylist()
    assert [(row["value"], row["_change_type"]) for row in shown] == [(12, UPDATE_BEFORE), (57, UPDATE_AFTER)]


def test_the_command_prints_lines_and_follows(
    recorded: WarehouseLocation, capsys: pytest.CaptureFixture[str]
) -> None:
    show(recorded, "accounts")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    table = recorded.open("accounts")
    assert table is not None
    net = sum({"insert": 1, "update": 0, "delete": -1}[line["op"]] for line in lines)
    assert net == query_rows(table, "SELECT count(*) AS n FROM opened")[0]["n"]
    assert {(line["before"] is None, line["after"] is None) for line in lines if line["op"] == "update"} == {
        (False, False)
    }
    assert all(line["before"]["id"] == line["after"]["id"] for line in lines if line["op"] == "update")

    class StoppedError(Exception):
        pass

    def stop(_seconds: float) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        show(recorded, "accounts", after_epoch=0, follow=True, sleep=stop)
    assert len(capsys.readouterr().out.splitlines()) == sum(line["epoch"] > 0 for line in lines)


def test_the_command_never_names_an_epoch_that_is_not_there_yet(
    recorded: WarehouseLocation, capsys: pytest.CaptureFixture[str]
) -> None:
    """A consumer continues with the epoch that is named, so a later one would lose the changes up to it."""
    newest = last_epoch(recorded)
    show(recorded, "accounts", newest - 1, newest + 50, config="c.yaml")
    said = capsys.readouterr().err
    assert f"up to epoch {newest} " in said
    assert f"aggregator changes accounts --config c.yaml --after {newest}\n" in said


def test_before_the_first_batch_there_is_no_feed(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match="no batch is done yet"):
        show(location_of(str(tmp_path), "aggregator"), "accounts")
    with pytest.raises(WarehouseError, match="no batch is done yet"):
        explain_batch(location_of(str(tmp_path), "aggregator"), None)


def test_an_unknown_epoch_or_table_is_refused(recorded: WarehouseLocation) -> None:
    with pytest.raises(ConfigurationError, match="there is no epoch 4711"):
        list(changes(recorded, "accounts", after=4711))
    with pytest.raises(WarehouseError, match="there is no such table"):
        list(changes(recorded, "nothing"))

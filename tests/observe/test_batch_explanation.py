"""`explain-batch` shows what a known batch read, logged, decided and wrote."""

import json
from pathlib import Path

import pytest

from jobs.explain import _written_text, explanation_lines, show
from observe.batch_explanation import BatchExplanation, explain_batch
from schemas.errors import ConfigurationError
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment
from warehouse.delta.location import WarehouseLocation

USERS, UNKNOWN = 600, 700


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> WarehouseLocation:
    """Return a warehouse after three batches.

    The first batch reads one replicaset; the second reads another one, with a conflict and a misfit; the third reads a
    row of an undefined space.
    """
    folder = tmp_path_factory.mktemp("explained")
    a, b = Node(folder, "a1").define(USERS, "users"), Node(folder, "b1").define(USERS, "users")
    a.put(USERS, 1, "one", 1, 1).put(USERS, 2, "two", 2, 2).update(USERS, 1, ["+", 2, 1])
    first = Deployment.aggregated(folder, a)
    b.put(USERS, 1, "other", 3, 9, at=5.0).put(USERS, 3, "three", "no integer", 1).close()
    second = Deployment.of(folder, a, b)
    second.offset, second.batches = first.offset, first.batches
    second.run()
    a.put(UNKNOWN, 1, "x", 1, 1).close()
    second.run()
    return second.location


def rows(found: BatchExplanation, kind: str) -> int:
    return sum(int(row["rows"]) for row in found.changes if row["type"] == kind and row["space"] == "users")


def test_read_ranges_and_logged_rows(location: WarehouseLocation) -> None:
    found = explain_batch(location, 0)
    (read,) = found.read
    assert (read.source, read.first) == ("a1", ("00000000000000000000.xlog", 0))
    assert read.last[0].endswith(".xlog")
    assert (rows(found, "REPLACE"), rows(found, "UPDATE"), found.copied_rows) == (2, 1, 0)
    assert [(row["space"], row["table_name"]) for row in found.definitions] == [("users", "users")]
    assert [*found.decisions, *found.set_aside, *found.waiting, *found.gaps] == []


def test_decisions_quarantined_rows_and_written_files(location: WarehouseLocation) -> None:
    found = explain_batch(location, 1)
    assert [one.source for one in found.read] == ["b1"]
    assert [(row["space"], row["kind"], row["rows"]) for row in found.decisions] == [("users", "key", 1)]
    assert [(row["space"], row["is_in_table"], row["rows"]) for row in found.set_aside] == [
        ("users", True, 1)
    ]
    written = {one.table: one for one in found.written}
    assert (written["users"].before, written["users"].version) == (1, 2)
    # The file with the two rows is replaced by one with the third row and the winner.
    assert (written["users"].added, written["users"].removed, written["users"].rows) == (
        1,
        1,
        3,
    )
    assert written["_conflicts"].rows == 1


def test_pending_rows(location: WarehouseLocation) -> None:
    found = explain_batch(location, 2)
    assert [(row["source"], row["before"], row["after"]) for row in found.waiting] == [("a1", 0, 1)]
    assert found.copied_rows == 0


def test_an_unknown_epoch_is_refused(location: WarehouseLocation) -> None:
    with pytest.raises(ConfigurationError, match="there is no epoch 3"):
        explain_batch(location, 3)


def test_the_command_prints_a_batch_as_text_and_as_json(
    location: WarehouseLocation, capsys: pytest.CaptureFixture[str]
) -> None:
    show(location, None, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["epoch"]["epoch"] == 2
    assert set(document) >= {"read", "changes", "waiting", "written", "copies"}
    show(location, 1)
    printed = capsys.readouterr().out
    assert printed.splitlines() == list(explanation_lines(explain_batch(location, 1)))
    label = f"b1 ({replicasets_of('b1')['b1'][:8]})"
    assert f"\n  {label}  from " in printed
    assert f"\n  replicaset {label}  users  users  present" in printed
    assert "decided (_conflicts):\n  users  key  " in printed


def test_an_epoch_whose_predecessor_maintenance_has_removed(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(USERS, "users").put(USERS, 1, "one", 1, 1)
    deployment = Deployment.aggregated(tmp_path, node)
    node.put(USERS, 2, "two", 1, 1).close()
    deployment.run()
    where = deployment.location
    assert explain_batch(where, 1).written[0].before is not None
    epochs = where.open("_epochs")
    assert epochs is not None
    epochs.delete("epoch = 0")
    found = explain_batch(where, 1)
    assert (*found.written, *found.waiting) == ()
    assert rows(found, "REPLACE") == 1
    assert "maintenance has removed the epoch before" in [*explanation_lines(found)][-1]


def test_rows_that_a_deletion_vector_deletes_are_counted(tmp_path: Path) -> None:
    a = Node(tmp_path, "a1").define(USERS, "users")
    a.put(USERS, 1, "one", 1, 1).put(USERS, 2, "two", 2, 2).put(USERS, 3, "three", 3, 3)
    deployment = Deployment.aggregated(tmp_path, a, deletion_vectors="always")
    a.put(USERS, 1, "later", 1, 2).close()
    deployment.run()
    found = explain_batch(deployment.location, 1)
    (written,) = [one for one in found.written if one.table == "users"]
    assert (written.added, written.removed, written.rows, written.deleted_rows) == (
        1,
        0,
        1,
        1,
    )
    assert "1 files added with 1 rows, 0 removed, 1 rows deleted in files that stay" in _written_text(written)

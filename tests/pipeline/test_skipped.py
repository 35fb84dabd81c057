"""Rows that are lost and accepted as lost: `_gaps` names them, and an INSERT does not prove that its key is new."""

from pathlib import Path
from typing import Self

import msgpack
import pytest

from pipeline.batch import BatchWriter
from pipeline.commit.load import load_state
from pipeline.requests.snapshots import heal, read_spaces_again
from schemas.iproto import BodyKey, RequestType, RowFlag
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.jobs.written import BEGAN, Node
from tests.pipeline.deployment import Deployment
from warehouse.warehouse import Warehouse

S = 600


class LossyNode(Node):
    """A member whose log lacks rows."""

    def lose(self, rows: int) -> Self:
        """Leave out the next rows."""
        self._lsn += rows
        return self

    def insert(self, space_id: int, *fields: object) -> Node:
        return self.row(RequestType.INSERT, space_id, {int(BodyKey.TUPLE): list(fields)})

    def put_sync(self, space_id: int, *fields: object) -> Node:
        """REPLACE a tuple in a synchronous transaction."""
        self._lsn += 1
        body = encode_body(space_id=space_id, tuple_=msgpack.packb(list(fields)))
        flags = RowFlag.WAIT_SYNC | RowFlag.WAIT_ACK
        row = encode_row(RequestType.REPLACE, body, replica_id=1, lsn=self._lsn, timestamp=BEGAN, flags=flags)
        return self.add(row)

    def confirm(self) -> Node:
        """Confirm all synchronous transactions so far."""
        body = {int(BodyKey.REPLICA_ID): 1, int(BodyKey.LSN): self._lsn}
        return self._row(RequestType.RAFT_CONFIRM, msgpack.packb(body), 1.0)


def begun(folder: Path) -> LossyNode:
    """Return a log with two rows, behind which two others are lost."""
    return LossyNode(folder, "a1", "2.11.0").define(S, "s").put(S, 1, "first", 1, 1)


def deployment_of(folder: Path, node: Node, on_gap: str = "skip") -> Deployment:
    return Deployment.of(folder, node, on_gap=on_gap)


def states(deployment: Deployment) -> dict[tuple[int, int], set[str]]:
    """Return the states of each gap in the newest epoch that has it, by its lsns."""
    found: dict[tuple[int, int], tuple[int, set[str]]] = {}
    for row in sorted(deployment.rows("_gaps"), key=lambda row: int(row["epoch"])):
        epoch, known = found.get((row["first_lsn"], row["last_lsn"]), (-1, set()))
        same = known if epoch == row["epoch"] else set()
        found[row["first_lsn"], row["last_lsn"]] = (row["epoch"], same | {row["state"]})
    return {lsns: known for lsns, (_, known) in found.items()}


def read_all(deployment: Deployment, writer: BatchWriter) -> None:
    while deployment.batch(writer) is not None:
        pass


def has_loss(writer: BatchWriter, warehouse: Warehouse) -> list[bool]:
    """Return what is known of lost rows: after the last batch, and after a start."""
    both = (writer.state, load_state(warehouse))
    return [one.has_loss for state in both for one in state.replicasets.values()]


def check_known_key(deployment: Deployment, node: LossyNode, writer: BatchWriter) -> None:
    """Insert a key that the tables have: the row that removed it is lost."""
    node.insert(S, 1, "again", 1, 1).close()
    read_all(deployment, writer)
    assert deployment.table("s")
    assert [row["name"] for row in deployment.rows("s") if row["id"] == 1] == ["again"]


@pytest.mark.parametrize("budget", [None, 1])
def test_a_gap_before_a_transaction_that_waits(tmp_path: Path, budget: int | None) -> None:
    node = begun(tmp_path)
    node.is_apart = True
    node.lose(2).put(S, 2, "behind", 1, 1)
    node.put_sync(S, 3, "waits", 1, 1)
    node.close()
    deployment = deployment_of(tmp_path, node)
    deployment.run(budget)
    assert states(deployment) == {(5, 6): {"skipped"}}
    node.confirm()
    node.close()
    with deployment.writer() as (warehouse, writer):
        read_all(deployment, writer)
        assert states(deployment) == {(5, 6): {"skipped"}}
        assert has_loss(writer, warehouse) == [True, True]
        check_known_key(deployment, node, writer)


def test_a_gap_behind_a_transaction_that_waits(tmp_path: Path) -> None:
    node = begun(tmp_path)
    node.put_sync(S, 3, "waits", 1, 1)
    node.lose(2).put(S, 2, "behind", 1, 1)
    node.close()
    deployment = deployment_of(tmp_path, node)
    deployment.run()
    assert states(deployment) == {(6, 7): {"open"}}
    node.confirm()
    node.close()
    deployment.run()
    assert states(deployment) == {(6, 7): {"skipped"}}


def test_a_gap_that_was_held_before(tmp_path: Path) -> None:
    node = begun(tmp_path)
    node.lose(2).put(S, 2, "behind", 1, 1).close()
    deployment = deployment_of(tmp_path, node, on_gap="hold")
    deployment.run()
    assert states(deployment) == {(5, 6): {"open"}}
    deployment.settings["on_gap"] = "skip"
    node.put(S, 3, "later", 1, 1).close()
    deployment.run()
    assert states(deployment) == {(5, 6): {"skipped"}}
    assert len(deployment.table("s")) == 3


@pytest.mark.parametrize("kind", ["heal", "snapshot"])
def test_a_snapshot_that_replaces_not_everything(tmp_path: Path, kind: str) -> None:
    """A snapshot that heals may be older than the gap; one of another space says nothing of this one."""
    node = begun(tmp_path)
    node.define(S + 1, "other")
    node.snapshot({S: [(1, "first", 1, 1)]})
    node.lose(2).put(S, 2, "behind", 1, 1).close()
    deployment = deployment_of(tmp_path, node)
    with deployment.writer() as (warehouse, writer):
        read_all(deployment, writer)
        assert has_loss(writer, warehouse) == [True, True]
        if kind == "heal":
            heal(deployment.config(), warehouse, writer, "a1", "heal")
        else:
            read_spaces_again(deployment.config(), warehouse, writer, ["other"], "a1", "snapshot")
        assert has_loss(writer, warehouse) == [True, True]
        check_known_key(deployment, node, writer)


def test_a_gap_behind_a_generation_of_the_same_batch(tmp_path: Path) -> None:
    node = begun(tmp_path)
    first = node.close()
    deployment = deployment_of(tmp_path, node)
    deployment.run()
    lost = node.put(S, 2, "bridged", 1, 1).close()
    node.snapshot({S: [(1, "first", 1, 1), (2, "bridged", 1, 1)]})
    node.lose(2).put(S, 3, "behind", 1, 1).close()
    first.unlink()
    lost.unlink()
    deployment.run()
    assert states(deployment) == {(5, 5): {"bridged"}, (6, 7): {"skipped"}}
    with deployment.writer() as (warehouse, writer):
        assert has_loss(writer, warehouse) == [True, True]
        check_known_key(deployment, node, writer)


def test_a_generation_ends_a_loss(tmp_path: Path) -> None:
    node = begun(tmp_path)
    node.lose(2).put(S, 2, "behind", 1, 1)
    first = node.close()
    deployment = deployment_of(tmp_path, node)
    deployment.run()
    lost = node.put(S, 3, "bridged", 1, 1).close()
    node.snapshot({S: [(i, "all", 1, 1) for i in (1, 2, 3)]})
    node.put(S, 4, "behind", 1, 1).close()
    first.unlink()
    lost.unlink()
    with deployment.writer() as (warehouse, writer):
        read_all(deployment, writer)
        assert has_loss(writer, warehouse) == [False, False]

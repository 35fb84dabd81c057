"""Writes transfers between replicasets, and points that a coordinator writes to all of them between transfers."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgpack

from pipeline.batch import MakeDistributed
from schemas.iproto import BodyKey, RequestType, SystemSpace
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment

ACCOUNTS, MARKS, OTHER = 600, 700, 800
FIELDS = (("id", "unsigned"), ("balance", "integer"))
MARK_FIELDS = (("id", "unsigned"), ("name", "string"))
COUNT, BALANCE = 5, 100
SUM = 2 * COUNT * BALANCE


def recovery_point(node: Node, label: str, at: float = 1.0) -> None:
    """Write the row with which Tarantool 3.9 marks a recovery point; `describe_point` writes a later row about it."""
    operations = [["=", "opts", {"label": label}]]
    body = {int(BodyKey.KEY): [0, 0, 0], int(BodyKey.TUPLE): operations}
    node.row(RequestType.UPDATE, SystemSpace.RECOVERY_POINT, body, at)


def describe_point(node: Node, label: str, at: float = 1.0) -> None:
    """Write the row in which Tarantool describes a point; other rows may be between the two."""
    tuple_ = [int(at * 1e9), 1, node._lsn, {"label": label}]
    node.row(RequestType.INSERT, SystemSpace.RECOVERY_POINT, {int(BodyKey.TUPLE): tuple_}, at)


class Bank:
    """Replicasets with accounts; the sum of all balances is constant whenever no transfer is in flight.

    Args:
        names: Names of the members, one per replicaset.
        is_apart: Whether each row has a block of its own; otherwise a file is one block, so points are within a block.
    """

    def __init__(
        self, folder: Path, seed: int = 1, names: Sequence[str] = ("a1", "b1"), *, is_apart: bool = False
    ) -> None:
        self.dice = random.Random(seed)
        self.nodes = {name: Node(folder / "logs", name) for name in names}
        self.at, self.number = 1.0, 0
        self.sum = len(names) * COUNT * BALANCE
        self.labels: list[str] = []
        for name, node in self.nodes.items():
            node.is_apart = is_apart
            node.define(ACCOUNTS, "accounts", FIELDS).define(MARKS, "marks", MARK_FIELDS)
            node.define(OTHER, "noise", MARK_FIELDS)
            for i in range(COUNT):
                node.put(ACCOUNTS, self.account(name, i), BALANCE, at=self.at)

    def account(self, name: str, number: int) -> int:
        """Return the id of a replicaset's account, which is unique over all replicasets."""
        return 100 * (1 + list(self.nodes).index(name)) + number

    def transfers(self, count: int) -> Self:
        """Write transfers from one replicaset to another: a debit to the log of one, a credit to that of the other."""
        for _ in range(count):
            self.at += 1
            source, target = self.dice.sample(list(self.nodes), 2)
            amount = self.dice.randrange(1, 50)
            for name, sign in ((source, -amount), (target, amount)):
                account = self.account(name, self.dice.randrange(COUNT))
                self.nodes[name].update(ACCOUNTS, account, ["+", 1, sign], at=self.at)
                for _ in range(self.dice.choice((0, 0, 3))):
                    self.nodes[name].put(
                        OTHER, self.dice.randrange(9), "x" * self.dice.randrange(40), at=self.at
                    )
        return self

    def point(self, label: str, names: Sequence[str] | None = None, kind: str = "point") -> Self:
        """Write a point to some replicasets, by default to all: a recovery point, or a row of the space `marks`."""
        self.at += 1
        self.number += 1
        for name in names or self.nodes:
            if kind == "point":
                recovery_point(self.nodes[name], label, self.at)
            else:
                self.nodes[name].put(MARKS, self.number, label, at=self.at)
        if names is None:
            self.labels.append(label)
        return self

    def describe(self, label: str) -> Self:
        """Write the rows that describe a point."""
        for node in self.nodes.values():
            describe_point(node, label, self.at)
        return self

    def close(self, *names: str) -> None:
        """Write the added rows of some members, by default of all, to logs."""
        for name in names or self.nodes:
            if self.nodes[name].is_open:
                self.nodes[name].close()

    def deployment(
        self, folder: Path, executor: MakeDistributed | None = None, **settings: Any
    ) -> Deployment:
        """Return a deployment of all members, whose batches end at points."""
        settings = {"instants": {}, "distributed": executor, **settings}
        return Deployment.of(folder, *self.nodes.values(), **settings)

    def aggregated(
        self, folder: Path, executor: MakeDistributed | None = None, **settings: Any
    ) -> Deployment:
        """Return such a deployment, which has read all rows so far."""
        self.close()
        deployment = self.deployment(folder, executor, **settings)
        deployment.run()
        return deployment


def sum_at(deployment: Deployment, versions: Sequence[tuple[str, int]]) -> int:
    """Return the sum of all balances in the versions of the tables that an epoch names."""
    from deltalake import DeltaTable

    path = deployment.folder / "warehouse" / "aggregator.db" / "accounts"
    table = DeltaTable(str(path), version=dict(versions)["accounts"])
    rows = table.to_pyarrow_table(columns=["_tuple"])["_tuple"].to_pylist()
    return sum(msgpack.unpackb(one)[1] for one in rows)


def sums_by_instant(deployment: Deployment) -> dict[str, int]:
    """Return the sum of all balances at each instant by its label, in the order of their epochs."""
    rows = sorted(deployment.rows("_epochs"), key=lambda row: int(row["epoch"]))
    labelled = [row for row in rows if row["instant"] is not None]
    sums = {row["instant"]: sum_at(deployment, row["versions"]) for row in labelled}
    assert len(sums) == len(labelled), "a label has two epochs"
    return sums

"""DELETE_RANGE: it does to each key that it holds what a DELETE of the key does, and to no other key anything."""

from __future__ import annotations

import bisect
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from pipeline.executors.distributed import DistributedExecutor
from schemas.iproto import RequestType, SystemSpace
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment, contents
from tests.soaked import partly_soaked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPACE, OTHER = 600, 601
FIELDS = (("id", "unsigned"), ("sub", "string"), ("value", "integer"))
Key = tuple[int, str]


class Pair:
    """Two nodes of one replicaset's log: in the second one each range is a DELETE of each key that it holds."""

    def __init__(self, folder: Path, name: str) -> None:
        self.nodes = (Node(folder / "ranges", name), Node(folder / "deletes", name))
        for node in self.nodes:
            node.define(SPACE, "users", FIELDS).rekey(SPACE, (0, "unsigned"), (1, "string"))
            node.define(OTHER, "other", FIELDS)
        self.keys: list[Key] = []
        self.ranges = self.held = 0

    def put(self, key: Key, value: int, at: float) -> None:
        if key not in self.keys:
            bisect.insort(self.keys, key)
        for node in self.nodes:
            node.put(SPACE, *key, value, at=at)

    def operate(self, key: Key, kind: str, at: float) -> None:
        ops = [["+", 2, 100]]
        if kind == "upsert" and key not in self.keys:
            bisect.insort(self.keys, key)
        for node in self.nodes:
            if kind == "upsert":
                node.row(RequestType.UPSERT, SPACE, {0x21: [*key, 7], 0x28: ops}, at)
            else:
                node.row(RequestType.UPDATE, SPACE, {0x20: list(key), 0x21: ops}, at)

    def delete(self, key: Key, at: float) -> None:
        if key in self.keys:
            self.keys.remove(key)
        for node in self.nodes:
            node.row(RequestType.DELETE, SPACE, {0x20: list(key)}, at)

    def delete_range(self, begin: Sequence[Any], end: Sequence[Any], at: float) -> None:
        held = [key for key in self.keys if self._from(key, begin) and not (end and self._from(key, end))]
        self.keys = [key for key in self.keys if key not in held]
        self.ranges, self.held = self.ranges + 1, self.held + len(held)
        self.nodes[0].delete_range(SPACE, begin, end, at)
        for key in held:
            self.nodes[1].row(RequestType.DELETE, SPACE, {0x20: list(key)}, at)

    def truncate(self, at: float) -> None:
        self.keys = []
        for node in self.nodes:
            node.truncate(SPACE, at)

    @staticmethod
    def _from(key: Key, bound: Sequence[Any]) -> bool:
        return key[: len(bound)] >= tuple(bound)


def random_bound(dice: random.Random, open_: float = 0.2) -> list[Any]:
    chance = dice.random()
    if chance < open_:
        return []
    bound: list[Any] = [dice.choice([0, 1, 3, 5, 8, 11, 200, 70_000])]
    return bound if chance < 0.6 else [*bound, dice.choice("abcd")]


def write(pair: Pair, dice: random.Random, steps: int) -> None:
    for at in range(steps):
        key = (dice.choice([0, 1, 2, 3, 4, 5, 8, 9, 10, 150, 200, 300, 65_000, 80_000]), dice.choice("abc"))
        chance = dice.random()
        if chance < 0.5:
            pair.put(key, at, at)
        elif chance < 0.6:
            pair.operate(key, "update", at)
        elif chance < 0.7:
            pair.operate(key, "upsert", at)
        elif chance < 0.8:
            pair.delete(key, at)
        elif chance < 0.99:
            begin, end = sorted([random_bound(dice, 0.1), random_bound(dice, 0.1)])
            if begin != end or not begin:
                pair.delete_range(begin, end if dice.random() < 0.8 else [], at)
        else:
            pair.truncate(at)


def pairs_of(folder: Path, seed: int, steps: int = 60) -> list[Pair]:
    dice = random.Random(seed)
    pairs = [Pair(folder, name) for name in ("a1", "b1")]
    for pair in pairs:
        write(pair, dice, steps)
        for node in pair.nodes:
            node.close()
        write(pair, dice, steps)
        for node in pair.nodes:
            node.close()
    assert all(pair.ranges > 5 and pair.held > 10 for pair in pairs)
    return pairs


UNNUMBERED = {"_lsn", "lsn", "epoch", "winner_lsn", "loser_lsn", "decided_at"}
"""DELETEs of each key have other lsns, and cuts by bytes other epochs."""


def without(rows: Iterable[dict[str, Any]], left_out: set[str]) -> Counter[str]:
    return Counter(repr(sorted((k, v) for k, v in row.items() if k not in left_out)) for row in rows)


def newest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found = {}
    for row in sorted(rows, key=lambda row: row["epoch"]):
        found[row["space"], row["key"], row["replicaset_id"]] = row
    return list(found.values())


def deleted(deployment: Deployment) -> set[tuple[bytes, int]]:
    """Return the keys whose version is a deletion, with the replicaset; a version that is the row is newer."""
    rows = {(row["_key"], abs(row["_replicaset_id"])) for row in deployment.rows("users")}
    found = {
        (r["key"], r["replicaset_id"])
        for r in newest(deployment.rows("_versions"))
        if r["state"] == "deleted"
    }
    return found - rows


POLICIES: dict[str, dict[str, Any]] = {
    "own": {},
    "all": {"policies": {"default": {"policy": "last_write_wins", "deletes": "all"}}},
    "sum": {"policies": {"spaces": {"users": {"policy": "sum", "columns": ["value"]}}}},
}


@pytest.mark.parametrize("cut", partly_soaked([1, None], [700]))
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", partly_soaked([1], [2]))
def test_a_range_is_a_delete_of_each_key_that_it_holds(
    tmp_path: Path, policy: str, seed: int, cut: int | None
) -> None:
    pairs = pairs_of(tmp_path, seed)
    deployments = []
    for number, name in enumerate(("ranges", "deletes")):
        sources = {pair.nodes[number].path.name: pair.nodes[number].path for pair in pairs}
        one = Deployment(
            tmp_path / f"tables of {name}", sources, replicasets_of(*sources), **POLICIES[policy]
        )
        # The logs of both differ in bytes: one batch each for the second.
        one.run(cut if number == 0 else None)
        deployments.append(one)
    ranges, deletes = deployments
    tables = [without(one.rows("users"), UNNUMBERED) for one in deployments]
    assert tables[0] == tables[1]
    versions = [without(newest(one.rows("_versions")), UNNUMBERED) for one in deployments]
    if cut is None:
        assert versions[0] == versions[1]
        conflicts = [without(one.rows("_conflicts"), UNNUMBERED) for one in deployments]
        assert conflicts[0] == conflicts[1]
    first, second = (deleted(one) for one in deployments)
    assert first == second
    assert first
    logged = [row for row in ranges.rows("_changelog") if row["type"] == "DELETE_RANGE"]
    assert len(logged) == sum(pair.ranges for pair in pairs)
    assert {(row["space"], row["state"]) for row in logged} == {("users", "committed")}
    assert not ranges.rows("_quarantine")
    assert deletes.rows("other") == []


def test_both_executors_apply_it_alike(spark: SparkSession, tmp_path: Path) -> None:
    """Keys lie in several partitions, so a range goes to more than one of them."""
    node = Node(tmp_path, "a1").define(SPACE, "users", FIELDS)
    for key in range(400):
        node.put(SPACE, key * 300, "x", key, at=key)
    node.close()
    node.delete_range(SPACE, [3_000], [60_001])
    for key in range(0, 400, 3):
        node.put(SPACE, key * 300, "again", key, at=500 + key)
    node.update(SPACE, 300, ["+", 2, 1]).delete_range(SPACE, [90_000], []).put(SPACE, 118_000, "last", 1)
    node.close()
    found = []
    for name, make in (
        ("local", None),
        ("distributed", partial(DistributedExecutor, spark)),
    ):
        one = Deployment(tmp_path / name, {"a1": node.path}, replicasets_of("a1"), make)
        one.run([20_000, 20_000])
        found.append(contents(one))
        assert one.batches >= 2
    assert found[0] == found[1]
    keys = {msgpack.unpackb(row["_tuple"])[0] for row in one.rows("users")}
    assert keys == {
        key * 300
        for key in range(400)
        if (key % 3 == 0 and key * 300 < 90_000) or (not 3_000 <= key * 300 < 60_001 and key * 300 < 90_000)
    } | {118_000}


@pytest.mark.parametrize("cut", [1, None])
def test_an_index_may_be_descending(tmp_path: Path, cut: int | None) -> None:
    node = Node(tmp_path, "a1").define(SPACE, "users", FIELDS)
    part = {"field": 0, "type": "unsigned", "sort_order": "desc"}
    node.rekey_to(SPACE, [part])
    for key in (1, 2, 3, 4, 5):
        node.put(SPACE, key, "x", 1)
    node.delete_range(SPACE, [4], [2]).put(SPACE, 4, "again", 1)
    node.rekey(SPACE, (0, "unsigned")).delete_range(SPACE, [5], []).close()
    deployment = Deployment.of(tmp_path, node)
    deployment.run(cut)
    assert [msgpack.unpackb(one)[0] for one in deployment.tuples("users")] == [1, 2, 4]


@pytest.mark.parametrize("cut", [1, None])
def test_ranges_before_and_after_another_primary_key(tmp_path: Path, cut: int | None) -> None:
    node = Node(tmp_path, "a1").define(SPACE, "users", FIELDS)
    for key in range(1, 9):
        node.put(SPACE, key, "hgfedcba"[key - 1], key)
    node.delete_range(SPACE, [7], [])  # h g f e d c
    node.rekey(SPACE, (1, "string")).delete_range(SPACE, ["d"], ["f"]).put(SPACE, 9, "e", 9)
    node.redefine(SPACE, "people", FIELDS).delete_range(SPACE, ["h"], []).close()
    deployment = Deployment.of(tmp_path, node)
    deployment.run(cut)
    assert sorted(msgpack.unpackb(one)[1] for one in deployment.tuples("people")) == ["c", "e", "f", "g"]
    assert deployment.rows("users") == []


@pytest.mark.parametrize("cut", [1, None])
def test_deleted_keys_of_an_earlier_primary_key_are_in_no_range(tmp_path: Path, cut: int | None) -> None:
    """A key that was deleted stays in `_versions` when its space is made again, with another primary key."""
    node = Node(tmp_path, "a1").define(SPACE, "users", FIELDS).rekey(SPACE, (0, "unsigned"), (1, "string"))
    node.put(SPACE, 1, "a", 1).row(RequestType.DELETE, SPACE, {0x20: [1, "a"]}).close()
    deployment = Deployment.of(tmp_path, node)
    deployment.run(cut)
    node.row(RequestType.DELETE, SystemSpace.INDEX, {0x20: [SPACE, 0]}).rekey(SPACE, (2, "scalar"))
    node.delete_range(SPACE, [5], [7]).put(SPACE, 6, "f", 6).put(SPACE, 7, "g", 7).close()
    deployment.run(cut)
    assert sorted(map(msgpack.unpackb, deployment.tuples("users"))) == [[6, "f", 6], [7, "g", 7]]
    node.delete_range(SPACE, [5], [7]).truncate(SPACE).put(SPACE, 8, "h", 8).delete_range(SPACE, [9], [])
    node.close()
    deployment.run(cut)
    assert list(map(msgpack.unpackb, deployment.tuples("users"))) == [[8, "h", 8]]


def test_held_rows_leave_the_table_as_it_was(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(SPACE, "users", FIELDS).define(OTHER, "other", FIELDS)
    node.put(SPACE, 1, "a", 1).row(19, SPACE, {0x21: "what it means, nobody knows"})
    node.put(SPACE, 2, "b", 1).put(OTHER, 1, "a", 1).close()
    deployment = Deployment.of(tmp_path, node)
    for _ in range(2):
        deployment.run()
        assert [msgpack.unpackb(one)[0] for one in deployment.tuples("users")] == [1]
        assert [msgpack.unpackb(one)[0] for one in deployment.tuples("other")] in ([1], [1, 3])
        node.put(SPACE, 3, "c", 1).put(OTHER, 3, "c", 1).close()
    newest_ = sorted(deployment.rows("_schema"), key=lambda row: row["epoch"])
    state = next(row["state"] for row in reversed(newest_) if row["name"] == "users")
    assert state.startswith("refused: its rows are held, the table stays as it is: TYPE_19")
    held = sorted(deployment.rows("_changelog"), key=lambda row: row["lsn"])
    held = [row for row in held if row["space"] == "users"]
    assert [row["type"] for row in held] == ["REPLACE", "TYPE_19", "REPLACE", "REPLACE"]
    assert held[1]["body"] == msgpack.packb({0x10: SPACE, 0x21: "what it means, nobody knows"})
    node.truncate(SPACE).put(SPACE, 4, "d", 1).close()
    deployment.run()
    assert [msgpack.unpackb(one)[0] for one in deployment.tuples("users")] == [4]

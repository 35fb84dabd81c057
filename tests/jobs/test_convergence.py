"""The tables are equal for all cuts into batches, orders of sources, repeated rows and clocks.

Three written replicasets write the same keys, each by its own clock: one is hours ahead, one goes backwards, one is
stopped. `tests.pipeline.plan.test_cuts` shows the same for plans.
"""

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest
from pyspark.sql import SparkSession

from tests.jobs.deployment import Deployment
from tests.jobs.written import Node, replicasets_of

pytestmark = [pytest.mark.spark, pytest.mark.soak]

NAMES = ("a1", "b1", "c1")
POLICIES: dict[str, dict[str, Any]] = {
    "newest": {},
    "counted": {"sequence": ["updated"]},
    "added": {"policy": "sum", "columns": ["value"]},
    "merged": {"policy": "merge_fields", "fields": {"name": ["updated"]}},
    "deleted": {"deletes": "all"},
    "chosen": {"policy": "custom", "function": "tests.jobs.test_convergence:greater"},
}
SPACES = {600 + i: name for i, name in enumerate(POLICIES)}
KEYS, STEPS, FILES = 12, 260, 5
CLOCKS: dict[str, Callable[[int], float]] = {
    "a1": lambda i: 3 * 3600.0 + i,
    "b1": lambda i: 500.0 - i,
    "c1": lambda _: 100.0,
}


def greater(old: Any, new: Any, _change: Any) -> Any:
    """Keep the tuple with the greater value; merge tuples with equal values."""
    if old.value == new.value:
        return new.update(name=f"{old.name} and {new.name}")
    return old if old.value > new.value else new


def write(node: Node, name: str, rng: random.Random) -> None:
    """Write one replicaset's workload, in several files."""
    for space_id, space in SPACES.items():
        node.define(space_id, space)
    held: dict[int, set[int]] = {space_id: set() for space_id in SPACES}
    ends = set(rng.sample(range(STEPS), FILES - 1))
    for i in range(STEPS):
        space_id, key, at = rng.choice(list(SPACES)), rng.randrange(KEYS), CLOCKS[name](i)
        kind = rng.random()
        if key not in held[space_id] or kind < 0.4:
            node.put(space_id, key, f"{name} {i}", rng.randrange(9), rng.randrange(6), at=at)
            held[space_id].add(key)
        elif kind < 0.8:
            operation = rng.choice([["+", 2, rng.randrange(1, 5)], ["=", 1, f"{name} {i}"], ["=", 3, i % 7]])
            node.update(space_id, key, operation, at=at)
        elif kind < 0.99:
            node.delete(space_id, key, at=at)
            held[space_id].remove(key)
        else:
            node.truncate(space_id, at=at)
            held[space_id].clear()
        if i in ends:
            node.close()
    node.close()


def logs(folder: Path, seed: int) -> dict[str, Path]:
    rng = random.Random(seed)
    nodes = {name: Node(folder, name) for name in NAMES}
    for name, node in nodes.items():
        write(node, name, rng)
    return {name: node.path for name, node in nodes.items()}


def deployed(folder: Path, sources: Mapping[str, Path], **settings: Any) -> Deployment:
    uuids = {name: replicasets_of(name[0] + "1")[name[0] + "1"] for name in (*NAMES, "a2")}
    return Deployment(folder, sources, uuids, policies={"spaces": POLICIES}, **settings)


Rows = dict[tuple[str, bytes], Any]


def held(deployment: Deployment) -> tuple[Rows, dict[tuple[str, bytes, str], list[Any]]]:
    """Return the rows of all tables and every current version, with uuids in place of ids, which depend on arrival."""
    known = deployment.rows("_cluster")
    uuids = {row["replicaset_id"]: row["replicaset_uuid"] for row in known}
    instances = {row["global_id"]: row["uuid"] for row in known}
    rows: Rows = {}
    versions: dict[tuple[str, bytes, str], list[Any]] = {}
    newest: dict[Any, dict[str, Any]] = {}
    for row in sorted(deployment.rows("_versions"), key=lambda row: int(row["epoch"])):
        newest[row["space"], row["key"], uuids[row["replicaset_id"]]] = row
    versions = {
        index: msgpack.unpackb(row["tuple"]) for index, row in newest.items() if row["state"] == "present"
    }
    for space in POLICIES:
        for key, row in deployment.table(space).items():
            made, uuid = row["_replicaset_id"] < 0, uuids[abs(row["_replicaset_id"])]
            tuple_ = msgpack.unpackb(row["_tuple"])
            origin = (made, uuid, instances[row["_global_id"]], row["_lsn"])
            rows[space, key] = (tuple_, *origin, row["_timestamp"], row["_created"])
            if not made:
                versions[space, key, uuid] = tuple_
            newest.pop((space, key, uuid), None)
    return rows, versions


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return logs(tmp_path_factory.mktemp("logs"), seed=7)


@pytest.fixture(scope="module")
def whole(
    spark: SparkSession,  # noqa: ARG001
    written: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    deployment = deployed(tmp_path_factory.mktemp("whole"), written)
    deployment.run()
    contended = {(row["space"], row["key"]) for row in deployment.rows("_conflicts", ["space", "key"])}
    assert {space for space, _ in contended} == set(POLICIES)
    assert len(contended) > 20
    return held(deployment)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_cuts_and_any_order_of_sources(
    whole: Any, written: dict[str, Path], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    order = rng.sample(NAMES, len(NAMES))
    size = sum(file.stat().st_size for path in written.values() for file in path.iterdir())
    budget = size // rng.randrange(9, 14)
    deployment = deployed(tmp_path, {name: written[name] for name in order}, max_bytes_per_trigger=budget)
    deployment.run()
    assert len(deployment.rows("_epochs", ["epoch"])) > 3
    assert held(deployment) == whole


def test_files_that_come_one_by_one_and_a_source_that_comes_late(
    whole: Any, written: dict[str, Path], tmp_path: Path
) -> None:
    rng = random.Random(3)
    copies = {name: tmp_path / "sources" / name for name in ("c1", "b1")}
    todo = {name: sorted(written[name].iterdir()) for name in copies}
    deployment = deployed(tmp_path, copies)
    for name, path in copies.items():
        path.mkdir(parents=True)
        shutil.copy(todo[name].pop(0), path)
    while any(todo.values()):
        for name in rng.sample(list(todo), len(todo)):
            for _ in range(min(rng.randrange(1, 4), len(todo[name]))):
                shutil.copy(todo[name].pop(0), copies[name])
        deployment.run()
    deployment.sources["a1"] = written["a1"]
    deployment.run()
    assert held(deployment) == whole


def test_rows_come_twice_from_another_member(whole: Any, written: dict[str, Path], tmp_path: Path) -> None:
    """The first member disappears in the middle; the other one's logs have all its rows."""
    uuids = {name: f"{name[0] * 8}-0000-4000-8000-0000000000{name}" for name in ("a1", "a2")}
    first, second = tmp_path / "sources" / "a1", tmp_path / "sources" / "a2"
    first.mkdir(parents=True)
    second.mkdir()
    files = sorted(written["a1"].iterdir())
    for file in files:
        data = file.read_bytes()
        assert data.count(uuids["a1"].encode()) >= 1
        head, end, rows = data.partition(b"\n\n")
        (second / file.name).write_bytes(
            head.replace(uuids["a1"].encode(), uuids["a2"].encode()) + end + rows
        )
    for file in files[:3]:
        shutil.copy(file, first)
    deployment = deployed(tmp_path, {"a1": first, "a2": second, "b1": written["b1"]})
    deployment.run()
    del deployment.sources["a1"]
    deployment.run()
    deployment.sources["c1"] = written["c1"]
    deployment.forget_checkpoint()
    deployment.run()
    assert not [row for row in deployment.rows("_gaps") if row["kind"] == "divergence"]
    assert held(deployment) == whole

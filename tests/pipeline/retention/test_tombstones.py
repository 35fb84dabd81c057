"""Deleted keys go when no row that is older can come any more: tables are as if they had stayed."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment
from tests.pipeline.retention.cleaned import ALL, DAY, S, cleaned, gone, planned

MONTH = {"tombstones": 30}


def aggregated(folder: Path, *nodes: Node, **settings: Any) -> Deployment:
    return Deployment.aggregated(folder, *nodes, **{"policies": ALL, **settings})


def keys(deployment: Deployment) -> set[object]:
    return {msgpack.unpackb(row["key"])[0] for row in deployment.rows("_versions", ["key"])}


def two(folder: Path) -> tuple[Node, Node]:
    """Return A, which deleted a key on day 20 and was read up to day 200, and B, which was read up to day 5."""
    a = Node(folder, "a1").define(S, "s").put(S, 1, "a", 1, 1, at=10 * DAY).delete(S, 1, at=20 * DAY)
    a.put(S, 9, "a", 1, 1, at=200 * DAY).close()
    b = Node(folder, "b1").define(S, "s").put(S, 2, "b", 1, 1, at=5 * DAY)
    b.close()
    return a, b


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_a_late_source_with_rows_older_than_a_deletion(tmp_path: Path, is_cleaned: bool) -> None:
    a, b = two(tmp_path)
    deployment = Deployment.of(tmp_path, a, b, policies=ALL)

    def maintain() -> dict[str, int]:
        return gone(cleaned(deployment, **MONTH)) if is_cleaned else {}

    deployment.run()
    assert maintain() == {}, "B may still bring rows from before the deletion"
    b.put(S, 1, "b", 1, 1, at=15 * DAY).put(S, 9, "b", 1, 1, at=199 * DAY).close()
    deployment.run()
    assert deployment.fields() == [[2, "b", 1, 1], [9, "a", 1, 1]], "A's deletion is the later one"
    assert maintain() == {}, "B has the key"
    b.delete(S, 1, at=200 * DAY).put(S, 9, "b", 1, 1, at=300 * DAY).close()
    a.put(S, 9, "a", 1, 1, at=301 * DAY).close()
    deployment.run()
    assert maintain() == ({"_versions": 3} if is_cleaned else {}), "A's deletion, B's tuple, B's deletion"
    b.put(S, 1, "again", 1, 1, at=302 * DAY).close()
    deployment.run()
    assert deployment.fields() == [[1, "again", 1, 1], [2, "b", 1, 1], [9, "a", 1, 1]]


def test_a_source_that_was_never_read_holds_every_deletion(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    b.put(S, 9, "b", 1, 1, at=200 * DAY).close()
    late = Node(tmp_path, "c1").define(S, "s").put(S, 1, "c", 1, 1, at=15 * DAY)
    late.put(S, 9, "c", 1, 1, at=200 * DAY)
    deployment = aggregated(tmp_path, a, b)
    assert gone(planned(deployment, **MONTH)) == {"_versions": 1}
    deployment.sources["c1"] = late.path
    deployment.replicasets |= replicasets_of("c1")
    found = cleaned(deployment, **MONTH)
    assert gone(found) == {}
    assert "source c1: no row of its replicaset was read yet" in found.stay_reasons[0]
    late.close()
    deployment.run()
    assert 1 not in {one[0] for one in deployment.fields()}


def test_a_source_that_cannot_be_read_holds_every_deletion(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    b.put(S, 9, "b", 1, 1, at=200 * DAY)
    deployment = aggregated(tmp_path, a, b)
    deployment.sources["c1"] = tmp_path / "nowhere"
    found = planned(deployment, **MONTH)
    assert gone(found) == {}
    assert "source c1: it cannot be read" in found.stay_reasons[0]


def test_the_slowest_replicaset_is_named_until_its_logs_have_ended(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    deployment = aggregated(tmp_path, a, b)
    uuid = replicasets_of("b1")["b1"]
    stay_reasons = planned(deployment, **MONTH).stay_reasons
    assert any(f"replicaset b1 ({uuid[:8]}) was read up to 2023-11-19" in one for one in stay_reasons)
    assert gone(planned(deployment, **MONTH, retired=(uuid,))) == {}, "a source of it is configured"
    del deployment.sources["b1"]
    assert gone(planned(deployment, **MONTH)) == {}, "its rows may come back with its source"
    assert gone(planned(deployment, **MONTH, retired=(uuid,))) == {"_versions": 1}


def test_rows_that_wait_hold_deletions_that_are_later(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    deployment = aggregated(tmp_path, a, b)
    b.put(S, 3, "missing", 1, 1, at=15 * DAY)
    lost = b.close()
    b.put(S, 1, "b", 1, 1, at=15 * DAY).put(S, 9, "b", 1, 1, at=200 * DAY).close()
    lost.rename(tmp_path / "lost")
    deployment.run()
    assert deployment.rows("_pending")
    assert gone(cleaned(deployment, **MONTH)) == {}
    stay_reasons = planned(deployment, **MONTH, pending=30).stay_reasons
    assert any(
        "2 rows of replicaset 2 wait since 2023-11-29" in one and "is missing" in one for one in stay_reasons
    )
    assert len(deployment.rows("_pending")) == 2, "rows that wait are named, and stay"


def test_a_tombstone_is_kept_for_its_days_in_the_log_and_in_the_tables(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    b.put(S, 9, "b", 1, 1, at=49 * DAY)
    deployment = aggregated(tmp_path, a, b)
    assert gone(planned(deployment, tombstones=30)) == {}, "B was read to 29 days behind it"
    assert gone(planned(deployment, tombstones=28)) == {"_versions": 1}
    assert gone(planned(deployment, days=27, tombstones=28)) == {}, "it has been in the tables for 27 days"
    assert gone(planned(deployment)) == {}, "nothing goes that was not asked for"


def test_a_clock_that_was_ahead_is_not_believed(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    a.put(S, 9, "a", 1, 1, at=100_000 * DAY).put(S, 9, "a", 1, 1, at=40 * DAY).close()
    b.put(S, 9, "b", 1, 1, at=100_000 * DAY)
    deployment = aggregated(tmp_path, a, b)
    assert gone(planned(deployment, tombstones=30)) == {}, "A's last row is of day 40"


@pytest.mark.parametrize(
    ("policy", "goes"),
    [
        ({"deletes": "own"}, True),
        ({"policy": "max", "column": "value"}, True),
        ({"deletes": "all"}, True),
        ({"deletes": "all", "sequence": ["updated"]}, False),
        ({"deletes": "all", "policy": "source_priority", "priority": [replicasets_of("a1")["a1"]]}, False),
    ],
)
def test_a_policy_under_which_a_deletion_may_win_later_keeps_it(
    tmp_path: Path, policy: dict[str, Any], goes: bool
) -> None:
    a, b = two(tmp_path)
    b.put(S, 9, "b", 1, 1, at=200 * DAY)
    deployment = aggregated(tmp_path, a, b, policies={"default": policy})
    found = cleaned(deployment, **MONTH)
    assert (1 in keys(deployment)) is not goes
    assert any("deleted keys of s stay" in one for one in found.stay_reasons) is not goes
    b.put(S, 1, "late", 1, 1, at=201 * DAY).close()
    deployment.run()
    wins = policy.get("policy") != "source_priority"
    assert ([1, "late", 1, 1] in deployment.fields()) is wins


def test_an_open_divergence_holds_every_deletion(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    b.put(S, 9, "b", 1, 1, at=200 * DAY)
    deployment = aggregated(tmp_path, a, b)
    other = Node(tmp_path / "other", "b1").define(S, "s").put(S, 2, "differs", 1, 1, at=5 * DAY)
    other.close()
    deployment.sources["b1"] = other.path
    deployment.offset = {}
    deployment.run()
    assert {row["kind"] for row in deployment.rows("_gaps", ["kind"])} == {"divergence"}
    found = planned(deployment, **MONTH)
    assert gone(found) == {}
    assert any("a divergence is open" in one for one in found.stay_reasons)


def test_cleaning_twice_finds_nothing(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    b.put(S, 9, "b", 1, 1, at=200 * DAY)
    deployment = aggregated(tmp_path, a, b)
    before = deployment.rows("s")
    assert gone(cleaned(deployment, **MONTH)) == {"_versions": 1}
    assert [(row["table"], row["rows"]) for row in deployment.rows("_retention")] == [("_versions", 1)]
    epochs = len(deployment.rows("_epochs", ["epoch"]))
    assert gone(cleaned(deployment, **MONTH)) == {}
    assert len(deployment.rows("_epochs", ["epoch"])) == epochs
    assert deployment.rows("s") == before


def acts(seed: int, name: str) -> list[Callable[[Node], Node]]:
    """Return what one replicaset does on the days from 0 to 400, each act later than the one before."""
    chance = random.Random(f"{seed} {name}")
    days = sorted(chance.uniform(0, 400) for _ in range(60))

    def act(day: float) -> Callable[[Node], Node]:
        key, kind = chance.randrange(6), chance.random()
        if kind < 0.45:
            return lambda node: node.delete(S, key, at=day * DAY)
        if kind < 0.6:
            return lambda node: node.update(S, key, ["=", 1, f"{name} {day}"], at=day * DAY)
        if kind < 0.63:
            return lambda node: node.truncate(S, at=day * DAY)
        return lambda node: node.put(S, key, f"{name} {day}", 1, 1, at=day * DAY)

    return [act(day) for day in days]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 10))])
@pytest.mark.parametrize("deletes", [pytest.param("own", marks=pytest.mark.soak), "all"])
def test_tables_are_the_same_as_without_retention(tmp_path: Path, seed: int, deletes: str) -> None:
    """Files of both replicasets come in any order, one far behind the other; cleaning follows each."""
    nodes = {name: Node(tmp_path, name).define(S, "s") for name in ("a1", "b1")}
    for node in nodes.values():
        node.close()
    policies = {"default": {"deletes": deletes}}
    whole, cut = (
        Deployment.of(tmp_path / kind, *nodes.values(), policies=policies) for kind in ("whole", "cut")
    )
    todo = {name: acts(seed, name) for name in nodes}
    chance = random.Random(seed)
    removed = 0
    while todo["a1"] or todo["b1"]:
        name = chance.choice([name for name, left in todo.items() if left])
        for _ in range(min(len(todo[name]), chance.randrange(1, 25))):
            todo[name].pop(0)(nodes[name])
        nodes[name].close()
        for deployment in (whole, cut):
            deployment.run()
        removed += gone(cleaned(cut, tombstones=5)).get("_versions", 0)
        assert cut.table("s") == whole.table("s")
    assert removed, "no deletion went: nothing was tried"

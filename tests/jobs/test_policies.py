"""Policies in the main job on recorded logs: the tables have what each policy makes of the replicasets' versions.

`tests.oracle.policies` computes the expected result independently.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.deployment import Deployment, folded
from tests.oracle import mp
from tests.oracle.policies import (
    Held,
    Rule,
    first_write,
    greatest,
    least,
    newest_field,
    prefer,
    stands,
    total,
)
from tests.truth import own

B = own().info("b1").replicaset_uuid
REFUSED = 200
"""A key of `accounts` that both replicasets have."""

POLICIES: dict[str, dict[str, Any]] = {
    "accounts": {"policy": "custom", "function": "tests.jobs.test_policies:greater_updated"},
    "counters": {"policy": "sum", "columns": ["value"]},
    "lagged": {"policy": "merge_fields", "fields": {"side": ["updated"]}},
    "txspace": {"policy": "first_write_wins"},
    "vin": {"policy": "max", "column": "n"},
    "to_trunc": {"policy": "min", "column": "v"},
    "widened": {"policy": "source_priority", "priority": [B]},
}


def greater_updated(old: Any, new: Any, _change: Any) -> Any:
    """Keep the tuple with the greater `updated`; merge equal ones with both names; refuse one key."""
    if old.id == REFUSED:
        raise ValueError(f"key {REFUSED} is not to be decided")
    if old.updated == new.updated:
        return new.update(name=f"{old.name} and {new.name}")
    return old if old.updated > new.updated else new


def accounts(held: Any) -> Any:
    """Decide as `greater_updated` does, for decoded versions."""
    row: Held = held[0]
    values = list(row.values)
    for one in held[1:]:
        if one.values[0] == REFUSED:
            return None
        if values[3] == one.values[3]:
            values = [one.values[0], f"{values[1]} and {one.values[1]}", *one.values[2:]]
        elif one.values[3] > values[3]:
            values = list(one.values)
    return tuple(values)


RULES: dict[str, Rule] = {
    "accounts": accounts,
    "counters": total("value"),
    "lagged": newest_field("side", "updated"),
    "txspace": first_write,
    "vin": greatest("n"),
    "to_trunc": least("v"),
    "widened": prefer(B),
}


def deployed(folder: Path, *nodes: str, **settings: Any) -> Deployment:
    sources = {node: own().directory(node) for node in nodes}
    spaces = {"include": list(POLICIES)}
    # A sum of two great integers fits no bigint.
    types = {"integer": "precise"}
    return Deployment(folder, sources, policies={"spaces": POLICIES}, spaces=spaces, types=types, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    deployment = deployed(tmp_path_factory.mktemp("whole"), "a1", "b1")
    deployment.write()
    return deployment


def values(deployment: Deployment, space: str) -> Counter[Any]:
    return Counter(repr(tuple(mp.decode(row["_tuple"]))) for row in deployment.rows(space, ["_tuple"]))


@pytest.mark.parametrize("space", POLICIES)
def test_a_table_is_what_its_policy_makes_of_the_final_versions(whole: Deployment, space: str) -> None:
    truths = [folded(own(), "a1"), folded(own(), "b1")]
    expected = Counter(repr(tuple(row)) for row in stands(truths, space, RULES[space]).values())
    found = values(whole, space)
    assert found - expected == expected - found == Counter()


def test_merged_rows_name_their_format_and_keep_all_versions(whole: Deployment) -> None:
    made = [row for row in whole.table("counters").values() if row["_replicaset_id"] < 0]
    assert made
    kept = {
        (row["key"], row["replicaset_id"]) for row in whole.rows("_versions") if row["space"] == "counters"
    }
    for row in made:
        assert {(row["_key"], 1), (row["_key"], 2)} <= kept
        assert -row["_replicaset_id"] in (1, 2)


def test_conflicts_name_the_deciding_criterion(whole: Deployment) -> None:
    sequences: dict[str, set[str]] = {}
    for row in whole.rows("_conflicts"):
        assert row["kind"] == "key"
        assert row["policy"] == POLICIES[row["space"]]["policy"]
        sequences.setdefault(row["space"], set()).add(row["sequence"])
    assert sequences["counters"] == {"sum(value)"}
    assert sequences["txspace"] <= {"created", "timestamp"}
    assert sequences["vin"] <= {"max(n)", "timestamp", "replicaset uuid"}
    assert sequences["widened"] == {"priority"}
    assert sequences["accounts"] == {POLICIES["accounts"]["function"]}


def test_a_failing_key_is_in_quarantine_with_both_tuples_and_the_traceback(whole: Deployment) -> None:
    held = [
        row[0]
        for replicaset in (folded(own(), "a1"), folded(own(), "b1"))
        for version in replicaset.by_name()["accounts"].versions.values()
        if version.tuple is not None and (row := mp.decode(version.tuple))[0] == REFUSED
    ]
    assert held == [REFUSED, REFUSED]
    rows = [row for row in whole.rows("_quarantine") if row["space"] == "accounts"]
    assert {row["replicaset_id"] for row in rows} == {1, 2}
    assert all(f"ValueError: key {REFUSED} is not to be decided" in row["reason"] for row in rows)
    assert {mp.decode(row["tuple"])[0] for row in rows} == {REFUSED}
    assert not [row for row in whole.rows("accounts", ["_tuple"]) if mp.decode(row["_tuple"])[0] == REFUSED]


@pytest.mark.soak
def test_cuts_and_the_order_of_sources_make_no_difference(whole: Deployment, tmp_path: Path) -> None:
    other = deployed(tmp_path, "b1", "a1", max_bytes_per_trigger=60_000)
    other.write()
    assert len(other.rows("_epochs", ["epoch"])) > 2
    for space in POLICIES:
        assert values(other, space) == values(whole, space), space


def test_a_start_from_snapshots_with_vinyl_ends_in_the_same_rows(whole: Deployment, tmp_path: Path) -> None:
    """If a field decides, unknown times do not matter."""
    other = deployed(tmp_path, "a1", "b1", start="snapshot")
    other.write()
    assert other.refused_spaces() == set()
    for space in ("vin", "to_trunc"):
        assert values(other, space) == values(whole, space), space

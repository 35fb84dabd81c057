"""Thousands of small workloads on three real Tarantools, then the tables against the policies, key by key.

Each key has its own workload: INSERT, REPLACE, UPDATE, UPSERT, DELETE on one, two or three replicasets, including
wrong ones, which the servers refuse. The test computes the expected rows independently, from the servers' final
tuples. Each write has its own number in `updated`, which orders all versions, so clocks do not matter.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.jobs.deployment import Deployment
from tests.live import Tarantool

pytestmark = pytest.mark.live

KEYS = 2000
SIDES = ("a", "b", "c")
LATEST: dict[str, Any] = {"sequence": ["updated"]}
POLICIES: dict[str, dict[str, Any]] = {
    "latest": LATEST,
    "greatest": {**LATEST, "policy": "max", "column": "value"},
    "summed": {**LATEST, "policy": "sum", "columns": ["value"]},
    "merged": {**LATEST, "policy": "merge_fields", "fields": {"name": ["value"]}},
    "own": {**LATEST, "policy": "custom", "function": "tests.jobs.test_differential:shorter_name"},
}
DEFINE = """
for _, name in ipairs(...) do
    local s = box.schema.space.create(name, {format = {{'id', 'unsigned'}, {'name', 'string'},
        {'value', 'integer'}, {'updated', 'unsigned'}, {name = 'extra', type = 'any', is_nullable = true}}})
    s:create_index('primary')
end
"""
APPLY = """
local names, work = ...
local refused = 0
for _, name in ipairs(names) do
    local s = box.space[name]
    box.begin()
    for i, one in ipairs(work) do
        local ok = pcall(s[one[1]], s, unpack(one, 2))
        if not ok then refused = refused + 1 end
        if i % 50 == 0 then box.commit() box.begin() end
    end
    box.commit()
end
return refused
"""
FINAL = """
local found = {}
for _, t in box.space[...]:pairs() do table.insert(found, (string.hex(require('msgpack').encode(t)))) end
return found
"""

Fields = list[Any]
Rule = Callable[[Sequence[Fields]], Fields | None]


def shorter_name(old: Any, new: Any, _change: Any) -> Any:
    """Keep the tuple with the shorter name; merge tuples with equal lengths."""
    if len(old.name) == len(new.name):
        return new.update(value=min(old.value, new.value))
    return old if len(old.name) < len(new.name) else new


def latest(held: Sequence[Fields]) -> Fields:
    return max(held, key=lambda fields: fields[3])


def greatest(held: Sequence[Fields]) -> Fields:
    return max(held, key=lambda fields: (fields[2], fields[3]))


def summed(held: Sequence[Fields]) -> Fields | None:
    """Return the last writer's tuple with the sum; an overflow is a fault, as in Tarantool, and gives no row."""
    last, total = latest(held), 0
    for fields in sorted(held, key=lambda fields: fields[3]):
        total += fields[2]
        if not -(2**63) <= total < 2**64:
            return None
    return [*last[:2], total, *last[3:]]


def merged(held: Sequence[Fields]) -> Fields:
    best, last = max(held, key=lambda fields: (fields[2], fields[3])), latest(held)
    return [last[0], best[1], best[2], *last[3:]]


def own(held: Sequence[Fields]) -> Fields:
    in_order = sorted(held, key=lambda fields: fields[3])
    stands = list(in_order[0])
    for fields in in_order[1:]:
        if len(stands[1]) == len(fields[1]):
            stands = [*fields[:2], min(stands[2], fields[2]), *fields[3:]]
        elif len(fields[1]) < len(stands[1]):
            stands = list(fields)
    return stands


RULES: dict[str, Rule] = {
    "latest": latest,
    "greatest": greatest,
    "summed": summed,
    "merged": merged,
    "own": own,
}


def operations(dice: random.Random, number: int) -> list[Any]:
    """Return operations; the servers refuse some: wrong types, overflow, a missing field, a change of the key."""
    found: list[list[Any]] = [
        ["+", "value", dice.choice([1, -3, 2**62])],
        ["-", 3, dice.choice([5, 2**63 - 1])],
        [":", "name", dice.choice([1, -2, 90]), 1, dice.choice(["", "xyz"])],
        ["=", "name", dice.choice(["ann", "bob", "carla"])],
        ["=", 5, dice.choice([1, "text", [1, {"a": 2}]])],
        ["#", -1, 1],
        ["+", 2, 1],
        ["=", "value", "no integer"],
        ["=", 1, 7],
        ["|", "updated", 0],
    ]
    weights = [8, 4, 4, 6, 4, 1, 1, 1, 1, 2]
    chosen = dice.choices(found, weights, k=dice.randint(1, 2))
    distinct = list({str(index): [code, index, *rest] for code, index, *rest in chosen}.values())
    return [*distinct, ["=", "updated", number]] if dice.random() < 0.97 else distinct


def workload(dice: random.Random) -> dict[str, list[list[Any]]]:
    """Return the operations of each replicaset in order; only the sides of one workload share keys."""
    found: dict[str, list[list[Any]]] = {side: [] for side in SIDES}
    numbers = iter(range(1, 1 << 30))
    for key in range(KEYS):
        sides = dice.sample(SIDES, dice.choice([1, 2, 2, 3]))
        for _ in range(dice.randint(len(sides), 3 * len(sides))):
            number = next(numbers)
            row = [key, dice.choice(["ann", "bobby", "al"]), dice.randint(-9, 9), number]
            kinds: list[list[Any]] = [
                ["insert", row],
                ["replace", row],
                ["update", [key], operations(dice, number)],
                ["upsert", row, operations(dice, number)],
                ["delete", [key]],
            ]
            found[dice.choice(sides)].append(dice.choices(kinds, [4, 4, 5, 5, 2])[0])
    return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, list[Fields]]]]:
    """Return the logs' folder, and the final tuples of each side of each space."""
    folder = tmp_path_factory.mktemp("three")
    work, names = workload(random.Random(46)), list(POLICIES)
    final: dict[str, dict[str, list[Fields]]] = {name: {} for name in names}
    for side in SIDES:
        with Tarantool(folder / f"{side}1") as server:
            server.eval(DEFINE, names)
            refused = server.eval(APPLY, names, work[side])
            assert refused > 100
            for name in names:
                rows = server.eval(FINAL, name)
                final[name][side] = [list(msgpack.unpackb(bytes.fromhex(row))) for row in rows]
    return folder, final


def test_the_tables_are_what_the_policies_make_of_the_servers_own_tuples(
    played: tuple[Path, dict[str, dict[str, list[Fields]]]],
    tmp_path: Path,
) -> None:
    folder, final = played
    sources = {f"{side}1": folder / f"{side}1" for side in SIDES}
    deployment = Deployment(tmp_path, sources, policies={"spaces": POLICIES}, types={"integer": "precise"})
    deployment.write()
    all_wrong = {}
    for name, sides in final.items():
        held: dict[int, list[Fields]] = {}
        for tuples in sides.values():
            for fields in tuples:
                held.setdefault(fields[0], []).append(fields)
        contended = sum(len(versions) > 1 for versions in held.values())
        assert contended > KEYS / 5
        stands = {key: RULES[name](versions) for key, versions in held.items()}
        expected = {key: fields for key, fields in stands.items() if fields is not None}
        rows = [list(msgpack.unpackb(row["_tuple"])) for row in deployment.rows(name, ["_tuple"])]
        found = {fields[0]: fields for fields in rows}
        wrong = {
            key: (expected.get(key), found.get(key))
            for key in expected.keys() | found.keys()
            if expected.get(key) != found.get(key)
        }
        if wrong:
            all_wrong[name] = (len(wrong), dict(list(wrong.items())[:3]))
    assert not all_wrong
    faults = [row for row in deployment.rows("_quarantine") if row["space"] == "summed"]
    assert faults
    assert all("Integer overflow" in row["reason"] for row in faults)

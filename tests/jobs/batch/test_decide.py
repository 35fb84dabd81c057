"""The choice in Spark against the same policies in plain Python, and what its plan runs.

Every table of one frame has a policy of its own; keys hold the versions of one to three replicasets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.batch.apply import Target
from jobs.batch.choices import Choice, choice_of
from jobs.batch.decide import decide
from jobs.batch.identities import Identities
from config.policies import Policy
from schemas.layout import table_layout
from tests.oracle import mp
from tests.udfs.before_replace.versions import OTHER, SPACE
from udfs.before_replace.candidate import Candidate, place
from udfs.before_replace.choice import ORDERS, by_priority, choose
from udfs.before_replace.resolver import Resolver, _outcomes
from udfs.sequence import sequence_bytes

pytestmark = pytest.mark.spark

RULES = "tests.udfs.before_replace.rules"
POLICIES = [
    Policy(),
    Policy(sequence=("value_at",)),
    Policy(deletes="all"),
    Policy(policy="first_write_wins"),
    Policy(policy="source_priority", priority=("c", "a")),
    Policy(policy="max", column="value"),
    Policy(policy="min", column="value", sequence=("value_at",)),
    Policy(policy="merge_fields", fields={"value": ("value_at",)}),
    Policy(policy="sum", columns=("value",)),
    Policy(policy="custom", function=f"{RULES}:greater_balance", deletes="all"),
    Policy(policy="custom", function=f"{RULES}:failing", deletes="all"),
]
NATIVE = range(7)
BY_TIME = (0, 2, 3, 4)
IDS = Identities(["", "b", "a", "c"], ["", "i", "j"])
KEYS = 60
SCHEMA = (
    "table int, replicaset_id int, _key binary, layout int, tuple binary, global_id bigint, lsn bigint, "
    "timestamp timestamp, created timestamp, state string, began boolean, "
    "faults array<struct<global_id: bigint, lsn: bigint, code: int, reason: string>>, "
    "unknown boolean, changed boolean, is_row boolean"
)

Held = dict[tuple[int, bytes], list[tuple[int, Candidate]]]


def targets() -> dict[int, Target]:
    spaces = (SPACE, OTHER)
    layout = table_layout(spaces)
    return {n: Target(n, f"t{n}", layout, {1: 0, 2: 1, 3: 0}, False, spaces) for n in range(len(POLICIES))}


def choices() -> dict[int, Choice]:
    return {n: choice_of(one, POLICIES[n], POLICIES[n].priority, IDS) for n, one in targets().items()}


@pytest.fixture(scope="module")
def held() -> Held:
    dice = random.Random(4)
    found: Held = {}
    for table in range(len(POLICIES)):
        for number in range(KEYS):
            replicasets = dice.sample([1, 2, 3], dice.choice([1, 2, 2, 3]))
            key = mp.encode(number)
            found[table, key] = [(r, version(dice, number, r)) for r in replicasets]
    return found


def version(dice: random.Random, number: int, replicaset: int) -> Candidate:
    value, at = dice.choice([1, 2, 30, -1, 2.5]), dice.randint(0, 2)
    fields = [number, at, value] if replicaset == 2 else [number, value, at, replicaset]
    gone = dice.random() < 0.2
    instance = dice.choice([1, 2, None])
    return Candidate(
        None if gone else mp.encode(fields),
        IDS.replicasets[replicaset],
        IDS.instances[instance] if instance else "",
        dice.randint(1, 5),
        dice.choice([None, 1, 2, 3]),
        None if gone else dice.choice([None, 1, 2, 3]),
        global_id=instance or 0,
        layout=int(replicaset == 2),
    )


def frame(spark: SparkSession, held: Held) -> DataFrame:
    rows = [
        {
            "table": table,
            "replicaset_id": replicaset,
            "_key": key,
            "layout": None,
            "tuple": one.tuple,
            "global_id": one.global_id or None,
            "lsn": one.lsn,
            "timestamp": time(one.timestamp),
            "created": time(one.created),
            "state": "deleted" if one.tuple is None else "present",
            "began": True,
            "faults": None,
            "unknown": False,
            "changed": True,
            "is_row": False,
        }
        for (table, key), versions in held.items()
        for replicaset, one in versions
    ]
    return spark.createDataFrame(rows, SCHEMA)


def time(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


@pytest.fixture(scope="module")
def decided(spark: SparkSession, held: Held) -> list[dict[str, Any]]:
    found = decide(frame(spark, held), IDS, choices(), DataFrame.persist)
    rows: list[dict[str, Any]] = found.toArrow().to_pylist()
    return rows


def in_micros(one: Candidate) -> Candidate:
    def scaled(seconds: int | None) -> int | None:
        return None if seconds is None else seconds * 1_000_000

    return one._replace(timestamp=scaled(one.timestamp), created=scaled(one.created))


def by_key(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[int, bytes], list[Mapping[str, Any]]]]:
    found: dict[tuple[int, bytes], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["table"], row["_key"]), []).append(row)
    yield from found.items()


def with_bytes(versions: Sequence[Candidate], policy: Policy) -> list[Candidate]:
    names = {"value": (1, 2), "value_at": (2, 1)}

    def of(columns: Sequence[str]) -> list[bytes | None]:
        places = [[names[name][i] for name in columns] for i in (0, 1)]
        tuples = pa.array([one.tuple for one in versions], pa.binary())
        which = pa.array([one.layout for one in versions], pa.int32())
        found: list[bytes | None] = sequence_bytes(tuples, which, places).to_pylist()
        return found if columns else [None] * len(versions)

    sequences, values = of(policy.sequence), of([policy.column] if policy.column else [])
    return [one._replace(sequence=s, value=v) for one, s, v in zip(versions, sequences, values, strict=True)]


@pytest.mark.parametrize("table", NATIVE)
def test_a_native_choice_is_what_the_policy_says(
    table: int, decided: list[dict[str, Any]], held: Held
) -> None:
    policy = POLICIES[table]
    order = by_priority(policy.priority) if policy.policy == "source_priority" else ORDERS[policy.policy]
    for (number, key), rows in by_key(decided):
        if number != table:
            continue
        known = with_bytes([in_micros(one) for _, one in held[table, key]], policy)
        expected = choose(known, order, deletes_all=policy.deletes == "all")
        winners = [row["replicaset_id"] for row in rows if row["wins"]]
        assert winners == ([] if expected is None else [IDS.replicasets.index(expected.replicaset)])
        assert len(rows) == len(known)


MERGED, CHOSEN, DELETED, FAILED = (
    *((False, True, False), (True, False, False)),
    *((False, False, False), (False, False, True)),
)
"""Whether a version was chosen, a tuple made, or the policy failed."""
KINDS = {7: {CHOSEN, MERGED}, 8: {MERGED}, 9: {CHOSEN, DELETED}, 10: {CHOSEN, DELETED, FAILED}}


@pytest.mark.parametrize("table", [7, 8, 9, 10])
def test_a_resolver_is_asked_for_contended_keys_alone(
    table: int, decided: list[dict[str, Any]], held: Held
) -> None:
    policy = POLICIES[table]
    groups = {name: tuple(v) for name, v in policy.fields.items()}
    resolver = Resolver(
        "accounts", (SPACE, OTHER), (), (), policy.policy, groups, policy.columns, policy.function or ""
    )
    kinds = set()
    for (number, key), rows in by_key(decided):
        if number != table:
            continue
        known = [in_micros(one) for _, one in held[table, key]]
        taking = sorted((one for one in known if one.tuple or policy.deletes == "all"), key=place)
        winners = [row for row in rows if row["wins"]]
        if len(taking) < 2:
            assert [row["tuple"] for row in winners] == [one.tuple for one in taking]
            assert not any(row["decision"] for row in rows)
            continue
        (outcome,) = _outcomes(resolver, [taking])
        tuple_ = taking[outcome.winner].tuple if outcome.winner is not None else outcome.tuple
        kinds.add((outcome.winner is not None, outcome.tuple is not None, outcome.fault is not None))
        assert [row["tuple"] for row in winners] == ([] if tuple_ is None else [tuple_])
        made = [row for row in rows if row["replicaset_id"] < 0]
        assert len(made) == (outcome.tuple is not None)
        assert all(-row["replicaset_id"] == IDS.replicasets.index(taking[-1].replicaset) for row in made)
        assert {row["fault"] is not None for row in rows} == {outcome.fault is not None}
    assert kinds == KINDS[table]


def plan_of(spark: SparkSession, held: Held, tables: Sequence[int]) -> str:
    own = {key: versions for key, versions in held.items() if key[0] in tables}
    source = spark.createDataFrame(frame(spark, own).toArrow(), SCHEMA)
    found = decide(source, IDS, {n: one for n, one in choices().items() if n in tables}, DataFrame.persist)
    return str(found._jdf.queryExecution().executedPlan().toString())


def test_no_python_runs_where_a_policy_asks_for_no_field(spark: SparkSession, held: Held) -> None:
    plan = plan_of(spark, held, BY_TIME)
    assert "Window" in plan
    assert "Python" not in plan
    assert "Arrow" not in plan


def test_fields_are_read_by_one_udf_and_the_choice_itself_is_native(spark: SparkSession, held: Held) -> None:
    plan = plan_of(spark, held, NATIVE)
    names = {
        line.split("EvalPython [", 1)[1].split("(", 1)[0]
        for line in plan.splitlines()
        if "EvalPython" in line
    }
    assert names == {"sequences"}
    assert "before_replace" not in plan
    assert "before_replace" in plan_of(spark, held, [8])

"""The choice over columns against the same policies in plain Python, key by key."""

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from config.policies import Policy
from pipeline.resolve.choose import BY_RANK, BY_RESULT, BY_SEQUENCE, BY_TIME, BY_UUID
from tests.oracle import mp
from tests.pipeline.resolve.chosen import Chosen, choices, chosen
from tests.udfs.before_replace import rules
from tests.udfs.before_replace.orders import ORDERS, Compared, by_priority, last_write
from tests.udfs.before_replace.orders import choose as choose_plainly
from tests.udfs.before_replace.versions import OTHER, SPACE
from udfs.before_replace.policies import POLICIES as KINDS
from udfs.before_replace.policy import Candidate, Formats, PolicyOptions
from udfs.keys.sequence import sequence_bytes

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
CHOOSING, MAKING = range(7), range(7, 11)
KEYS = 60


def version(dice: random.Random, number: int, replicaset: str) -> Candidate:
    value, at = dice.choice([1, 2, 30, -1, 2.5]), dice.randint(0, 2)
    is_other = replicaset == "b"
    fields = [number, at, value] if is_other else [number, value, at, replicaset]
    gone = dice.random() < 0.2
    return Candidate(
        None if gone else mp.encode(fields),
        replicaset,
        dice.choice(["i", "j", ""]),
        dice.randint(1, 5),
        dice.choice([None, 1, 2, 3]),
        None if gone else dice.choice([None, 1, 2, 3]),
        format_index=int(is_other),
    )


def drawn(policy: int) -> list[list[Candidate]]:
    """Return keys with the versions of one to three replicasets."""
    dice = random.Random(policy)
    return [
        [version(dice, number, one) for one in dice.sample(["a", "b", "c"], dice.choice([1, 2, 2, 3]))]
        for number in range(KEYS)
    ]


def with_bytes(versions: Sequence[Candidate], policy: Policy) -> list[Compared]:
    names = {"value": (1, 2), "value_at": (2, 1)}

    def of(columns: Sequence[str]) -> list[bytes | None]:
        indices = [[names[name][i] for name in columns] for i in (0, 1)]
        tuples = pa.array([one.tuple for one in versions], pa.binary())
        which = pa.array([one.format_index for one in versions], pa.int32())
        found: list[bytes | None] = sequence_bytes(tuples, which, indices).to_pylist()
        return found if columns else [None] * len(versions)

    sequences, values = of(policy.sequence), of([policy.column] if policy.column else [])
    return [Compared(*one) for one in zip(versions, sequences, values, strict=True)]


@pytest.mark.parametrize("number", CHOOSING)
def test_a_policy_that_chooses_does_what_it_says(number: int) -> None:
    policy, keys = POLICIES[number], drawn(number)
    order = by_priority(policy.priority) if policy.policy == "source_priority" else ORDERS[policy.policy]
    for versions, found in zip(keys, chosen(keys, [policy] * KEYS), strict=True):
        known = with_bytes(versions, policy)
        expected = choose_plainly(known, order, deletes_all=policy.deletes == "all")
        assert found == Chosen(None if expected is None else known.index(expected))


KINDS_OF_RESULT = {
    7: {"version", "tuple"},
    8: {"tuple"},
    9: {"version", "nothing"},
    10: {"version", "nothing", "fault"},
}


@pytest.mark.parametrize("number", MAKING)
def test_a_policy_that_makes_tuples_is_called_for_contended_keys_alone(number: int) -> None:
    policy, keys = POLICIES[number], drawn(number)
    options = PolicyOptions(
        policy.sequence, policy.priority, policy.column, policy.fields, policy.columns, policy.function
    )
    make = KINDS[policy.policy].make
    assert make is not None
    kinds = set()
    for versions, found in zip(keys, chosen(keys, [policy] * KEYS), strict=True):
        taking = sorted((one for one in versions if one.tuple or policy.deletes == "all"), key=last_write)
        if len(taking) < 2:
            assert found == Chosen(versions.index(taking[0]) if taking else None)
            continue
        (outcome,) = make([taking], options, Formats("accounts", (SPACE, OTHER)))
        winner = None if outcome.winner is None else versions.index(taking[outcome.winner])
        assert (found.winner, found.tuple) == (winner, outcome.tuple)
        assert (found.fault is None) == (outcome.fault is None)
        kinds.add(
            "fault"
            if outcome.fault is not None
            else "version"
            if outcome.winner is not None
            else "nothing"
            if outcome.tuple is None
            else "tuple"
        )
    assert kinds == KINDS_OF_RESULT[number]


def test_policies_of_several_tables_do_not_mix() -> None:
    keys = [versions for number in range(len(POLICIES)) for versions in drawn(number)[:20]]
    policies = [policy for policy in POLICIES for _ in range(20)]
    apart = [
        one for number, policy in enumerate(POLICIES) for one in chosen(drawn(number)[:20], [policy] * 20)
    ]
    together = chosen(keys, policies)
    assert [one._replace(fault=None) for one in together] == [one._replace(fault=None) for one in apart]


def test_a_function_is_not_called_where_one_version_takes_part() -> None:
    rules.calls.clear()
    alone = Candidate(mp.encode([1, 5]), "a", "i", 1, 1)
    gone = Candidate(None, "b", "j", 1, 2)
    policy = Policy(policy="custom", function=f"{RULES}:counted")
    assert chosen([[alone], [alone, gone]], [policy] * 2) == [Chosen(0), Chosen(0)]
    assert rules.calls == []


def test_what_a_version_lost_by() -> None:
    def one(replicaset: str, value: int, at: int, time: int) -> Candidate:
        return Candidate(mp.encode([1, value, at, "x"]), replicaset, "i", 1, time, time)

    keys = [
        [one("a", 5, 1, 1), one("c", 4, 1, 1)],
        [one("a", 5, 2, 1), one("c", 5, 1, 1)],
        [one("a", 5, 1, 2), one("c", 5, 1, 1)],
        [one("a", 5, 1, 1), one("c", 5, 1, 1)],
        [one("a", 5, 1, 1), one("c", 5, 1, 1)],
    ]
    greatest = Policy(policy="max", column="value", sequence=("value_at",))
    policies = [greatest, greatest, Policy(), Policy(), Policy(policy="sum", columns=("value",))]
    found = choices(keys, policies)
    losers = [1, 3, 5, 6]
    assert found.lost_comparisons[losers].tolist() == [BY_RANK, BY_SEQUENCE, BY_TIME, BY_UUID]
    assert found.lost_comparisons[8:].tolist() == [BY_RESULT, BY_RESULT]
    assert np.all(found.has_rivals)

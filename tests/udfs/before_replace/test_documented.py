"""The example of docs/semantics.md under each policy gives the documented results."""

import pytest

from config.policies import Policy
from schemas.space import Field, KeyPart, Space
from tests.oracle import mp
from tests.pipeline.resolve.chosen import chosen, winner_of
from udfs.before_replace.policy import Candidate

NAMES = ("id", "balance", "hits", "name", "name_at", "updated")
SPACE = Space(
    600, 1, "accounts", "memtx", tuple(Field(name, "any") for name in NAMES), (KeyPart(0, "unsigned"),)
)
ROWS: dict[str, list[object] | None] = {
    "A": [1, 10, 3, "Ann", 5, 90],
    "B": [1, 30, 2, "Anna", 7, 100],
    "C": None,
}
TIMES = {"A": (9, 12), "B": (10, 11), "C": (None, 13)}


def versions() -> list[Candidate]:
    found = []
    for name, fields in ROWS.items():
        created, changed = TIMES[name]
        data = None if fields is None else mp.encode(fields)
        found.append(Candidate(data, name, name.lower(), 1, changed, created))
    return found


@pytest.mark.parametrize(
    ("policy", "winner"),
    [
        (Policy(), "A"),
        (Policy(sequence=("updated",)), "B"),
        (Policy(deletes="all"), "C"),
        (Policy(policy="first_write_wins"), "A"),
        (Policy(policy="source_priority", priority=("C", "B")), "B"),
        (Policy(policy="max", column="balance"), "B"),
        (Policy(policy="min", column="balance"), "A"),
    ],
)
def test_who_wins(policy: Policy, winner: str) -> None:
    found = winner_of(versions(), policy, (SPACE,))
    assert found is not None
    assert found.replicaset == winner


@pytest.mark.parametrize(
    ("policy", "made"),
    [
        (Policy(policy="merge_fields", fields={"name": ("name_at",)}), [1, 10, 3, "Anna", 7, 90]),
        (Policy(policy="sum", columns=("hits",)), [1, 10, 5, "Ann", 5, 90]),
    ],
)
def test_made_tuples(policy: Policy, made: list[object]) -> None:
    (found,) = chosen([versions()], [policy], (SPACE,))
    assert found.tuple == mp.encode(made)

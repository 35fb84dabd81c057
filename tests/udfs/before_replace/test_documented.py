"""The three versions of docs/semantics.md under each policy: what the page says is what happens."""

from __future__ import annotations

import pyarrow as pa
import pytest

from schemas.space import Field, KeyPart, Space
from tests.oracle import mp
from udfs.before_replace.candidate import Candidate, place
from udfs.before_replace.choice import ORDERS, by_priority, choose
from udfs.before_replace.resolver import Resolver, _outcomes
from udfs.sequence import sequence_bytes

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


def versions(value: str = "", sequence: str = "") -> list[Candidate]:
    found = []
    for name, fields in ROWS.items():
        created, changed = TIMES[name]
        data = None if fields is None else mp.encode(fields)
        found.append(Candidate(data, name, name.lower(), 1, changed, created))

    def of(one: Candidate, field: str) -> bytes | None:
        if not field:
            return None
        place_ = [[NAMES.index(field)]]
        result: bytes | None = sequence_bytes(pa.array([one.tuple], pa.binary()), 0, place_)[0].as_py()
        return result

    return [one._replace(value=of(one, value), sequence=of(one, sequence)) for one in found]


@pytest.mark.parametrize(
    ("known", "order", "deletes_all", "winner"),
    [
        (versions(), ORDERS["last_write_wins"], False, "A"),
        (versions(sequence="updated"), ORDERS["last_write_wins"], False, "B"),
        (versions(), ORDERS["last_write_wins"], True, "C"),
        (versions(), ORDERS["first_write_wins"], False, "A"),
        (versions(), by_priority(["C", "B"]), False, "B"),
        (versions(value="balance"), ORDERS["max"], False, "B"),
        (versions(value="balance"), ORDERS["min"], False, "A"),
    ],
)
def test_who_wins(known: list[Candidate], order: object, deletes_all: bool, winner: str) -> None:
    found = choose(known, order, deletes_all=deletes_all)  # type: ignore[arg-type]
    assert found is not None
    assert found.replicaset == winner


@pytest.mark.parametrize(
    ("policy", "made"),
    [
        ({"policy": "merge_fields", "groups": {"name": ("name_at",)}}, [1, 10, 3, "Anna", 7, 90]),
        ({"policy": "sum", "columns": ("hits",)}, [1, 10, 5, "Ann", 5, 90]),
    ],
)
def test_what_is_made(policy: dict[str, object], made: list[object]) -> None:
    resolver = Resolver("accounts", (SPACE,), (), (), **policy)  # type: ignore[arg-type]
    taking = sorted((one for one in versions() if one.tuple is not None), key=place)
    (outcome,) = _outcomes(resolver, [taking])
    assert outcome.tuple == mp.encode(made)

"""Which table a space's rows go to: how many definitions are compared."""

from collections.abc import Mapping

import pytest

from pipeline.plan.spaces.router import TableOwner, TableOwners
from schemas.errors import UnsupportedError
from schemas.space import Field, KeyPart, KeyParts, Space, key_parts

KEYS = frozenset([key_parts([KeyPart(0, "unsigned")])])


def definition(kind: str) -> Space:
    """Return a definition; each call returns another object."""
    return Space(
        512, 1, "orders", "memtx", (Field("id", "unsigned"), Field("sum", kind)), (KeyPart(0, "unsigned"),)
    )


class RecordedChecks:
    """A check that records how many definitions and primary keys it compares, and refuses two definitions."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def __call__(
        self, table: str, definitions: Mapping[int, Space], keys: Mapping[int, frozenset[KeyParts]]
    ) -> None:
        self.sizes.append((len(definitions), len(keys)))
        if len(set(definitions.values())) > 1:
            raise UnsupportedError("they differ", table=table)


def test_equal_definitions_are_checked_as_one() -> None:
    check = RecordedChecks()
    owners = TableOwners(check)
    for replicaset_id in range(1, 51):
        owner = TableOwner(512, definition("unsigned"), KEYS)
        assert owners.contradiction(replicaset_id, "orders", owner) is None
        owners.claim(replicaset_id, "orders", owner)
    assert check.sizes == [(1, 1)] * 50


@pytest.mark.parametrize("replicaset_id", [1, 2, 3])
def test_a_contradiction_is_found_wherever_it_is(replicaset_id: int) -> None:
    owners = TableOwners(RecordedChecks())
    for other in {1, 2, 3} - {replicaset_id}:
        owners.claim(other, "orders", TableOwner(512, definition("unsigned"), KEYS))
    reason = owners.contradiction(replicaset_id, "orders", TableOwner(512, definition("string"), KEYS))
    assert reason is not None
    assert "they differ" in reason


def test_a_replicaset_does_not_contradict_its_own_earlier_definition() -> None:
    owners = TableOwners(RecordedChecks())
    owners.claim(1, "orders", TableOwner(512, definition("unsigned"), KEYS))
    assert owners.contradiction(1, "orders", TableOwner(512, definition("string"), KEYS)) is None


def test_keys_of_equal_definitions_are_all_compared() -> None:
    check = RecordedChecks()
    owners = TableOwners(check)
    owners.claim(1, "orders", TableOwner(512, definition("unsigned"), KEYS))
    earlier = KEYS | {key_parts([KeyPart(1, "unsigned")])}
    assert owners.contradiction(2, "orders", TableOwner(512, definition("unsigned"), earlier)) is None
    assert check.sizes == [(2, 2)]

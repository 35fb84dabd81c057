"""What an epoch says that subscribers are to have, and what is left out by name."""

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from pipeline.replication_out.target import served_instances, served_spaces
from schemas.errors import UnsupportedError, WarehouseError
from schemas.space import Space
from schemas.states import HELD_PREFIX, SpaceState
from udfs.remap.cluster_replace import FIRST_DAEMON_ID, OWN_REPLICASET_UUID, Cluster, Member
from warehouse.system_tables.schema import StoredSpace

FIELDS = [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"}]


def stored(replicaset: int, table: str, state: str = SpaceState.PRESENT, **other: Any) -> StoredSpace:
    parts = other.get("parts", [[0, "unsigned"]])
    space = [other.get("id", 600), 1, table, other.get("engine", "memtx"), 0, {}, FIELDS]
    indexes = {0: msgpack.packb([600, 0, "pk", "tree", {"unique": True}, parts])}
    if other.get("name_index"):
        indexes[1] = msgpack.packb([600, 1, "name", "tree", {"unique": True}, [[1, "string"]]])
    return StoredSpace(replicaset, space[0], state, table, msgpack.packb(space), indexes)


def test_spaces_of_several_replicasets() -> None:
    found, ids, left_out = served_spaces(
        [
            stored(2, "accounts", id=700, engine="vinyl"),
            stored(1, "accounts", id=600),
            stored(1, "sqlt__u0_4", id=601),
            stored(1, "not_written", id=602),
        ],
        {"accounts": 3, "sqlt__u0_4": 1},
    )
    assert {table: space.name for table, space in found.items()} == {
        "accounts": "accounts",
        "sqlt__u0_4": "SQLT",
    }
    assert ids == {"accounts": 600, "sqlt__u0_4": 601}
    assert found["accounts"].space_tuple()[3] == "memtx"
    assert left_out == {}


@pytest.mark.parametrize(
    ("spaces", "versions", "why"),
    [
        (
            [stored(1, "s", "refused: a primary key with a collation")],
            {},
            "refused: a primary key with a collation",
        ),
        ([stored(1, "s")], {"_exact_s": 1}, "it is masked"),
        ([stored(1, "s"), stored(2, "s", parts=[[1, "string"]])], {}, "the primary key is not the same"),
    ],
)
def test_spaces_that_are_not_served(spaces: list[StoredSpace], versions: dict[str, int], why: str) -> None:
    found, _, left_out = served_spaces(spaces, {"s": 1} | versions)
    assert found == {}
    assert left_out["s"].startswith(why)


def test_a_space_whose_rows_are_held_has_tuples_of_an_earlier_definition() -> None:
    held = stored(1, "s", f"refused: {HELD_PREFIX}: INSERT_ARROW", name_index=True)
    found, _, left_out = served_spaces([held], {"s": 1})
    assert [(one.type, one.is_nullable) for one in found["s"].fields] == [("unsigned", False), ("any", True)]
    assert [index.name for index in found["s"].indexes] == ["pk"]
    assert "earlier definition" in left_out["s"]


def test_one_replicaset_is_refused_and_another_is_not() -> None:
    found, _, left_out = served_spaces([stored(1, "s", "refused: why"), stored(2, "s")], {"s": 1})
    assert set(found) == {"s"}
    assert left_out == {}


def test_a_refused_space_with_rows_has_tuples_of_an_earlier_definition() -> None:
    refused = stored(1, "s", "refused: why")
    refused = replace(refused, applied_definition=Space(600, 1, "s", "memtx"))
    found, _, _ = served_spaces([refused, stored(2, "s")], {"s": 1})
    assert [(one.type, one.is_nullable) for one in found["s"].fields] == [("unsigned", False), ("any", True)]


def cluster(own: int | None, *others: tuple[int, str, bool]) -> Cluster:
    members = [Member(own, "own", None, 0, OWN_REPLICASET_UUID)] if own is not None else []
    members += [Member(number, uuid, 1, 1, "r", expelled=expelled) for number, uuid, expelled in others]
    return Cluster("counter", {member.key: member for member in members})


def test_instances() -> None:
    own, found, left_out = served_instances(
        cluster(
            1, (2, "a", False), (3, "gone", True), (32, "late", False), (FIRST_DAEMON_ID, "daemon", False)
        )
    )
    assert own.uuid == "own"
    assert found == {1: "own", 2: "a"}
    assert left_out == {"late": "global id 32: a vclock has ids up to 31"}


def test_an_aggregator_that_no_vclock_has() -> None:
    with pytest.raises(UnsupportedError, match="global id is 32"):
        served_instances(cluster(32))
    with pytest.raises(WarehouseError, match="no global id yet"):
        served_instances(cluster(None))

"""A space with rows is renamed, or gets another primary key: its versions continue unchanged."""

from pathlib import Path
from typing import Any

import msgpack

from tests.jobs.deployment import Deployment
from tests.jobs.written import Node

USERS, LEDGER = 600, 601


def before(folder: Path) -> tuple[Node, Node]:
    a, b = Node(folder, "a1"), Node(folder, "b1")
    for node in (a, b):
        node.define(USERS, "users")
    a.define(LEDGER, "ledger")
    for key in (1, 2, 3, 4):
        a.put(USERS, key, f"a {key}", key, 0, at=key)
        a.put(LEDGER, key, f"entry {key}", key, 0, at=key)
    a.update(USERS, 2, ["=", 1, "a 2 later"], at=20).update(LEDGER, 2, ["+", 2, 100], at=20)
    b.put(USERS, 2, "b 2", 2, 0, at=10).put(USERS, 9, "b 9", 9, 0, at=10)
    return a, b


def move(a: Node) -> None:
    a.redefine(USERS, "people")
    a.update(USERS, 3, ["=", 1, "a 3 later"], at=30).delete(USERS, 4, at=31)
    a.rekey(LEDGER, (1, "string")).put(LEDGER, 7, "entry 1", 70, 0, at=40)
    a.update(LEDGER, "entry 3", ["+", 2, 1000], at=41).delete(LEDGER, "entry 4", at=42)


def rows_by_key(deployment: Deployment, table: str) -> dict[Any, tuple[Any, ...]]:
    """Return a table's rows by key: the tuple, the lsn, both times in seconds of the test."""
    return {
        row["_key"]: (
            msgpack.unpackb(row["_tuple"])[:3],
            row["_lsn"],
            round(row["_timestamp"].timestamp() - 1.7e9),
            round(row["_created"].timestamp() - 1.7e9),
        )
        for row in deployment.table(table).values()
    }


def key(value: Any) -> bytes:
    return bytes(msgpack.packb([value]))


PEOPLE = {
    key(1): ([1, "a 1", 1], 6, 1, 1),
    key(2): ([2, "a 2 later", 2], 14, 20, 2),
    key(3): ([3, "a 3 later", 3], 17, 30, 3),
}
LEDGER_AFTER = {
    key("entry 1"): ([7, "entry 1", 70], 20, 40, 1),
    key("entry 2"): ([2, "entry 2", 102], 15, 20, 2),
    key("entry 3"): ([3, "entry 3", 1003], 21, 41, 3),
}
USERS_AFTER = {key(2): ([2, "b 2", 2], 4, 10, 10), key(9): ([9, "b 9", 9], 5, 10, 10)}


def check(deployment: Deployment) -> None:
    assert rows_by_key(deployment, "people") == PEOPLE
    assert rows_by_key(deployment, "ledger") == LEDGER_AFTER
    assert rows_by_key(deployment, "users") == USERS_AFTER
    assert deployment.refused_spaces() == set()
    assert not deployment.rows("_pending")


def test_in_the_batch_of_its_rows(tmp_path: Path) -> None:
    a, b = before(tmp_path)
    move(a)
    a.close()
    b.close()
    deployment = Deployment.of(tmp_path, a, b)
    deployment.write()
    check(deployment)


def test_in_a_later_batch(tmp_path: Path) -> None:
    a, b = before(tmp_path)
    a.close()
    b.close()
    deployment = Deployment.of(tmp_path, a, b)
    deployment.write()
    move(a)
    a.close()
    deployment.write()
    check(deployment)

"""Operations are applied by the rules of the server that each row was read from, wherever a history is cut.

The history is one of a server that is upgraded from 2.6.0 to 2.11.8 and 3.9.0. Each UPSERT in it has a result that
depends on the version: `=` beyond the end fills the gap from 2.8 on, and several operations may change one field from
3.0 on (`udfs.operations.update_rules`). An operation that is not possible is passed over.
"""

import itertools
import logging
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from pipeline.batch import MakeDistributed
from pipeline.plan.ids import upgrades
from pipeline.requests.snapshots import read_spaces_again
from schemas.iproto import BodyKey, RequestType, SystemSpace
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import PEER_VERSIONS_KEY
from tests.bodies import encode_body
from tests.jobs.written import BEGAN, Node
from tests.pipeline.deployment import Deployment
from tests.soaked import partly_soaked

S = 600
VERSIONS = ("2.6.0-0-g47aa4e01e", "2.11.8-0-g8ac7d6ff3", "3.9.0-0-g0000000")
MANY = 20
LATE = ["=", 4, "late"]
TWICE = (["+", 2, 1], ["+", 2, 1])
BY_VERSION: list[list[Any]] = [
    ["a", 1],
    ["a", 1, None, "late"],
    ["a", 2, None, "late"],
]
"""What each version makes of a tuple [key, "a", 0] by the two UPSERTs: the second `+` counts from 3.0 on."""

ALL: list[Any] = ["a", 1 + 1 + 2, None, "late"]
"""What the three make of it one after the other."""

CUTS = [None, 1, "random"]
MOST_CUTS = partly_soaked([None, "random"], [1])


def begun(folder: Path) -> Node:
    node = Node(folder, "a1", VERSIONS[0])
    node.is_apart = True
    return node


def upserted(node: Node, key: int) -> Node:
    node.upsert(S, [key, "x", 0], LATE)
    return node.upsert(S, [key, "x", 0], *TWICE)


def upgraded(node: Node) -> Node:
    """Change keys of each version's own, and one key by all of them."""
    for number, version in enumerate(VERSIONS):
        node.version = version
        if number == 0:
            node.put(S, MANY, "a", 0)
        node.put(S, number, "a", 0)
        upserted(upserted(node, number), MANY)
        node.close()
    return node


def expected() -> list[list[Any]]:
    whole = [[number, *fields] for number, fields in enumerate(BY_VERSION)]
    return [*whole, [MANY, *ALL]]


def budget(cut: int | str | None) -> int | Iterable[int] | None:
    if isinstance(cut, str):
        chosen = random.Random(16)
        return (chosen.randrange(1, 400) for _ in range(100))
    return cut


@pytest.mark.parametrize(
    ("cut", "executor"),
    [*((cut, "local") for cut in CUTS), pytest.param("random", "distributed", marks=pytest.mark.soak)],
    indirect=["executor"],
)
def test_each_row_has_the_rules_of_its_server(
    tmp_path: Path, executor: MakeDistributed | None, cut: int | str | None
) -> None:
    node = upgraded(begun(tmp_path).define(S, "s"))
    deployment = Deployment.of(tmp_path, node, distributed=executor)
    assert (deployment.run(budget(cut)) > 3) == (cut is not None)
    assert deployment.fields() == expected()
    rows = deployment.rows("_changelog", ["replicaset_id", "server_version", "lsn"])
    own = {row["lsn"]: row["server_version"] for row in rows if row["replicaset_id"] == 1}
    assert [own[lsn] for lsn in (9, 10, 14, 15)] == ["2.6.0", "2.11.8", "2.11.8", "3.9.0"]
    assert set(own.values()) == {"2.6.0", "2.11.8", "3.9.0"}
    assert {row["server_version"] for row in rows if row["replicaset_id"] == 0} == {None}


@pytest.mark.parametrize("cut", MOST_CUTS)
def test_rows_that_wait_for_a_definition_keep_the_version(
    tmp_path: Path, executor: MakeDistributed | None, cut: int | str | None
) -> None:
    node = upgraded(begun(tmp_path).define(S + 1, "other"))
    deployment = Deployment.of(tmp_path, node, distributed=executor)
    deployment.run(budget(cut))
    waiting = deployment.rows("_pending", ["server_version"])
    assert {row["server_version"] for row in waiting} == {"2.6.0", "2.11.8", "3.9.0"}
    node.define(S, "s").close()
    deployment.run(budget(cut))
    assert deployment.fields() == expected()
    assert deployment.rows("_pending") == []


@pytest.mark.parametrize("cut", MOST_CUTS)
def test_rows_that_wait_behind_an_unknown_origin_keep_the_version(
    tmp_path: Path, executor: MakeDistributed | None, cut: int | str | None
) -> None:
    node = begun(tmp_path).define(S, "s")
    foreign(node, [MANY + 1, "of another origin", 0])
    upgraded(node)
    deployment = Deployment.of(tmp_path, node, distributed=executor)
    deployment.run(budget(cut))
    assert deployment.rows("s") == []
    waiting = deployment.rows("_pending", ["server_version"])
    assert {row["server_version"] for row in waiting} == {"2.6.0", "2.11.8", "3.9.0"}
    node.row(RequestType.INSERT, SystemSpace.CLUSTER, {0x21: [2, node.uuid.replace("a1", "a2")]}).close()
    deployment.run(budget(cut))
    assert deployment.fields() == [*expected(), [MANY + 1, "of another origin", 0]]
    assert deployment.rows("_pending") == []


def foreign(node: Node, fields: list[Any], lsn: int = 1, kind: RequestType = RequestType.REPLACE) -> None:
    """Add a row that another instance executed."""
    body = encode_body(space_id=S, tuple_=msgpack.packb(fields))
    node.add(encode_row(kind, body, replica_id=2, lsn=lsn, timestamp=BEGAN))


def test_rows_that_are_applied_once_more_keep_the_version(
    tmp_path: Path, executor: MakeDistributed | None
) -> None:
    node = begun(tmp_path).define(S, "s").put(S, MANY + 1, "a", 0)
    node.close()
    node.snapshot({S: [(MANY + 1, "in the snapshot", 0)]})
    upgraded(node)
    deployment = Deployment.of(tmp_path, node, distributed=executor)
    deployment.run(1)
    with deployment.writer() as (warehouse, writer):
        message = read_spaces_again(deployment.config(), warehouse, writer, ["s"], None, "again")
    assert "16 later rows applied again" in message
    assert deployment.fields() == [*expected(), [MANY + 1, "in the snapshot", 0]]


@pytest.mark.parametrize("cut", MOST_CUTS)
def test_a_primary_key_that_changes_on_the_way(
    tmp_path: Path, executor: MakeDistributed | None, cut: int | str | None
) -> None:
    node = begun(tmp_path).define(S, "s").put(S, 1, "a", 0)
    upserted(node, 1).close()
    node.version = VERSIONS[2]
    upserted(node, 1).rekey(S, (1, "string"))
    node.upsert(S, [7, "a", 0], *TWICE).close()
    deployment = Deployment.of(tmp_path, node, distributed=executor)
    deployment.run(budget(cut))
    assert deployment.fields() == [[1, "a", 1 + 2 + 2, None, "late"]]


@pytest.mark.parametrize("cut", MOST_CUTS)
def test_rows_of_several_peers_in_one_log(
    tmp_path: Path, executor: MakeDistributed | None, cut: int | str | None
) -> None:
    """A spool's header says of which version the peer of each replica id is."""
    node = begun(tmp_path).define(S, "s")
    node.row(RequestType.INSERT, SystemSpace.CLUSTER, {0x21: [2, node.uuid.replace("a1", "a2")]})
    node.keys = {PEER_VERSIONS_KEY: "{2: 3.9.0}"}
    for key in (1, 2):
        node.put(S, key, "a", 0)
    upserted(node, 1)
    for lsn, operations in enumerate(([LATE], TWICE), start=1):
        body = {0x10: S, 0x21: [2, "x", 0], 0x28: list(operations)}
        node.add(encode_row(RequestType.UPSERT, msgpack.packb(body), replica_id=2, lsn=lsn, timestamp=BEGAN))
    node.close()
    deployment = Deployment.of(tmp_path, node, distributed=executor)
    deployment.run(budget(cut))
    assert deployment.fields() == [[1, *BY_VERSION[0]], [2, *BY_VERSION[2]]]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("cut", MOST_CUTS)
def test_a_log_that_a_newer_server_writes_under_the_older_ones_header(
    tmp_path: Path, executor: MakeDistributed | None, cut: int | str | None, is_restarted: bool
) -> None:
    """A server that starts writes into the log without rows that the one before left; `_schema` says its version."""
    node = begun(tmp_path).define(S, "s").put(S, 1, "a", 0)
    upserted(node, 1)
    for version in ([2, 7, 1], [2, 11, 5]):
        node.row(RequestType.REPLACE, SystemSpace.SCHEMA, {0x21: ["version", *version]})
    node.row(RequestType.REPLACE, SystemSpace.SCHEMA, {0x21: ["max_id", 600]})
    upserted(node.put(S, 2, "a", 0), 2)
    node.row(RequestType.REPLACE, SystemSpace.SCHEMA, {0x21: ["version", 3, 8, 0]})
    upserted(node.put(S, 3, "a", 0), 3)
    node.row(RequestType.REPLACE, SystemSpace.SCHEMA, {0x21: ["version", 2, 11, 5]})  # `box.schema.downgrade`
    upserted(node.put(S, 4, "a", 0), 4).close()
    node.put(S, 5, "a", 0)
    upserted(node, 5).close()
    deployment = Deployment.of(tmp_path, node, distributed=executor)
    sizes = budget(cut)
    if is_restarted and cut is not None:
        steps = iter(sizes) if isinstance(sizes, Iterable) else itertools.repeat(1)
        before = -1
        while deployment.batches > before:
            before = deployment.batches
            deployment.run([next(steps)], batches=1)
    else:
        deployment.run(sizes)
    by_key = [BY_VERSION[0], BY_VERSION[1], BY_VERSION[2], BY_VERSION[2], BY_VERSION[0]]
    assert deployment.fields() == [[key, *fields] for key, fields in enumerate(by_key, start=1)]


def test_an_upgrade_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server applies rows since its last snapshot once more when it starts, by its new rules."""
    node = begun(tmp_path).define(S, "s")
    deployment = Deployment.of(tmp_path, node)
    with caplog.at_level(logging.WARNING):
        upgraded(node)
        deployment.run()
        node.put(S, 5, "a", 0).close()
        deployment.run()
    warnings = [record.getMessage() for record in caplog.records if "their UPSERTs" in record.getMessage()]
    assert [("Tarantool 2.11.8 writes" in one, "Tarantool 3.9.0 writes" in one) for one in warnings] == [
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize("cut", [None, 1])
def test_an_upgrade_within_a_file_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, cut: int | None
) -> None:
    """`box.schema.upgrade` of a 3.9 writes 3.0, 3.1, 3.3 and 3.8 into `_schema`, one after the other."""
    monkeypatch.setattr(upgrades, "_TOLD_UPGRADES", set())
    node = begun(tmp_path).define(S, "s")
    node.version = VERSIONS[1]
    for numbers in ((3, 0, 0), (3, 1, 0), (3, 3, 0), (3, 8, 0)):
        node.row(RequestType.REPLACE, SystemSpace.SCHEMA, {int(BodyKey.TUPLE): ["version", *numbers]})
    node.put(S, 1, "a", 0).close()
    deployment = Deployment.of(tmp_path, node)
    with caplog.at_level(logging.WARNING):
        deployment.run(cut)
    (warning,) = (one.getMessage() for one in caplog.records if "their UPSERTs" in one.getMessage())
    assert f"Tarantool {'3.8.0' if cut is None else '3.0.0'} or newer writes its logs from here on" in warning

"""The repository's recording holds what it is there for: every request, operation, type, engine and oddity."""

from collections import Counter
from functools import cache
from typing import Any

import msgpack
import pytest

from tests.oracle import Row, mp, read_log, transactions
from tests.oracle.log import CONFIRM, DELETE, EOF_MAGIC, INSERT, NOP, REPLACE, ROLLBACK, UPDATE, UPSERT
from tests.truth import own

SPACE, INDEX, TRUNCATE = 280, 288, 330
SPACE_ID, KEY, TUPLE, OPERATIONS = 0x10, 0x20, 0x21, 0x28
SMALL_BYTES = 2_000_000
NODES = ("a1", "a2", "b1", "b2")
FIELD_TYPES = {
    "any", "array", "boolean", "decimal", "double", "integer", "map", "number", "scalar", "string", "unsigned",
    "uuid", "varbinary",
}  # fmt: skip


@cache
def rows(node: str) -> tuple[Row, ...]:
    return tuple(row for path in own().logs(node) for row in read_log(path))


def operations_of(node: str) -> list[Any]:
    found = []
    for row in rows(node):
        raw = row.body.get(TUPLE) if row.type == UPDATE else row.body.get(OPERATIONS)
        if row.type in (UPDATE, UPSERT) and raw is not None:
            found += list(mp.decode(raw))
    return found


@pytest.mark.parametrize("node", NODES)
def test_every_request_type_is_there(node: str) -> None:
    counts = Counter(row.type for row in rows(node))
    wanted = {INSERT, REPLACE, UPDATE, DELETE, UPSERT, NOP, CONFIRM, ROLLBACK}
    assert wanted <= counts.keys()


@pytest.mark.parametrize("node", NODES)
def test_every_operation_is_there_by_every_way_to_name_a_field(node: str) -> None:
    found = operations_of(node)
    assert {one[0] for one in found} == set("=+-&|^:!#")
    targets = {one[1] for one in found}
    assert any(isinstance(one, int) and one < 0 for one in targets)
    assert {"value", "a b", "x.y", "[2].n.i", '[2].n["a b"]', "doc.x"} <= targets


@pytest.mark.parametrize("node", NODES)
def test_every_field_type_is_there(node: str) -> None:
    kinds = {field.type for space in own().spaces(node).values() for field in space.fields}
    assert kinds == FIELD_TYPES


def test_transactions_are_large_mixed_and_over_several_spaces() -> None:
    grouped = list(transactions(rows("a1")))
    assert max(len(one.rows) for one in grouped) >= 150
    assert any({row.group_id for row in one.rows} == {0, 1} for one in grouped)
    assert any(one.rows[-1].type == NOP and len(one.rows) > 1 for one in grouped)
    assert any(len({row.body.get(SPACE_ID) for row in one.rows}) >= 3 for one in grouped)


def test_both_masters_write_and_settle_each_others_queues() -> None:
    assert {row.replica_id for row in rows("a1")} == {0, 1, 2}
    assert any(row.type == CONFIRM and row.replica_id == 2 and row.number(2) == 1 for row in rows("a1"))


def test_replica_ids_collide_and_space_ids_differ() -> None:
    assert own().info("a1").cluster.keys() == own().info("b1").cluster.keys() == {1, 2}
    a, b = own().spaces("a1"), own().spaces("b1")
    shared = a.keys() & b.keys()
    assert len(shared) > 30
    assert [name for name in shared if a[name].id == b[name].id and name != "only_here_1"] == []


@pytest.mark.parametrize("node", NODES)
def test_there_is_ddl_on_the_way(node: str) -> None:
    spaces = Counter(row.type for row in rows(node) if row.body.get(SPACE_ID) == mp.encode(SPACE))
    indexes = Counter(row.type for row in rows(node) if row.body.get(SPACE_ID) == mp.encode(INDEX))
    truncates = [row for row in rows(node) if row.body.get(SPACE_ID) == mp.encode(TRUNCATE)]
    assert {INSERT, DELETE} <= spaces.keys()
    assert {INSERT, DELETE} <= indexes.keys()
    assert {REPLACE, UPDATE} & spaces.keys()
    assert len(truncates) >= 2


def test_names_that_spark_cannot_take_are_there() -> None:
    held = own().spaces("a1")
    assert {"my-space", "a.b", "Счета", "SQLT", "sqlt"} <= held.keys()
    assert [field.name for field in held["Счета"].fields] == ["Id", "id", "имя"]
    assert held["a.b"].fields[1].name == "_lsn"


def test_equal_keys_meet_in_other_bytes() -> None:
    a, b = (
        {mp.decode(one)[0]: mp.split_array(one)[0] for one in own().tuples(node, "keys_number") if one}
        for node in ("a1", "b1")
    )
    assert a[2] == b"\xcd\x00\x02"
    assert b[2] == msgpack.packb(2.0)


def test_numbers_beyond_64_bits_signed_and_beyond_doubles_are_there() -> None:
    big = {mp.decode(one)[0]: mp.decode(one) for one in own().tuples("a1", "big")}
    assert big[1][1] == 2**64 - 2
    assert big[1][2] == 2**53 + 2
    assert big[2][1] == 2**63


def test_odd_values_are_there() -> None:
    held = {mp.decode(one)[0]: mp.decode(one) for one in own().tuples("a1", "raw")}
    assert held[3][1].encode(errors="surrogateescape") == b"\xed\xa0\x80"
    assert {1, "1", 1.5, b"\x01"} == held[2][2].keys()
    assert (len(held[6]), len(held[7])) == (2, 7)


@pytest.mark.parametrize("node", NODES)
def test_there_are_several_logs_with_their_ends(node: str) -> None:
    logs = own().logs(node)
    assert len(logs) >= 4
    assert all(path.read_bytes().endswith(EOF_MAGIC) for path in logs)
    assert sum(1 for path in own().snapshots(node) if int(path.stem) > 100) == (0 if node == "b2" else 1)


def test_hot_copies_have_an_open_last_log() -> None:
    for node in own().hot:
        *closed, last = own().logs(f"hot/{node}")
        assert all(path.read_bytes().endswith(EOF_MAGIC) for path in closed)
        assert not last.read_bytes().endswith(EOF_MAGIC)


def test_commits_share_blocks() -> None:
    blocks = sum(path.read_bytes().count(magic) for path in own().logs("a1") for magic in MAGICS)
    assert len(rows("a1")) > 2 * blocks


MAGICS = (bytes.fromhex("d5ba0bab"), bytes.fromhex("d5ba0bba"))


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in own().root.rglob("*") if path.is_file()) < SMALL_BYTES

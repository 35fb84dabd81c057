"""Rows as Tarantool writes them: golden bytes, and the kernel reads back what was meant."""

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.iproto import RequestType, RowFlag
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.sources.xlog import plain


def test_a_row_is_byte_for_byte_tarantools() -> None:
    golden = bytes.fromhex(
        "8400040201030204cb41dac053248df0c9" + "8410cd011015012091a66d61785f6964219193a12b0201"
    )
    body = encode_body(
        space_id=272,
        index_base=1,
        key=msgpack.packb(["max_id"]),
        operations=msgpack.packb([["+", 2, 1]]),
        is_update=True,
    )
    row = encode_row(
        RequestType.UPDATE, body, replica_id=1, lsn=2, timestamp=struct.unpack(">d", golden[9:17])[0]
    )
    assert row == golden


def columns(row: bytes) -> dict[str, Any]:
    return next(plain.rows_of(row))


@pytest.mark.parametrize(
    ("lsn", "tsn", "is_commit", "keys"),
    [
        (7, None, True, {0, 4, 3}),
        (7, 7, True, {0, 4, 3}),
        (7, 7, False, {0, 4, 3, 8}),
        (8, 7, False, {0, 4, 3, 8}),
        (9, 7, True, {0, 4, 3, 8, 9}),
        (None, None, True, {0, 4}),
    ],
)
def test_transactions_are_marked_only_where_tarantool_marks_them(
    lsn: int | None, tsn: int | None, is_commit: bool, keys: set[int]
) -> None:
    row = encode_row(RequestType.NOP, timestamp=1.0, lsn=lsn, tsn=tsn, is_commit=is_commit)
    assert set(msgpack.unpackb(row, strict_map_key=False)) == keys
    found = columns(row)
    assert found["lsn"] == lsn
    assert found["tsn"] == (lsn if tsn is None else tsn)
    assert found["is_commit"] == is_commit


@given(st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1))
def test_a_transaction_may_begin_with_any_lsn(lsn: int, tsn: int) -> None:
    found = columns(encode_row(RequestType.NOP, timestamp=1.0, lsn=lsn, tsn=tsn, group_id=1, is_commit=False))
    assert (found["lsn"], found["tsn"], found["group_id"]) == (lsn, tsn, 1)


def test_flags_of_a_synchronous_row() -> None:
    flags = RowFlag.WAIT_SYNC | RowFlag.WAIT_ACK
    found = columns(encode_row(RequestType.NOP, timestamp=1.0, lsn=3, tsn=2, flags=flags))
    assert (found["is_commit"], found["wait_sync"], found["wait_ack"]) == (True, True, True)


@pytest.mark.parametrize("is_update", [False, True])
def test_every_piece_of_a_body_is_found_again(is_update: bool) -> None:
    kind = RequestType.UPDATE if is_update else RequestType.UPSERT
    pieces: dict[str, Any] = {"key": b"\x91\x01", "operations": b"\x91\x93\xa1+\x01\x02"}
    pieces |= {} if is_update else {"tuple_": b"\x91\x05"}
    body = encode_body(space_id=70000, index_base=1, is_update=is_update, **pieces)
    found = columns(encode_row(kind, body, timestamp=1.0))
    assert (found["space_id"], found["index_base"]) == (70000, 1)
    assert found["key"] == pieces["key"]
    assert found["operations"] == pieces["operations"]
    assert found["tuple"] == pieces.get("tuple_")


def test_a_body_without_pieces_is_an_empty_map() -> None:
    assert encode_body() == b"\x80"

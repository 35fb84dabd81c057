"""The text of untrusted bytes, as in the report, in a proof and in a dry run."""

import random
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import msgpack
import pytest

from observe.log_rows.row_format import escape_unprintable, tuple_text
from udfs.before_replace.row import encode


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (msgpack.packb([1, "x"]), "[1, 'x']"),
        (
            b"\x91" * 990 + b"\xc0",
            "91" * 990 + "c0",
        ),  # can be decoded, but not shown: Python's recursion limit
        (b"\x81\x90\x01", "819001"),
        (b"\xc1", "c1"),
        (b"\x91\xa1\xff", r"['\udcff']"),
        (msgpack.packb("a\0\u202eb"), r"a\x00\u202eb"),
        (encode([Decimal("9.75"), UUID(int=1)]), f"[9.75, {UUID(int=1)}]"),
        (encode(datetime(2026, 11, 21, tzinfo=UTC)), "2026-11-21T00:00:00+00:00"),
        (msgpack.packb(msgpack.ExtType(1, b"")), "ExtType(code=1, data=b'')"),
    ],
)
def test_every_tuple_has_a_printable_text(data: bytes, text: str) -> None:
    found = escape_unprintable(tuple_text(data))
    assert found == text
    assert found.encode()


def test_no_bytes_raise_an_error() -> None:
    draw = random.Random(17)
    for _ in range(3000):
        head = draw.choice((b"", b"\x91" * draw.randrange(2000), b"\x81"))
        assert escape_unprintable(tuple_text(head + draw.randbytes(draw.randrange(1, 9)))).encode()


def test_line_breaks_stay() -> None:
    assert escape_unprintable("a\n\tb\x1b[31m") == "a\n\tb\\x1b[31m"

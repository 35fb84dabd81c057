"""Kernels stay inside their buffers for any log; each case once overran them, or gave a wrong value.

Making a plan refuses such input by name. The same cases with a forced plan show that kernels do not rely on that. Cases
that may crash a process run in another process, between guard pages.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import msgpack
import numpy as np
import pyarrow as pa
import pytest

import udfs.tuples.tuples
from schemas.errors import TupleError, UnsupportedError
from schemas.layout import TypeOptions, table_layout, union_fields
from schemas.space import Field, KeyPart, Space
from tests.fuzz.guard import guards
from udfs.keys.keys import canonical_keys, canonical_keys_with_plan, key_plan
from udfs.keys.sequence import sequence_bytes
from udfs.tuples.tuples import decode_tuples

LEAST_SCALE = bytes([0xC7, 11, 1, 0xD3]) + bytes([0x80]) + bytes(7) + bytes([0x12, 0x3C])
"""A decimal of three digits with the scale -2^63."""


def space_of_fields(*fields: tuple[str, str], parts: Sequence[KeyPart] = (KeyPart(0, "unsigned"),)) -> Space:
    own = tuple(Field(name, kind, True) for name, kind in fields)
    return Space(512, 1, "s", "memtx", own, tuple(parts))


def tuple_with(value: bytes, fields: int = 1) -> bytes:
    return bytes([0x90 + fields]) + value * fields


@cache
def run_cases() -> subprocess.CompletedProcess[str]:
    """Run the functions of `CASES` in one other process, which prints the name of each that has ended."""
    code = (
        "import faulthandler; faulthandler.enable(); from tests.udfs import test_kernel_bounds as t; t.main()"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def main() -> None:
    for case in CASES:
        case()
        print(case.__name__, flush=True)


def assert_ended(case: Callable[[], None]) -> None:
    done = run_cases()
    assert case.__name__ in done.stdout.split(), f"exit {done.returncode}: {done.stderr[-2000:]}"


# The least integer as the scale of a decimal.


@pytest.mark.parametrize("kind", ["decimal", "number", "any", "scalar"])
@pytest.mark.parametrize("scale", [18, "string"])
def test_a_decimal_with_the_least_scale_is_no_value(kind: str, scale: Any) -> None:
    layout = table_layout([space_of_fields(("v", kind))], options=TypeOptions(decimal_scale=scale))
    (row,) = decode_tuples(pa.array([tuple_with(LEAST_SCALE)]), layout).to_pylist()
    if kind in ("decimal", "number"):
        assert row["v"] is None
        assert row["_misfits"] == ["v"]
    else:  # a variant keeps what it cannot say as bytes
        assert LEAST_SCALE in row["v"]["value"]


def test_many_decimals_with_the_least_scale_write_no_text() -> None:
    assert_ended(many_least_scales)


def many_least_scales() -> None:
    layout = table_layout([space_of_fields(("v", "decimal"))], options=TypeOptions(decimal_scale="string"))
    with guards():
        found = decode_tuples(pa.array([tuple_with(LEAST_SCALE)] * 5000), layout)
    assert found.field("v").null_count == 5000


def test_a_decimal_with_the_least_scale_is_no_key_and_below_all_sequences() -> None:
    space = space_of_fields(("v", "decimal"), parts=[KeyPart(0, "decimal")])
    (found,) = canonical_keys(pa.array([tuple_with(LEAST_SCALE)]), [space]).to_pylist()
    assert found["key"] is None
    assert "not valid" in found["error"]
    least = sequence_bytes(pa.array([tuple_with(LEAST_SCALE)]), 0, [[0]])
    assert least.to_pylist() == [b"\x00"]


# Fields that appear twice.


def test_two_fields_of_one_name_are_refused() -> None:
    space = space_of_fields(("v", "uuid"), ("v", "uuid"))
    for refused in (lambda: union_fields([space]), lambda: table_layout([space])):
        with pytest.raises(UnsupportedError, match="two fields are called v") as caught:
            refused()
        assert caught.value.fields["space"] == "s"


@pytest.mark.parametrize(
    "parts",
    [
        [KeyPart(0, "string")] * 2,
        [KeyPart(0, "string", "a.b"), KeyPart(1, "string"), KeyPart(0, "string", '["a"]["b"]')],
    ],
)
def test_a_repeated_key_part_is_refused(parts: list[KeyPart]) -> None:
    with pytest.raises(UnsupportedError, match="appears twice") as caught:
        key_plan([space_of_fields(("v", "string"), parts=parts)])
    assert caught.value.fields["space"] == "s"


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([KeyPart(i, "string") for i in range(256)], "256 parts"),
        ([KeyPart(-1, "string")], "field 0"),
        ([KeyPart(2**31, "string")], "field 2147483649"),
        ([KeyPart(2**64, "string")], "field 18446744073709551617"),
    ],
)
def test_a_key_that_no_server_has_is_refused(parts: list[KeyPart], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        key_plan([space_of_fields(("v", "string"), parts=parts)])


def test_a_format_of_absurdly_many_fields_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="20000 fields"):
        union_fields([space_of_fields(*((f"f{i}", "any") for i in range(20_000)))])


# The same against plans that were made all the same.


def test_a_layout_with_a_format_that_was_not_checked_is_refused() -> None:
    layout = table_layout([space_of_fields(("v", "string"))])
    with pytest.raises(UnsupportedError, match="two fields are called v"):
        decode_tuples(pa.array([b"\x90"]), replace(layout, formats=(layout.formats[0] * 2,)))


def _crowded(kind: str, value: bytes) -> None:
    layout = table_layout([space_of_fields(("v", kind))], options=TypeOptions(decimal_scale="string"))
    crowded = replace(layout, formats=(layout.formats[0] * 15,))
    with (
        guards(),
        patch.object(udfs.tuples.tuples, "check_format"),
        pytest.raises(TupleError, match="more room"),
    ):
        decode_tuples(pa.array([tuple_with(value, 15)] * 1000), crowded)


def crowded_column_uuid() -> None:
    _crowded("uuid", bytes([0xD8, 2]) + bytes(16))


def crowded_column_decimal() -> None:
    _crowded("decimal", bytes([0xC7, 22, 1, 0xD2, 0xC0, 0, 0, 1]) + bytes([0x12] * 16) + bytes([0x3D]))


def crowded_column_interval() -> None:
    pairs = b"".join(bytes([unit]) + b"\xd3\x80" + bytes(7) for unit in range(8))
    _crowded("interval", bytes([0xC7, 1 + len(pairs), 6, 8]) + pairs)


@pytest.mark.parametrize("case", [crowded_column_uuid, crowded_column_decimal, crowded_column_interval])
def test_several_fields_in_one_column_do_not_overflow_it(case: Callable[[], None]) -> None:
    assert_ended(case)


def test_a_key_with_a_repeated_part_does_not_overflow() -> None:
    assert_ended(crowded_key)


def crowded_key() -> None:
    plan = key_plan([space_of_fields(("v", "string"), parts=[KeyPart(i, "string") for i in range(200)])])
    again = replace(plan, parts=plan.parts._replace(fields=np.zeros(200, np.int32)))
    with guards(), pytest.raises(TupleError, match="more bytes"):
        canonical_keys_with_plan(pa.array([msgpack.packb(["x" * 4000])] * 16), again)


CASES = (
    *(many_least_scales, crowded_column_uuid, crowded_column_decimal, crowded_column_interval, crowded_key),
)

"""The compiled shortcut for operations gives the tuples of `udfs.versions.key_state`, or leaves a key to it."""

from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.space import KeyPart
from tests.soaked import examples
from udfs.operations.kernels import quick_updates as kernels
from udfs.operations.kernels.quick_updates import MAX_FIELDS
from udfs.operations.msgpack_walk import split_tuple
from udfs.operations.operations import quick_update
from udfs.operations.quick_updates import compile_kernels, quick_updates
from udfs.operations.tuple_format import TupleFormat
from udfs.versions.key_state import TUPLE_LIMIT_BYTES, Fold, Version

NAMES = {b"id": 0, b"a": 1, b"b": 2, b"later": 3}
FORMATS = [
    TupleFormat(NAMES, primary_key=(KeyPart(0, "unsigned"),)),
    TupleFormat({b"a": 2}, primary_key=(KeyPart(1, "unsigned"), KeyPart(0, "string"))),
]

Row = tuple[bytes, int, int]
"""Operations, number of the first field, number of the format."""


def applied(keys: list[tuple[bytes | None, list[Row]]], limit: int = TUPLE_LIMIT_BYTES) -> list[bytes | None]:
    rows = [row for _, own in keys for row in own]
    found: list[bytes | None] = quick_updates(
        pa.array([before for before, _ in keys], pa.binary()),
        np.array([before is not None for before, _ in keys]),
        np.cumsum([len(own) for _, own in keys]),
        pa.array([operations for operations, _, _ in rows], pa.binary()),
        np.array([base for _, base, _ in rows], np.int64),
        np.array([fmt for _, _, fmt in rows], np.int64),
        FORMATS,
        limit,
    ).to_pylist()
    return found


def folded(before: bytes, rows: list[Row], limit: int = TUPLE_LIMIT_BYTES) -> bytes | None:
    """Return the tuple after UPDATEs, None if one of them cannot be applied."""
    fold = Fold(FORMATS, limit)
    fold.start(Version(before, 1, 1, None, None))
    for number, (operations, index_base, fmt) in enumerate(rows):
        fold.apply(("UPDATE", None, operations, index_base, 1, number, None, fmt))
    return None if fold.faults else fold.version.tuple


def are_all_quick(before: bytes, rows: list[Row]) -> bool:
    fields = split_tuple(before)
    for operations, index_base, fmt in rows:
        keys = frozenset(part.field for part in FORMATS[fmt].primary_key)
        changed = quick_update(fields, operations, index_base, FORMATS[fmt].number_by_name, keys)
        if changed is None or any(value[:1] == b"\xcf" and value[1] >= 0x80 for value in changed.values()):
            return False
        for number, value in changed.items():
            fields[number] = value
    return True


integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 300)
values = integers | st.text(max_size=40) | st.none() | st.floats() | st.lists(st.integers(0, 9), max_size=20)
places = st.integers(-4, 6) | st.sampled_from(["id", "a", "b", "later", "none", "a.b", "[2]"])
operations = st.tuples(st.sampled_from("=+-"), places, integers | values) | st.tuples(
    st.sampled_from("=+-!#&|^:"), places, values
)
rows = st.tuples(
    st.lists(operations, max_size=4).map(msgpack.packb) | st.binary(max_size=12),
    st.integers(0, 1),
    st.integers(0, len(FORMATS) - 1),
)
tuples = st.lists(integers | values, min_size=1, max_size=20).map(msgpack.packb)


@settings(max_examples=examples(4_000))
@given(
    st.lists(st.tuples(st.none() | tuples, st.lists(rows, min_size=1, max_size=3)), min_size=1, max_size=4)
)
def test_tuples_are_those_of_the_rules(keys: list[tuple[bytes | None, list[Row]]]) -> None:
    for (before, own), found in zip(keys, applied(keys), strict=True):
        if before is None:
            assert found is None
        elif found is not None:
            assert found == folded(before, own)
        else:
            assert not are_all_quick(before, own)


@pytest.mark.parametrize(
    "old", [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, -1, -32, -33, -128]
)
@pytest.mark.parametrize("argument", [0, 1, -1, 127, -129, 2**31, -(2**31) - 1, 2**62, -(2**63)])
@pytest.mark.parametrize("code", ["+", "-"])
def test_sums_have_their_shortest_encoding(old: int, argument: int, code: str) -> None:
    before, rows = msgpack.packb([1, old]), [(msgpack.packb([[code, 1, argument]]), 0, 0)]
    total = old + argument if code == "+" else old - argument
    fits = -(2**63) <= total < 2**63
    assert applied([(before, rows)]) == [msgpack.packb([1, total]) if fits else None]


def test_a_chain_of_rows_is_applied_in_order() -> None:
    rows = [
        (msgpack.packb(one), 1, 0) for one in ([["+", 2, 5]], [["=", 2, 7], ["=", 3, "x"]], [["-", "a", 9]])
    ]
    before: Any = msgpack.packb([1, 2, "a", None])
    assert applied([(before, rows)]) == [msgpack.packb([1, -2, "x", None])]


@pytest.mark.parametrize(
    ("before", "operations"),
    [
        (b"\xdc\x00\x02\x01\x02", [["=", 1, 1]]),
        (b"\x92\x01", [["=", 1, 1]]),
        (b"\x92\x01\x02\x03", [["=", 1, 1]]),
        (b"", [["=", 1, 1]]),
        (msgpack.packb([0] * (MAX_FIELDS + 1)), [["=", 1, 1]]),
        (msgpack.packb([1, 2]), [["=", 0, 5]]),
        (msgpack.packb([1, 2]), [["=", 2, 5]]),
        (msgpack.packb([1, 2]), [["=", 1, 5], ["+", 1, 5]]),
        (msgpack.packb([1, 2**64 - 1]), [["+", 1, 1]]),
        (msgpack.packb([1, 2]), []),
    ],
    ids=[
        *("a longer header", "a cut tuple", "bytes after a tuple", "no tuple", "too many fields", "the key"),
        *("a new field", "a field twice", "64 bits without a sign", "no operations"),
    ],
)
def test_anything_rare_is_left_out(before: bytes, operations: list[Any]) -> None:
    assert applied([(before, [(msgpack.packb(operations), 0, 0)])]) == [None]


def test_a_tuple_over_the_limit_is_left_out() -> None:
    before, rows = msgpack.packb([1, "x"]), [(msgpack.packb([["=", 1, "y" * 20]]), 0, 0)]
    assert applied([(before, rows)], 21) == [None]
    assert applied([(before, rows)], 22) == [folded(before, rows, 22)] == [msgpack.packb([1, "y" * 20])]


def test_set_up_compiles_the_kernel_that_batches_call() -> None:
    compile_kernels()
    assert applied([(b"\x92\x01\x02", [(b"\x91\x93\xa1=\x01\x05", 0, 0)])]) == [b"\x92\x01\x05"]
    one = np.ones(1, np.int64)
    bases = pa.array([0], pa.int64()).to_numpy()  # as batches have them: it may not be written to
    empty = pa.array([b"\x90"], pa.binary())
    quick_updates(empty, one == 1, one, empty, bases, one - 1, [TupleFormat()], 1)
    kernel: Any = kernels.apply_to_keys
    assert len(kernel.signatures) == 1

"""Sequences order rows like an index of a real Tarantool."""

import itertools

import msgpack
import pyarrow as pa
import pytest

from tests.live import Tarantool
from tests.udfs import sequence_values as values
from tests.udfs.sequence_values import LOWEST, Value, packed, tuples_of
from udfs.keys.sequence import ranks_of, sequence_bytes

DECIMALS = [values.decimal(*one) for one in ((25, -1), (200, -2), (1, 30), (3, 0, True), (123456789, -20))]
DECIMALS += [values.decimal(2**53 + 1, 0)]
INFINITIES = [
    values.double(float("inf")),
    values.double(float("-inf")),
    values.double(1e300),
    values.double(-1e300),
]
OTHERS = [
    *(values.integer(value) for value in (0, 2, -3, 2**53 + 1, 2**63, 2**64 - 1, -(2**63))),
    values.integer(2, 8),
    *(values.double(value) for value in (2.0, -0.0, 2.5, 2.0**64)),
    values.single(2.5),
    *(
        make(raw)
        for make in (values.text, values.binary)
        for raw in (b"", b"\x00", b"\x00\x01", b"a", b"\xff")
    ),
    values.boolean(False),
    values.boolean(True),
    (b"\xc0", LOWEST),
]
UUIDS = [
    values.uuid(bytes.fromhex(one))
    for one in ("00" * 16, "01" + "00" * 15, "00" * 15 + "ff", "80" + "00" * 15)
]


@pytest.mark.live
@pytest.mark.parametrize(
    ("kind", "sample"),
    [("scalar", OTHERS + DECIMALS), ("scalar", OTHERS + INFINITIES), ("uuid", UUIDS)],
    ids=["with decimals", "with infinities", "uuid"],
)
def test_an_index_of_tarantool_has_the_same_order(
    tarantool_oracle: Tarantool, kind: str, sample: list[Value]
) -> None:
    """The primary key orders equal keys, in the index as here, so the order also shows which keys are equal.

    Decimals and doubles beyond their range are never compared: Tarantool 2.6 crashes there.
    """
    rows = list(itertools.product(sample, sample))
    found = index_order(tarantool_oracle, kind, rows)
    keys = sequence_bytes(tuples_of(*map(list, rows)), 0, [[0, 1]]).to_pylist()
    assert found == sorted(range(len(rows)), key=lambda number: (keys[number], number))


CREATE = """
local kind = ...
local space = box.schema.space.create('sequence')
space:create_index('pk')
space:create_index('order', {unique = false, parts = {
    {2, kind, is_nullable = true}, {3, kind, is_nullable = true}}})
return space.id
"""
ORDER = """
local numbers = {}
for _, tuple in box.space.sequence.index.order:pairs() do table.insert(numbers, tuple[1]) end
box.space.sequence:drop()
return numbers
"""
REPLACE = 0x03


def index_order(server: Tarantool, kind: str, rows: list[tuple[Value, Value]]) -> list[int]:
    """Return the numbers of rows as a tree index over two parts orders them."""
    space = server.eval(CREATE, kind)
    for number, row in enumerate(rows):
        fields = packed([msgpack.packb(number), *(raw for raw, _ in row)])
        server.connection.request(REPLACE, b"\x82\x10" + msgpack.packb(space) + b"\x21" + fields)
    numbers: list[int] = server.eval(ORDER)
    return numbers


def test_ranks_order_rows_as_their_sequences_do() -> None:
    chosen = [
        values.text(b"b"),
        values.integer(300),
        values.double(-1.5),
        values.text(b"a\xff"),
        values.decimal(3, 2),
    ]
    rows: list[tuple[int, bytes | None]] = [(0, packed([raw])) for raw, _ in chosen]
    rows += [(1, packed([b"\xc0", b"\x07"])), (0, None), (1, b"\xc1")]
    tuples, which = pa.array([data for _, data in rows], pa.binary()), pa.array([one for one, _ in rows])
    sequences = sequence_bytes(tuples, which.cast(pa.int32()), [[0], [1]])
    ranks = ranks_of(sequences).tolist()
    assert sorted(range(len(rows)), key=lambda i: (ranks[i], i)) == [6, 7, 2, 5, 1, 4, 3, 0]
    assert ranks[6] == 0
    assert sequences[7].as_py() == b"\x00"

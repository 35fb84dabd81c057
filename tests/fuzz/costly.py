"""Inputs made to cost more than their bytes: each takes time by its length, and no more.

Each function makes an input of about so many bytes and reads it as the product does; it returns how many bytes there
were. `tests.fuzz.test_time` compares the processor time with a bound for each byte.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import msgpack
import numpy as np
import pyarrow as pa

from observe.log_rows.row_format import tuple_text
from pipeline.changelog.keyed_rows import KEYED
from pipeline.lookup.ranges import ranges_in
from pipeline.lookup.reduce_plan import ReducePlan
from schemas.errors import AggregatorError
from schemas.layout import table_layout
from schemas.row_types import CHANGE_TYPES
from schemas.space import Field, KeyPart, Space
from schemas.system_tuples import unpacked
from sources.iproto.packet import decode_packet
from tests.fuzz.draw import Draw
from tests.pipeline.lookup.test_ranges import PlanOfThree
from tests.pipeline.lookup.test_ranges import row as deleted_range
from udfs.keys.grouping import group
from udfs.keys.key_order import directions_of, key_order, ordered_keys
from udfs.keys.keys import canonical_keys
from udfs.operations.tuple_format import format_of
from udfs.tuples.tuples import decode_tuples
from udfs.versions.key_state import Fold, Version

FIELDS = (Field("id", "string"), Field("value", "any"), Field("list", "array"), Field("map", "map"))
SPACE = Space(512, 1, "s", "memtx", FIELDS, (KeyPart(0, "string"),))
FORMAT = format_of(SPACE)


def _decoded(rows: list[bytes]) -> int:
    decode_tuples(pa.array(rows, pa.binary()), table_layout([SPACE])).validate(full=True)
    return sum(map(len, rows))


def _keyed(rows: list[bytes]) -> int:
    keys = canonical_keys(pa.array(rows, pa.binary()), [SPACE], 0, True).field("key")
    which = np.zeros(len(rows), np.int32)
    group(which, keys)
    ordered_keys(keys, key_order([directions_of(SPACE)]), which)
    return sum(map(len, rows))


def _chain(first: list[Any], operations: Callable[[int], list[Any]], size: int, kind: str = "UPDATE") -> int:
    """Apply rows with operations to one key until they have so many bytes; a row counts 30 bytes besides."""
    data, made, lsn = msgpack.packb(first), 0, 1
    fold = Fold([FORMAT], 1 << 20)
    fold.start(Version(data, 1, lsn, None, None))
    while made < size:
        lsn += 1
        row = msgpack.packb(operations(lsn))
        given = (row, None) if kind == "UPDATE" else (data, row)
        fold.apply((kind, *given, 0, 1, lsn, None, 0))
        made += len(row) + 30
    assert fold.version.tuple
    return made + len(data)


def equal_keys(_: Draw, size: int) -> int:
    return _keyed([msgpack.packb(["k" * 50, 1])] * (size // 54))


def long_common_prefixes(draw: Draw, size: int) -> int:
    """Keys that differ in their last bytes alone."""
    return _keyed([msgpack.packb(["k" * 200 + str(draw.randrange(size))]) for _ in range(size // 210)])


def ordered_and_reversed_keys(_: Draw, size: int) -> int:
    """Keys in an order and against it, in turn."""
    count = size // 12
    numbers = [n if n % 2 else count - n for n in range(count)]
    return _keyed([msgpack.packb([f"{n:010}"]) for n in numbers])


def nested_and_repeated_ranges(_: Draw, size: int) -> int:
    """DELETE_RANGEs in one another and of everything, between rows of keys that all of them hold."""
    count = size // 40
    whole = [deleted_range(0, None, None)] * count
    nested = [deleted_range(0, n, 2 * count - n) for n in range(count)]
    replaced = [{"meaning": 0, "type": CHANGE_TYPES.index("REPLACE")}] * count
    rows = [row for rows in zip(whole, replaced, nested, strict=True) for row in rows]
    groups = np.full(len(rows), -1, np.int32)
    groups[1::3] = np.arange(count)
    slots = np.zeros(len(rows), np.int32)
    ranges = ranges_in(pa.Table.from_pylist(rows, schema=KEYED), slots, cast(ReducePlan, PlanOfThree()))
    assert ranges is not None
    keys = pa.array([msgpack.packb([n]) for n in range(count)], pa.binary())
    hits = ranges.hit_pairs(np.zeros(count, np.int32), keys, groups, np.ones(count, np.bool_))
    assert len(hits[0]) >= count
    return 40 * count


def many_map_keys(_: Draw, size: int) -> int:
    whole = {f"{n:08}": n for n in range(size // 26)}
    few = dict(list(whole.items())[:10])
    rows = [msgpack.packb(["a", whole, [], whole]), *[msgpack.packb(["b", few])] * (size // 500)]
    return _decoded(rows)


def many_fields(_: Draw, size: int) -> int:
    """More fields than any format has."""
    return _decoded([msgpack.packb(["a", *[1] * (size // 2)]), msgpack.packb(["b", *[[]] * (size // 2)])])


def many_shapes(_: Draw, size: int) -> int:
    """Maps none of which has the keys of another."""
    return _decoded([msgpack.packb(["a", {f"{n:08}": 1}, [], {f"{n:07}": [n]}]) for n in range(size // 35)])


def deep_arrays(_: Draw, size: int) -> int:
    """Arrays in arrays: as a field, as a key, as a tuple, as a packet."""
    deep = b"\x91" * (size // 6) + b"\xc0"
    rows = [b"\x92\xa1a" + deep, b"\x94\xa1a\xc0" + deep + b"\x80", deep]
    made = _decoded(rows) + _keyed([deep])
    for read in (unpacked, tuple_text, decode_packet):
        with suppress(AggregatorError):
            read(deep)
    return made + 3 * len(deep)


def deep_maps(_: Draw, size: int) -> int:
    """Maps in maps, by equal keys."""
    deep = b"\x81\xa1k" * (size // 6) + b"\xc0"
    return _decoded([b"\x92\xa1a" + deep, b"\x94\xa1a\xc0\x90" + deep])


def chain_of_sums(_: Draw, size: int) -> int:
    """Additions to one key."""
    return _chain(["a", 1, [], {}], lambda _: [["+", 1, 1]], size)


def chain_that_grows(_: Draw, size: int) -> int:
    """Fields and texts that are added to one key."""
    half = _chain(["a", "", [], {}], lambda _: [["!", -1, "y" * 40]], size // 2)
    return half + _chain(["a", "", [], {}], lambda _: [[":", 1, 1 << 30, 0, "y" * 400]], size // 2)


def chain_of_one_wide_tuple(_: Draw, size: int) -> int:
    """Small changes of a tuple of many fields."""
    wide = ["a", "x", [], {}] + [1] * 10_000
    half = _chain(wide, lambda n: [["+", 9 + n % 99, 1]] if n % 2 else [[":", 1, 0, 1, "y"]], size // 2)
    return half + _chain(wide, lambda _: [["!", 4, 7], ["#", -1, 1]], size // 2)


def chain_inside_large_containers(_: Draw, size: int) -> int:
    """Operations inside of one large map and one large array, at their ends, and of a key that is not there."""
    large = ["a", "x", [1] * 2000, {f"k{n:04}": n for n in range(1000)}]
    made = 0
    for operations in ([["+", "[4].k0999", 1]], [["+", "[3][2000]", 1]], [["+", "[4].none", 1]] * 10):
        made += _chain(large, lambda _, own=operations: own, size // 3, "UPSERT")  # type: ignore[misc]
    return made


def many_operations_in_a_row(_: Draw, size: int) -> int:
    """As many operations in a row as a server takes, on the fields of one tuple and inside of one field."""
    wide = ["a", "x", [0] * 4000, {str(n): n for n in range(300)}, *[1] * 4000]
    made = 0
    for operations in (
        [["!", -1, 1]] * 4000,
        [["+", 4 + n, 1] for n in range(4000)],
        [["=", f"[3][{n + 1}]", n] for n in range(4000)],
        [["=", f"[4].new{n}", n] for n in range(300)],
    ):
        made += _chain(wide, lambda _, own=operations: own, size // 4)  # type: ignore[misc]
    return made


def chain_of_refused_operations(_: Draw, size: int) -> int:
    """UPSERTs whose operations are skipped, and UPDATEs that fail."""
    half = _chain(["a", "x", [], {}], lambda _: [["+", 1, 1]] * 40, size // 2, "UPSERT")
    return half + _chain(["a", "x", [], {}], lambda _: [["+", 1, 1]], size // 2)


COSTLY: dict[str, Callable[[Draw, int], int]] = {
    one.__name__: one
    for one in (
        *(
            equal_keys,
            long_common_prefixes,
            ordered_and_reversed_keys,
            nested_and_repeated_ranges,
            many_map_keys,
            many_fields,
            many_shapes,
        ),
        *(deep_arrays, deep_maps, chain_of_sums, chain_that_grows, chain_of_one_wide_tuple),
        chain_inside_large_containers,
        *(many_operations_in_a_row, chain_of_refused_operations),
    )
}
"""By name."""


def costly(draw: Draw) -> None:
    """Inputs made to be slow."""
    draw.made += COSTLY[draw.choice(list(COSTLY))](draw, draw.choice((3_000, 30_000)))

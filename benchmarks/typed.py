"""Rate of decoding tuples into typed Arrow columns, against the `msgpack` C extension decoding them to Python objects.

    python -m benchmarks.typed [--rows N] [--repeat N]

Both sides run alternately on one core in one process, on the same bytes; the fastest of the repeats is printed. Ours
(`udfs.tuples`) results in an Arrow struct of the table's columns, whose values are checked against the format. Theirs
is measured in three ways: to Python objects with extensions left as `ExtType`, undecoded bytes; with an `ext_hook` that
decodes decimals, uuids and datetimes, as our columns have them; and further to Arrow columns of the table's types, by
`pyarrow.array` from each column's values. PyArrow cannot make variants, so a nested value becomes JSON text there
(`json.dumps`). Tuples that do not fit the format are marked by ours, and raise an exception in theirs. The rate of
canonical keys is measured too.
"""

import argparse
import datetime
import decimal
import json
import os
import platform
import random
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numba
import pyarrow as pa

from schemas.layout import table_layout
from schemas.space import Field, KeyPart, Space
from udfs.keys.keys import canonical_keys_with_plan, key_plan
from udfs.tuples.tuples import decode, decoding_plan

Shape = tuple[tuple[str, ...], Callable[[random.Random, int], list[Any]]]
"""The fields' types, and a function that makes tuple number N of them."""

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def decimal_ext(cents: int) -> msgpack.ExtType:
    """Return a number of cents as an MP_DECIMAL with two digits after the point."""
    digits = f"{cents}c"
    return msgpack.ExtType(1, b"\x02" + bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)))


def datetime_ext(draw: random.Random) -> msgpack.ExtType:
    """Return a random MP_DATETIME with microseconds and a time zone offset of 180 minutes."""
    return msgpack.ExtType(
        4, struct.pack("<qihh", draw.randrange(2**31), draw.randrange(10**6) * 1000, 180, 0)
    )


def mixed(draw: random.Random, number: int) -> list[Any]:
    """Return a tuple of eight fields of eight types."""
    return [
        draw.randrange(2**40),
        f"customer {number:08d}",
        decimal_ext(draw.randrange(10**7)),
        datetime_ext(draw),
        msgpack.ExtType(2, draw.randbytes(16)),
        draw.random() * 1000,
        number % 2 == 0,
        {"city": "Amsterdam", "n": number % 100},
    ]


def plain(draw: random.Random, number: int) -> list[Any]:
    """Return a tuple of eight fields of MessagePack's own scalar types."""
    note = None if number % 3 == 0 else f"user{number % 9973}@example.org"
    head = [draw.randrange(2**40), f"customer {number:08d}", -draw.randrange(10**6), draw.random() * 1000]
    return [*head, number % 2 == 0, "state of the order: paid, shipped", number, note]


def nested(draw: random.Random, number: int) -> list[Any]:
    """Return a tuple of eight fields, three of which become variants."""
    payload = {"items": [{"sku": "A-17", "qty": number % 7, "price": 12.5}], "gift": None}
    tags = ["new", "paid"]
    head = [draw.randrange(2**40), f"customer {number:08d}", draw.random(), number % 2 == 0]
    return [*head, payload, tags, {"city": "Berlin", "n": number % 100}, "note"]


SHAPES: dict[str, Shape] = {
    "8 mixed fields": (
        ("unsigned", "string", "decimal", "datetime", "uuid", "double", "boolean", "map"),
        mixed,
    ),
    "8 plain fields": (
        ("unsigned", "string", "integer", "double", "boolean", "string", "unsigned", "string"),
        plain,
    ),
    "5 plain, 3 nested": (
        ("unsigned", "string", "double", "boolean", "any", "array", "map", "string"),
        nested,
    ),
}


def decimal_of(data: bytes) -> decimal.Decimal:
    """Return the value of an MP_DECIMAL whose first byte is the scale, followed by packed digits and the sign."""
    digits = data[1:].hex()
    return decimal.Decimal(int(digits[:-1]) * (-1 if digits[-1] in "bd" else 1)).scaleb(-data[0])


def ext_hook(code: int, data: bytes) -> Any:
    """Return the Python object of an extension."""
    if code == 1:
        return decimal_of(data)
    if code == 2:
        return uuid.UUID(bytes=data)
    seconds, nanoseconds = struct.unpack_from("<qi", data)
    return EPOCH + datetime.timedelta(seconds=seconds, microseconds=nanoseconds // 1000)


def best_seconds(repeat: int, *works: Callable[[], Any]) -> list[float]:
    """Call the functions in turn, some times, and return the least processor seconds of each."""
    times = [[] for _ in works]  # type: list[list[float]]
    for _ in range(repeat):
        for work, taken in zip(works, times, strict=True):
            start = time.process_time()
            work()
            taken.append(time.process_time() - start)
    return [min(taken) for taken in times]


def unpack_all(rows: list[bytes], **options: Any) -> None:
    """Decode every tuple to Python objects."""
    unpack = msgpack.unpackb
    for row in rows:
        unpack(row, strict_map_key=False, **options)


def arrow_columns(rows: list[bytes], fields: list[pa.Field]) -> list[pa.Array]:
    """Decode every tuple to Python objects, and convert those to Arrow columns; variants become JSON text."""
    unpack = msgpack.unpackb
    objects = [unpack(row, strict_map_key=False, ext_hook=ext_hook) for row in rows]
    columns = []
    for values, field in zip(zip(*objects, strict=True), fields, strict=True):
        if pa.types.is_struct(field.type):
            texts = [None if value is None else json.dumps(value) for value in values]
            columns.append(pa.array(texts, pa.string()))
        elif pa.types.is_string(field.type) and isinstance(values[0], uuid.UUID):
            columns.append(pa.array([str(value) for value in values], pa.string()))
        else:
            columns.append(pa.array(values, field.type))
    return columns


def have_equal_values(decoded: pa.StructArray, columns: list[pa.Array]) -> bool:
    """Return whether the columns of both sides are equal; variants are not compared, since theirs are text."""
    return all(
        pa.types.is_struct(field.type) or decoded.field(index).equals(column)
        for index, (field, column) in enumerate(zip(decoded.type, columns, strict=False))
    )


def measure(name: str, rows: int, repeat: int) -> Iterator[str]:
    """Measure both sides on tuples of one shape, and yield the lines of the result."""
    types, make = SHAPES[name]
    draw = random.Random(0)
    raw = [msgpack.packb(make(draw, number)) for number in range(rows)]
    fields = tuple(Field(f"f{index}", kind, is_nullable=True) for index, kind in enumerate(types))
    space = Space(512, 1, "bench", "memtx", fields, (KeyPart(0, "unsigned"),))
    plan, keys, tuples = decoding_plan(table_layout([space])), key_plan([space]), pa.array(raw, pa.binary())
    decoded = decode(tuples, plan)
    decoded.validate(full=True)
    if decoded.field("_error").null_count != rows:
        raise SystemExit(f"{name}: {decoded.field('_error').drop_null()[0]}")
    columns = list(plan.arrow_fields[: len(types)])
    if not have_equal_values(decoded, arrow_columns(raw, columns)):
        raise SystemExit(f"{name}: the two sides differ")
    ours, theirs, hooked, arrow, keyed = best_seconds(
        repeat,
        lambda: decode(tuples, plan),
        lambda: unpack_all(raw),
        lambda: unpack_all(raw, ext_hook=ext_hook),
        lambda: arrow_columns(raw, columns),
        lambda: canonical_keys_with_plan(tuples, keys),
    )
    size = sum(map(len, raw)) / rows
    yield f"{name} ({size:.0f} bytes a tuple)"
    yield f"  typed columns          {rows / ours / 1e6:7.2f} M tuples/s   {size * rows / ours / 1e6:6.0f} MB/s"
    for label, taken in (
        ("msgpack", theirs),
        ("msgpack with ext_hook", hooked),
        ("... to Arrow columns", arrow),
    ):
        yield f"  {label:<22} {rows / taken / 1e6:7.2f} M tuples/s   {taken / ours:6.1f} times"
    yield f"  canonical keys         {rows / keyed / 1e6:7.2f} M keys/s"


def main() -> None:
    """Measure all shapes, and print rates and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000, help="tuples a batch (Spark's own default)")
    parser.add_argument("--repeat", type=int, default=30)
    arguments = parser.parse_args()
    versions = (
        f"msgpack {'.'.join(map(str, msgpack.version))}, pyarrow {pa.__version__}, numba {numba.__version__}"
    )
    print(f"{platform.machine()}, {os.cpu_count()} cores, python {platform.python_version()}, {versions}")
    for name in SHAPES:
        for line in measure(name, arguments.rows, arguments.repeat):
            print(line)


if __name__ == "__main__":
    main()

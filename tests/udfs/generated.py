"""Generated tuples and operations: valid ones, wrong ones, and all encodings that a client may send.

Values are MessagePack from the start, so that numbers, strings and headers appear in longer forms than the
shortest. Keys and paths come from few names, so that operations meet.
"""

import struct
from dataclasses import dataclass
from decimal import Decimal

import msgpack
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.soaked import examples
from udfs.operations import decimals

steady = settings(
    max_examples=examples(80),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
"""The same examples in every run, however busy the machine is."""

KEYS = ("a", "b", "ab", "x y", "ключ")
EDGES = (
    0,
    1,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**32 - 1,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
FLOATS = (
    0.0,
    -0.0,
    1.5,
    0.1,
    1e300,
    1e-300,
    1e15,
    16777217.0,
    3.4028234663852886e38,
    float("inf"),
    float("nan"),
)


@dataclass(frozen=True)
class Generated:
    """A tuple's fields after its key, operations on it, and their index base."""

    fields: bytes
    count: int
    operations: bytes
    index_base: int


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def _string(text: bytes, form: int) -> bytes:
    if len(text) < 32 and form == 0:
        return bytes((0xA0 | len(text),)) + text
    if len(text) < 256 and form < 2:
        return bytes((0xD9, len(text))) + text
    return struct.pack(">BH", 0xDA, len(text)) + text


def _array(items: list[bytes], is_long: bool) -> bytes:
    head = struct.pack(">BH", 0xDC, len(items)) if is_long or len(items) > 15 else bytes((0x90 | len(items),))
    return head + b"".join(items)


def _map(pairs: list[tuple[bytes, bytes]], is_long: bool) -> bytes:
    head = struct.pack(">BH", 0xDE, len(pairs)) if is_long or len(pairs) > 15 else bytes((0x80 | len(pairs),))
    return head + b"".join(key + value for key, value in pairs)


def _decimal(sign: int, digits: list[int], scale: int) -> bytes:
    return decimals.encode(Decimal((sign, tuple(digits), -min(scale, 38))))


_long_integers = st.sampled_from(
    [
        *(b"\xcc\x05", b"\xcd\0\x05", b"\xce\0\0\0\x07", b"\xcf" + b"\0" * 7 + b"\x09"),
        *(b"\xd0\x05", b"\xd1\xff\xff", b"\xd2\0\0\0\x10", b"\xd3" + b"\xff" * 8),
    ]
)
_shortest = st.one_of(
    st.sampled_from([*EDGES, *(-edge for edge in EDGES if 0 < edge <= 2**63)]),
    st.integers(-(2**63), 2**64 - 1),
).map(_pack)
_floats = st.one_of(st.sampled_from(FLOATS), st.floats())
_decimals = st.builds(
    _decimal, st.integers(0, 1), st.lists(st.integers(0, 9), min_size=1, max_size=38), st.integers(-5, 38)
)
numbers = st.one_of(
    st.integers(-100, 100).map(_pack),
    _shortest,
    _long_integers,
    _floats.map(lambda value: struct.pack(">Bd", 0xCB, value)),
    st.floats(width=32).map(lambda value: struct.pack(">Bf", 0xCA, value)),
    _decimals,
)
strings = st.builds(
    _string,
    st.one_of(
        st.binary(max_size=4), st.sampled_from([b"abc", b"x" * 31, b"y" * 32, b"z" * 255, b"\xff\xfe"])
    ),
    st.sampled_from([0, 0, 0, 1, 2]),
)
others = st.sampled_from([b"\xc0", b"\xc2", b"\xc3", b"\xc4\x02ab", b"\xd8\x02" + b"u" * 16])
_keys = st.one_of(
    st.sampled_from(KEYS).map(_pack), st.sampled_from([b"\x01", b"\x02", b"\xc3", b"\xd9\x01a"])
)


def _nest(inside: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    sometimes = st.sampled_from([False, False, False, True])
    pairs = st.lists(st.tuples(_keys, inside), max_size=4, unique_by=lambda pair: pair[0])
    return st.one_of(
        st.builds(_map, pairs, sometimes), st.builds(_array, st.lists(inside, max_size=4), sometimes)
    )


values = st.recursive(st.one_of(numbers, strings, others), _nest, max_leaves=12)

_steps = st.sampled_from(
    [
        ".a",
        ".a",
        ".b",
        ".ab",
        "[1]",
        "[1]",
        "[2]",
        "[3]",
        '["a"]',
        "['x y']",
        ".ключ",
        ".z",
        "[0]",
        "[*]",
        ".",
        "[a]",
    ]
)
_heads = st.sampled_from(["[2]", "[2]", "[2]", "[3]", "m", "m", "l", "n", "[9]", "nobody", "[*]", "a.b"])
paths = st.builds(lambda head, rest: head + "".join(rest), _heads, st.lists(_steps, max_size=3))
_fields = st.one_of(
    paths.map(_pack),
    st.integers(-6, 9).map(_pack),
    st.sampled_from(
        [b"\xcf" + b"\0" * 7 + b"\x02", b"\xd0\x02", b"\xce\x7f\xff\xff\xff", b"\xc0", b"\xa2\xff\xfe"]
    ),
)
_small = st.integers(-7, 7).map(_pack)


def _operation(code: str, field: bytes, arguments: tuple[bytes, ...]) -> bytes:
    return _array([_pack(code), field, *arguments], is_long=False)


operations = st.one_of(
    st.builds(_operation, st.sampled_from("=!"), _fields, st.tuples(values)),
    st.builds(_operation, st.sampled_from("+-"), _fields, st.tuples(numbers)),
    st.builds(_operation, st.sampled_from("&|^"), _fields, st.tuples(st.integers(0, 2**64 - 1).map(_pack))),
    st.builds(_operation, st.just("#"), _fields, st.tuples(st.sampled_from([1, 1, 1, 2, 100]).map(_pack))),
    st.builds(_operation, st.just(":"), _fields, st.tuples(_small, _small, strings)),
    st.builds(_operation, st.sampled_from("=!#+-&|^:?"), _fields, st.tuples(values)),
)


@st.composite
def requests(draw: st.DrawFn, least: int = 0, most: int = 4) -> Generated:
    fields = draw(st.lists(values, max_size=6))
    made = draw(st.lists(operations, min_size=least, max_size=most))
    return Generated(
        b"".join(fields), len(fields), _array(made, is_long=False), draw(st.sampled_from([1, 1, 1, 0]))
    )


_plain = st.one_of(st.integers(-100, 100), st.integers(-(2**63), 2**64 - 1), st.sampled_from(EDGES)).map(
    _pack
)
_simple = st.builds(
    lambda code, field, value: _operation(code, field, (value,)),
    st.sampled_from("=+-"),
    st.one_of(
        st.integers(2, 4).map(_pack), st.integers(-4, 8).map(_pack), st.sampled_from(["n", "s"]).map(_pack)
    ),
    st.one_of(_plain, _plain, numbers, values),
)


@st.composite
def simple_requests(draw: st.DrawFn) -> Generated:
    """Draw a tuple with mostly integer fields, and assignments and sums by number or name."""
    fields = draw(st.lists(st.one_of(_plain, _plain, values), min_size=2, max_size=6))
    made = draw(st.lists(_simple, min_size=1, max_size=3))
    return Generated(
        b"".join(fields), len(fields), _array(made, is_long=False), draw(st.sampled_from([1, 1, 0]))
    )


_wide = st.one_of(st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, -(2**63)]), st.integers(-100, 100)).map(_pack)
_paths = st.sampled_from([2, 2, 2, "[3].a"]).map(_pack)
_sum = st.one_of(
    st.builds(_operation, st.sampled_from("+-"), _paths, st.tuples(_wide)),
    st.builds(_operation, st.sampled_from("+-"), _paths, st.tuples(_wide)),
    st.builds(_operation, st.sampled_from("+-"), _paths, st.tuples(numbers)),
    st.builds(_operation, st.sampled_from("&|^"), _paths, st.tuples(st.integers(0, 2**64 - 1).map(_pack))),
)


@st.composite
def sums(draw: st.DrawFn) -> Generated:
    """Draw a tuple with a number and a map of numbers, and several operations on each, of which many overflow."""
    numbers_ = [(_pack("a"), draw(_wide)), (_pack("b"), draw(_wide))]
    fields = draw(_wide) + _map(numbers_, is_long=False)
    made = draw(st.lists(_sum, min_size=2, max_size=6))
    return Generated(fields, 2, _array(made, is_long=False), 1)

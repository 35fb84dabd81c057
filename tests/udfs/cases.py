"""Hand-written operations and Tarantool 2.6.0's results: the edge cases by name.

Each case is true of a real server too: `test_operations_live` asks one. A result is the new tuple, or the
code of the server's error.
"""

import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgpack

from udfs.operations import decimals

ILLEGAL_PARAMS, SPLICE, ARG_TYPE, UNKNOWN_OP, UPDATE_FIELD, NO_FIELD, NO_NAME = 1, 25, 26, 28, 29, 37, 201
INT_OVERFLOW, DECIMAL_OVERFLOW, PRIMARY_KEY = 95, 160, 94

FIELDS = ("id", "n", "s", "ключ", "a.b", "d", "m", "l")
"""Names of the fields of the space in which the cases run; `d` is a double."""


class Raw(bytes):
    """MessagePack that `pack` does not change."""


def pack(value: Any) -> bytes:
    """Return MessagePack of lists, maps, numbers and strings; `Raw` is copied."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, list):
        return _head(0x90, 0xDC, len(value)) + b"".join(map(pack, value))
    if isinstance(value, dict):
        pairs = b"".join(pack(key) + pack(item) for key, item in value.items())
        return _head(0x80, 0xDE, len(value)) + pairs
    packed: bytes = msgpack.packb(value)
    return packed


def _head(short: int, long: int, count: int) -> bytes:
    return bytes((short | count,)) if count < 16 else struct.pack(">BH", long, count)


def decimal(text: str) -> Raw:
    return Raw(decimals.encode(Decimal(text)))


def single(value: float) -> Raw:
    return Raw(struct.pack(">Bf", 0xCA, value))


def double(value: float) -> Raw:
    return Raw(struct.pack(">Bd", 0xCB, value))


@dataclass(frozen=True)
class Case:
    """An UPDATE: the fields after the key, the operations, and the fields after it or the error's code."""

    name: str
    old: list[Any]
    operations: list[Any]
    result: list[Any] | int
    index_base: int = 1


LONG = Raw(bytes.fromhex("cf0000000000000005"))
"""5, not in its shortest form."""

MAP = {"a": 1, "b": {"c": [1, 2, 3]}}

NUMBERS = (
    Case("beyond the 53 bits of a double", [2**53 + 1], [["+", 2, 1]], [2**53 + 2]),
    Case("up to the greatest unsigned", [2**64 - 2], [["+", 2, 1]], [2**64 - 1]),
    Case("above the greatest unsigned", [2**64 - 1], [["+", 2, 1]], INT_OVERFLOW),
    Case("down to the least integer", [-(2**63) + 1], [["-", 2, 1]], [-(2**63)]),
    Case("below the least integer", [-(2**63)], [["-", 2, 1]], INT_OVERFLOW),
    Case("minus a greater unsigned", [5], [["-", 2, 2**63]], [5 - 2**63]),
    Case("minus the greatest unsigned", [0], [["-", 2, 2**64 - 1]], INT_OVERFLOW),
    Case("a negative argument is added", [5], [["+", 2, -7]], [-2]),
    Case("a result in its shortest form", [LONG], [["+", 2, 0]], [5]),
    Case("an integer that nothing touches keeps its bytes", [LONG, "x"], [["=", 3, "y"]], [LONG, "y"]),
    Case("double and integer: a float where exact", [1.5], [["+", 2, 1]], [single(2.5)]),
    Case("double and integer: a double where not", [0.1], [["+", 2, 1]], [double(1.1)]),
    Case("float and float beyond FLT_MAX", [single(3e38)], [["+", 2, single(3e38)]],
    [double(6.0000000109955115e+38)]), Case("float and an integer that a float cannot hold", [single(1)],
    [["+", 2, 2**24]], [double(2.0**24 + 1)]), Case("infinity is a double", [double(float("inf"))], [["+", 2,
    1]], [double(float("inf"))]), Case("double and greatest unsigned", [0.5], [["-", 2, 2**64 - 1]],
    [single(-(2.0**64))]), Case("a double field stays a double", [0, "", 0, 0, 1.5], [["+", 6, 1]], [0, "", 0,
    0, 2.5]), Case("a double field, by name", [0, "", 0, 0, 1.5], [["-", "d", 0.5]], [0, "", 0, 0,
    double(1)]), Case("decimal and integer", [decimal("1.50")], [["+", 2, 1]], [decimal("2.50")]),
    Case("decimal and double: 15 digits of it", [decimal("1")], [["+", 2, 0.1]], [decimal("1.1")]),
    Case("integer and decimal", [3], [["-", 2, decimal("0.001")]], [decimal("2.999")]),
    Case("decimal and infinity", [decimal("1")], [["+", 2, double(float("inf"))]], ARG_TYPE),
    Case("decimal overflow", [decimal("9" * 38)], [["+", 2, decimal("1")]], DECIMAL_OVERFLOW),
    Case("decimal rounds half up to 38 digits", [decimal("1" * 38)], [["+", 2, decimal("0.5")]],
         [decimal("1" * 37 + "2")]),
    Case("decimal zero keeps its scale", [decimal("1.10")], [["-", 2, decimal("1.10")]], [decimal("0.00")]),
    Case("a string is no number", ["5"], [["+", 2, 1]], ARG_TYPE),
    Case("nor is an argument", [5], [["+", 2, "1"]], ARG_TYPE),
    Case("nor null", [None], [["-", 2, 1]], ARG_TYPE),
    Case("bits", [0b1100], [["&", 2, 0b0101]], [0b0100]),
    Case("bits or", [0b1100], [["|", 2, 2**63]], [2**63 + 0b1100]),
    Case("bits xor", [2**64 - 1], [["^", 2, 2**64 - 1]], [0]),
    Case("bits of a negative", [-1], [["|", 2, 1]], ARG_TYPE),
    Case("bits of a positive in signed form", [Raw(b"\xd0\x05")], [["|", 2, 2]], ARG_TYPE),
    Case("bits by a negative", [1], [["&", 2, -1]], ARG_TYPE),
    Case("bits of a double", [1.0], [["|", 2, 1]], ARG_TYPE),
)  # fmt: skip

STRINGS = (
    Case("splice in the middle", [0, "abcdef"], [[":", 3, 2, 3, "XY"]], [0, "aXYef"]),
    Case("splice with base 0", [0, "abcdef"], [[":", 2, 2, 3, "XY"]], [0, "abXYf"], 0),
    Case("splice from the end", [0, "abc"], [[":", 3, -1, 0, "d"]], [0, "abcd"]),
    Case("splice before the last byte", [0, "abc"], [[":", 3, -2, 1, "X"]], [0, "abX"]),
    Case("splice at the very front, from the end", [0, "abc"], [[":", 3, -4, 1, ""]], [0, "bc"]),
    Case("splice before the string", [0, "abc"], [[":", 3, -5, 1, ""]], SPLICE),
    Case("splice at 0 of base 1", [0, "abc"], [[":", 3, 0, 1, ""]], SPLICE),
    Case("splice beyond the end appends", [0, "abc"], [[":", 3, 100, 5, "X"]], [0, "abcX"]),
    Case("splice cuts up to the end", [0, "abc"], [[":", 3, 2, 100, ""]], [0, "a"]),
    Case("splice keeps as many at the end", [0, "abcdef"], [[":", 3, 2, -2, "X"]], [0, "aXef"]),
    Case("splice keeps more than there is", [0, "abc"], [[":", 3, 2, -9, "X"]], [0, "aXbc"]),
    Case("splice counts bytes", [0, "ключ"], [[":", 3, 1, 1, ""]], [0, Raw(b"\xa7" + "ключ".encode()[1:])]),
    Case("splice of bytes that are not UTF-8", [0, Raw(b"\xa2\xff\xfe")], [[":", 3, 2, 1, ""]], [0,
    Raw(b"\xa1\xff")]), Case("splice makes the shortest header", [0, Raw(b"\xd9\x02ab")], [[":", 3, 1, 0,
    ""]], [0, "ab"]), Case("splice to 32 bytes", [0, "a" * 31], [[":", 3, 1, 0, "b"]], [0, "b" + "a" * 31]),
    Case("splice of binary", [0, Raw(b"\xc4\x01a")], [[":", 3, 1, 0, "b"]], ARG_TYPE),
    Case("splice with a double", [0, "abc"], [[":", 3, 1.0, 1, ""]], ARG_TYPE),
    Case("splice with a 64-bit offset", [0, "abc"], [[":", 3, Raw(b"\xcf" + b"\0" * 7 + b"\1"), 1, ""]],
    ARG_TYPE),
)  # fmt: skip

FIELD_NUMBERS = (
    Case("= at count + 1", [1], [["=", 3, 2]], [1, 2]),
    Case("= at count + 2", [1], [["=", 4, 2]], NO_FIELD),
    Case("= of the last", [1, 2], [["=", -1, 9]], [1, 9]),
    Case("= before the first", [1], [["=", -3, 9]], NO_FIELD),
    Case("= at 0", [1], [["=", 0, 9]], NO_FIELD),
    Case("= at 0 of base 0", [1], [["=", 1, 9]], [9], 0),
    Case("= at a 64-bit number", [1], [["=", Raw(b"\xcf" + b"\0" * 7 + b"\2"), 9]], ARG_TYPE),
    Case("= at a number that is no integer", [1], [["=", 2.0, 9]], ILLEGAL_PARAMS),
    Case("! in the middle", [1, 2], [["!", 3, 9]], [1, 9, 2]),
    Case("! at count + 1", [1], [["!", 3, 9]], [1, 9]),
    Case("! at count + 2", [1], [["!", 4, 9]], NO_FIELD),
    Case("! at the end", [1], [["!", -1, 9]], [1, 9]),
    Case("! before the last", [1, 2], [["!", -2, 9]], [1, 9, 2]),
    Case("! makes the 16th field", [None] * 14, [["!", -1, 9]], [*[None] * 14, 9]),
    Case("# of one", [1, 2, 3], [["#", 3, 1]], [1, 3]),
    Case("# over the end", [1, 2, 3], [["#", 3, 100]], [1]),
    Case("# behind the end", [1], [["#", 3, 1]], NO_FIELD),
    Case("# of none", [1], [["#", 2, 0]], UPDATE_FIELD),
    Case("# of fewer than none", [1], [["#", 2, -1]], ARG_TYPE),
    Case("# of the last", [1, 2], [["#", -1, 1]], [1]),
    Case("the key", [1], [["=", 1, 99]], PRIMARY_KEY),
    Case("the key, removed before another field", [1], [["#", 2, 1], ["=", 2, 5], ["=", 1, 99]], PRIMARY_KEY),
    Case("no operation at all", [LONG], [], [LONG]),
)

SEQUENCES = (
    Case("each sees the one before", [1, 2], [["!", 2, 0], ["+", 3, 5]], [0, 6, 2]),
    Case("numbers move after #", [1, 2, 3], [["#", 2, 1], ["+", 2, 5]], [7, 3]),
    Case("two + of one field", [1], [["+", 2, 1], ["+", 2, 1]], UPDATE_FIELD),
    Case("+ after =", [1], [["=", 2, 5], ["+", 2, 1]], UPDATE_FIELD),
    Case("= after +", [1], [["+", 2, 1], ["=", 2, 5]], [5]),
    Case("= after =", [1], [["=", 2, 5], ["=", 2, 6]], [6]),
    Case("+ of a field that ! made", [1], [["!", 2, 5], ["+", 2, 1]], [6, 1]),
    Case("+ of a field that = appended", [1], [["=", 3, 5], ["+", 3, 1]], [1, 6]),
    Case("# of a field after +", [1, 2], [["+", 2, 1], ["#", 2, 1]], [2]),
)

NAMES = (
    Case("a name", [1], [["+", "n", 1]], [2]),
    Case("a name that is not in the format", [1], [["+", "x", 1]], NO_NAME),
    Case("a name beyond the tuple's end", [1], [["+", "s", 1]], NO_NAME),
    Case("a name at count + 1", [1], [["=", "s", "x"]], [1, "x"]),
    Case("a unicode name", [1, "", 5], [["-", "ключ", 1]], [1, "", 4]),
    Case("a name with a dot wins over the path", [1, "", 0, 7], [["+", "a.b", 1]], [1, "", 0, 8]),
    Case("a name in brackets", [1], [["+", '["n"]', 1]], [2]),
    Case("a number in brackets", [1], [["+", "[2]", 1]], [2]),
    Case("numbers in brackets count from 1 whatever the base", [1], [["+", "[2]", 1]], [2], 0),
    Case("an empty path", [1], [["+", "", 1]], NO_NAME),
    Case("a name that is not UTF-8", [1], [["+", Raw(b"\xa2\xff\xfe"), 1]], UPDATE_FIELD),
    Case("[*]", [1], [["=", "[*]", 1]], NO_NAME),
    Case("[*] inside", [[1]], [["=", "n[*]", 1]], UPDATE_FIELD),
    Case("[0]", [1], [["=", "[0]", 1]], UPDATE_FIELD),
    Case("not closed", [1], [["=", "[2", 1]], UPDATE_FIELD),
    Case("an index that wraps around 2^32", [1], [["+", "[4294967298]", 1]], [2]),
)

PATHS = (
    Case("a key", [MAP], [["+", "[2].a", 1]], [{"a": 2, "b": {"c": [1, 2, 3]}}]),
    Case("an element of an array in a map", [MAP], [["=", "n.b.c[2]", 9]], [{"a": 1, "b": {"c": [1, 9, 3]}}]),
    Case("a new key comes first", [MAP], [["=", "n.z", 9]], [{"z": 9, "a": 1, "b": {"c": [1, 2, 3]}}]),
    Case("! of a key that is there", [MAP], [["!", "n.a", 9]], UPDATE_FIELD),
    Case("a new element at the end", [[1, 2]], [["=", "n[3]", 9]], [[1, 2, 9]]),
    Case("a new element behind the end", [[1, 2]], [["=", "n[4]", 9]], NO_NAME),
    Case("! in an array", [[1, 2]], [["!", "n[1]", 9]], [[9, 1, 2]]),
    Case("# in an array", [[1, 2, 3]], [["#", "n[2]", 9]], [[1]]),
    Case("# of a key", [MAP], [["#", "n.b", 1]], [{"a": 1}]),
    Case("# of two keys", [MAP], [["#", "n.a", 2]], UPDATE_FIELD),
    Case("# of a key that is not there", [MAP], [["#", "n.x", 1]], NO_NAME),
    Case("a key of a number", [5], [["=", "n.x", 1]], UPDATE_FIELD),
    Case("an element of a map", [{"a": 1}], [["=", "n[1]", 1]], UPDATE_FIELD),
    Case("an integer key of a map counts from 1", [{1: 5, "a": 6}], [["+", "n[1]", 1]], [{1: 6, "a": 6}]),
    Case("a step through what is not there", [MAP], [["=", "n.x.y", 1]], NO_NAME),
    Case("a key in brackets", [{"x y": 1}], [["+", "n['x y']", 1]], [{"x y": 2}]),
    Case("a unicode key", [{"ключ": 1}], [["+", "n.ключ", 1]], [{"ключ": 2}]),
    Case("a path to a field beyond the end", [], [["=", "n.a", 1]], NO_NAME),
    Case("a map of 15 keys gets one more", [{f"k{i}": i for i in range(15)}], [["!", "n.new", 9]],
         [{"new": 9} | {f"k{i}": i for i in range(15)}]),
    Case("two paths that part in a map: touched keys first, the last in front", [{"x": 1, "y": 2, "z": 3}],
         [["+", "n.y", 1], ["+", "n.z", 1]], [{"z": 4, "y": 3, "x": 1}]),
    Case("two paths that part in an array", [[1, [2, 3]]], [["+", "n[1]", 1], ["+", "n[2][2]", 1]], [[2, [2,
    4]]]), Case("three paths below one prefix", [{"a": {"x": 1, "y": 2, "z": 3}}],
         [["=", "n.a.x", 7], ["=", "n.a.y", 8], ["=", "n.a.z", 9]], [{"a": {"z": 9, "y": 8, "x": 7}}]),
    Case("a key before the one touched first comes behind it", [{"x": 1, "y": 2, "z": 3}],
         [["+", "n.y", 1], ["+", "n.x", 1]], [{"y": 3, "x": 2, "z": 3}]),
    Case("a new key with a touched one comes first", [{"x": 1, "y": 2}], [["+", "n.x", 1], ["=", "n.new", 9]],
         [{"new": 9, "x": 2, "y": 2}]),
    Case("a removed key with a touched one", [{"x": 1, "y": 2, "z": 3}], [["+", "n.z", 1], ["#", "n.y", 1]],
         [{"z": 4, "x": 1}]),
    Case("two removed keys", [{"x": 1, "y": 2, "z": 3}], [["#", "n.x", 1], ["#", "n.y", 1]], [{"z": 3}]),
    Case("# of two keys with a touched one", [{"x": 1, "y": 2}], [["+", "n.x", 1], ["#", "n.y", 2]], UPDATE_FIELD),
    Case("# of a missing key with a touched one does nothing", [{"x": 1}], [["+", "n.x", 1], ["#", "n.y", 1]],
         [{"x": 2}]),
    Case("behind an array with a touched element", [[1, 2]], [["+", "n[1]", 1], ["=", "n[9]", 1]], NO_NAME),
    Case("at an array's end with a touched element", [[1, 2]], [["+", "n[1]", 1], ["=", "n[3]", 9]], [[2, 2, 9]]),
    Case("# over an array's end with a touched element", [[1, 2, 3]], [["+", "n[1]", 1], ["#", "n[2]", 9]], [[2]]),
    Case("a key below an element with a touched one", [[{"a": 1}, 2]], [["+", "n[2]", 1], ["+", "n[1].a", 1]],
         [[{"a": 2}, 3]]),
    Case("a key of an array with a touched element", [[1, 2]], [["+", "n[1]", 1], ["=", "n.a", 1]], UPDATE_FIELD),
    Case("an index of a map with a touched key", [{"x": 1}], [["+", "n.x", 1], ["=", "n[1]", 1]], UPDATE_FIELD),
    Case("one path twice", [{"a": 1}], [["+", "n.a", 1], ["+", "n.a", 1]], UPDATE_FIELD),
    Case("a path into a field that = has set", [{"a": 1}], [["+", "n.a", 1], ["=", 2, 5]], [5]),
    Case("+ of a field entered by a path", [{"a": 1}], [["+", "n.a", 1], ["+", 2, 1]], UPDATE_FIELD),
    Case("a path whose bytes begin with another's", [{"ab": {"x": 1, "y": 2}, "abc": {"x": 1}}],
         [["+", "n.ab.x", 1], ["+", "n.ab.y", 1], ["+", "n.abc.x", 1]], UPDATE_FIELD),
    Case("headers on the way keep their bytes", [Raw(b"\xdf\0\0\0\1\xd9\1a\xdd\0\0\0\1\5")], [["+", "n.a[1]",
    1]],
         [Raw(b"\xdf\0\0\0\1\xd9\1a\xdd\0\0\0\1\6")]),
    Case("the header of a map that grows gets its shortest form", [Raw(b"\xdf\0\0\0\1\xd9\1a\5")], [["=",
    "n.b", 1]],
         [Raw(b"\x82\xa1b\1\xd9\1a\5")]),
    Case("a double inside a map is no double field", [{"d": 1.5}], [["+", "n.d", 1]], [{"d": single(2.5)}]),
)  # fmt: skip

MALFORMED = (
    Case("an unknown operation", [1], [["?", 2, 1]], UNKNOWN_OP),
    Case("a name of two characters", [1], [["==", 2, 1]], UNKNOWN_OP),
    Case("too few arguments", [1], [["=", 2]], UNKNOWN_OP),
    Case("too many arguments", [1], [["=", 2, 1, 1]], UNKNOWN_OP),
    Case("an operation that is no array", [1], [5], ILLEGAL_PARAMS),
    Case("an empty operation", [1], [[]], ILLEGAL_PARAMS),
    Case("a name that is no string", [1], [[5, 2, 1]], ILLEGAL_PARAMS),
    Case("a field that is no number and no string", [1], [["=", None, 1]], ILLEGAL_PARAMS),
    Case("4001 operations", [1], [["=", 2, 1]] * 4001, ILLEGAL_PARAMS),
    Case("4000 operations", [1], [["=", 2, 1]] * 4000, [1]),
)

CASES = (*NUMBERS, *STRINGS, *FIELD_NUMBERS, *SEQUENCES, *NAMES, *PATHS, *MALFORMED)

WRONG = frozenset(
    {
        *(case.name for case in MALFORMED if isinstance(case.result, int)),
        *("nor is an argument", "bits by a negative", "# of none", "# of fewer than none"),
        *("splice at 0 of base 1", "splice with a double", "splice with a 64-bit offset"),
        *("= at 0", "= at a 64-bit number", "= at a number that is no integer"),
        *("a name that is not in the format", "an empty path", "a name that is not UTF-8"),
        *("[*]", "[0]", "not closed"),
    }
)
"""Names of the cases that are wrong whatever the tuple is: an UPSERT with them is refused, not skipped."""

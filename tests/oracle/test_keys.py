"""Which keys are one key: by kind of part, for the oracle and, where there is one, for a real server."""

import itertools

import pytest

from tests.live import Tarantool, TarantoolError
from tests.oracle.keys import (
    Part,
    comparable,
    decimal_of,
    decimal_raw,
    key_of,
    parts_of,
    path_tokens,
    searched,
)
from tests.oracle.mp import decode, split_array
from tests.recordings.raw import INSERT, Raw, array, decimal, double, insert, raw

# Left out, since 2.6.0 itself is of two minds: an infinity beside a decimal is equal to anything, or ends the server;
# doubles of more than 15 digits beside a decimal, which may be equal to it though not to each other.
NUMBERS = [
    raw("02"),
    raw("cd0002"),
    raw("d002"),
    double(2.0),
    raw("ca40000000"),
    Raw(array(decimal("20", 1))[1:]),
    raw("ff"),
    raw("d1ffff"),
    double(-1.0),
    double(-0.0),
    raw("00"),
    double(0.1),
    Raw(array(decimal("1", 1))[1:]),
    raw("cf0020000000000000"),
    raw("cf0020000000000001"),
    double(2.0**53),
    raw("cfffffffffffffffff"),
    double(2.0**64),
    Raw(array(decimal("9" * 38, 0))[1:]),
]
TEXTS = [raw("a161"), raw("d90161"), raw("da000161"), raw("a162"), raw("a0"), raw("a1ff")]
BINARIES = [raw("c40161"), raw("c5000161"), raw("c400")]
BOOLEANS = [raw("c2"), raw("c3")]


def is_unsigned(data: bytes) -> bool:
    """Say whether the object is of MessagePack's unsigned kind: `d0 02` is not, though it is 2."""
    return data[0] <= 0x7F or 0xCC <= data[0] <= 0xCF


VALUES = {
    "number": NUMBERS,
    "integer": [one for one in NUMBERS if isinstance(decode(one.data), int)],
    "unsigned": [one for one in NUMBERS if is_unsigned(one.data)],
    "string": TEXTS,
    "varbinary": BINARIES,
    "boolean": BOOLEANS,
    "scalar": NUMBERS + TEXTS + BINARIES + BOOLEANS,
}


def same(kind: str, one: Raw, other: Raw) -> bool:
    part = Part(0, kind, "")
    return key_of([one.data], [part]) == key_of([other.data], [part])


@pytest.mark.live
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.of_2_6) if kind == "unsigned" else kind for kind in VALUES]
)
def test_what_is_one_key_to_the_server_is_one_to_the_oracle(kind: str, tarantool_oracle: Tarantool) -> None:
    server = tarantool_oracle
    server.eval("local s = box.schema.space.create('k') s:create_index('p', {parts = {1, ...}})", kind)
    try:
        space_id = server.eval("return box.space.k.id")
        for one, other in itertools.permutations(VALUES[kind], 2):
            server.eval("box.space.k:truncate()")
            server.connection.request(INSERT, insert("k", one).encode(space_id))
            request = insert("k", other).encode(space_id)
            if same(kind, one, other):
                with pytest.raises(TarantoolError, match="Duplicate key"):
                    server.connection.request(INSERT, request)
            else:
                server.connection.request(INSERT, request)
    finally:
        server.eval("box.space.k:drop()")


def test_a_number_is_one_key_however_it_is_written() -> None:
    two = NUMBERS[:6]
    assert len({comparable(one.data) for one in two}) == 1
    assert not same("number", raw("cf0020000000000001"), double(2.0**53))


def test_an_unsigned_part_tells_long_forms_from_short_ones() -> None:
    assert not same("unsigned", raw("02"), raw("cd0002"))
    assert same("integer", raw("02"), raw("cd0002"))


def test_a_scalar_part_tells_classes_apart() -> None:
    found = {key_of([one], [Part(0, "scalar", "")]) for one in split_array(array(True, 1, "1", b"1"))}
    assert len(found) == 4


def test_parts_have_two_forms() -> None:
    assert parts_of([[2, "unsigned"]]) == (Part(2, "unsigned", ""),)
    assert parts_of([{"field": 1, "type": "string", "path": ".a"}]) == (Part(1, "string", ".a"),)
    assert parts_of([{"field": 1, "type": "string", "collation": 3}]) == (Part(1, "string", ""),)


def test_a_collation_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="collation"):
        parts_of([{"field": 0, "type": "string", "collation": 1}])


def test_a_part_may_lie_inside_a_field() -> None:
    fields = split_array(array({"a": [{"b": 7}]}, 1))
    parts = (Part(1, "integer", ""), Part(0, "integer", "a[1].b"))
    assert key_of(fields, parts) == searched(array(1, 7), parts)


@pytest.mark.parametrize(
    ("path", "tokens"),
    [
        ("", []),
        ("a", ["a"]),
        (".a.b", ["a", "b"]),
        ("[3]", [2]),
        ('a["b c"][1]', ["a", "b c", 0]),
        ("['x']", ["x"]),
    ],
)
def test_a_path_has_steps(path: str, tokens: list[int | str]) -> None:
    assert path_tokens(path) == tokens


@pytest.mark.parametrize(
    ("digits", "scale", "negative", "text"),
    [("15", 1, False, "1.5"), ("1", 3, True, "-0.001"), ("0", 0, False, "0"), ("1", -2, False, "1E+2")],
)
def test_a_decimal_is_read_and_written(digits: str, scale: int, negative: bool, text: str) -> None:
    made = decimal(digits, scale, negative=negative)
    assert str(decimal_of(made.data)) == text
    assert decimal_raw(decimal_of(made.data)) == array(made)[1:]

"""Which keys are one key: by kind of part, for the oracle and for a real server."""

import itertools

import pytest

from tests.live import Tarantool, TarantoolError
from tests.oracle.keys import Part, key_of
from tests.oracle.mp import decode
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

"""Generated pairs of numbers of all kinds: real servers say whether they are one key, and which comes first.

Never are two keys of the server one key here. One key of the server is two here only where its equality is not
transitive: a decimal, and a double that has other digits behind its first 15, or that no decimal of the server reaches.
"""

import math
import random
import struct
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import msgpack
import numpy as np
import pytest

from schemas.space import KeyPart, Space, space_of
from tests.live.server import Tarantool, find_servers
from tests.udfs.messages import binaries, decimal_ext, pack
from udfs.keys.key_order import directions_of, key_order, ordered_keys
from udfs.keys.keys import canonical_keys

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not find_servers(), reason="no tarantool on PATH: apt-get install tarantool"),
]

REPLACE, CHUNK, PAIRS = 3, 2000, 100_000
SOAKED = [pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, PAIRS // CHUNK)]
TYPES = ("number", "scalar", "double")
COMPARE = """
    local definition = require('key_def').new{{fieldno = 2, type = ...}}
    local found = {}
    for i = 1, box.space.pairs:len() / 2 do
        found[i] = definition:compare(box.space.pairs:get(2 * i - 1), box.space.pairs:get(2 * i))
    end
    box.space.pairs:truncate()
    return found
"""


def near(value: Decimal) -> list[bytes]:
    """Return encodings of a number, of the nearest doubles, and of the decimals that these show as."""
    double = float(value)
    doubles = [double, math.nextafter(double, math.inf), math.nextafter(double, -math.inf)]
    decimals = [
        value,
        *(Decimal(f"{one:.15g}") for one in doubles),
        *(Decimal(f"{one:.17g}") for one in doubles),
    ]
    found = [pack(one) for one in doubles]
    for one in decimals:
        exponent = one.as_tuple().exponent
        if abs(one) < Decimal("1e37") and isinstance(exponent, int) and exponent >= -38:
            found.append(pack(decimal_ext(format(one, "f"))))
        if one == one.to_integral_value() and -(2**63) <= one < 2**64:
            found.append(pack(int(one)))
    return found


DOUBLES = [
    struct.pack(">Bd", 0xCB, value)
    for value in (0.0, -0.0, 5e-324, -5e-324, 1.0, 2.5, 2.0**53, 2.0**64, 1e300, math.inf, -math.inf)
]
NANS = [bytes.fromhex(text) for text in ("cb7ff8000000000000", "cbfff8000000000000", "cb7ff8000000000001")]
NUMBERS = [
    *(struct.pack(">Bf", 0xCA, value) for value in (0.0, -0.0, 1.0, 2.5, math.inf, -math.inf, math.nan)),
    *(pack(value) for value in (0, 1, -1, 2**53, 2**53 + 1, 2**64 - 1, -(2**63))),
    *(
        pack(decimal_ext(text))
        for text in ("0", "-0", "0.00", "1.0", "2.5", "9007199254740992", "1" + "0" * 37)
    ),
]
UUID = b"\xd8\x02" + bytes(15) + b"\x01"
OTHERS = [
    *(pack(value) for value in ("", "1", "a\0", True, False, b"1")),
    UUID,
]


def odd_values(kind: str) -> list[bytes]:
    """Return values at the edges of a type: NaN, infinities, zeros of each sign, and of `scalar` other classes."""
    numbers = [] if kind == "double" else NUMBERS
    return [*DOUBLES, *NANS, *numbers, *(OTHERS if kind == "scalar" else [])]


def pairs_of(dice: random.Random, count: int, kind: str) -> Iterator[tuple[bytes, bytes]]:
    odd = odd_values(kind)
    for _ in range(count):
        if dice.random() < 0.2:
            yield dice.choice(odd), dice.choice(odd)
            continue
        digits = dice.choice([1, 2, 5, 14, 15, 16, 17, 19, 20])
        exponent = dice.choice([0, 0, 0, 1, -1, -digits, -15, 4, 15, -30, -digits - 2])
        number = Decimal(dice.choice([1, -1]) * dice.randrange(10 ** (digits - 1), 10**digits)).scaleb(
            exponent
        )
        if dice.random() < 0.2:
            power = Decimal(2 ** dice.randrange(50, 65))
            number = power + dice.choice([0, 1, 2, -1, -2, 1024, 2048])
        candidates = near(number)
        if kind == "double":
            candidates = [one for one in candidates if one[0] == 0xCB]
        if dice.random() < 0.1:
            candidates += dice.choices(odd, k=3)
        yield dice.choice(candidates), dice.choice(candidates)


def is_unclear(one: bytes, other: bytes) -> bool:
    """Return whether a pair is a decimal, and a double that is not what its first 15 digits say."""
    values = [msgpack.unpackb(one), msgpack.unpackb(other)]
    doubles = [value for value in values if isinstance(value, float)]
    return (
        len(doubles) == 1
        and any(isinstance(value, msgpack.ExtType) for value in values)
        and (is_rounded(doubles[0]) or not 1e-38 <= abs(doubles[0]) < 1e38)
    )


def is_rounded(value: float) -> bool:
    shown = Decimal(f"{value:.15g}")
    return shown != Decimal(value) if value.is_integer() and abs(value) < 2**64 else float(shown) != value


@pytest.fixture(params=find_servers(), ids=lambda path: Path(path).name)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tarantool]:
    lua = "box.schema.space.create('pairs', {id = 600, temporary = true}):create_index('pk')"
    with Tarantool(tmp_path / "a1", lua=lua, cfg={"log_level": 1}, binary=request.param) as found:
        yield found


def asked(server: Tarantool, pairs: list[tuple[bytes, bytes]], kind: str) -> list[int]:
    """Return the sign of each comparison by the server."""
    values = [value for pair in pairs for value in pair]
    for number, value in enumerate(values, start=1):
        body = b"\x82\x10" + pack(600) + b"\x21\x92" + pack(number) + value
        server.connection.send_raw(REPLACE, body)
    for _ in values:
        server.connection.receive_raw()
    return [(sign > 0) - (sign < 0) for sign in server.eval(COMPARE, kind)]


def differences(server: Tarantool, pairs: list[tuple[bytes, bytes]], kind: str) -> list[object]:
    """Return the pairs that are one key here and two on the server, or in another order."""
    theirs = asked(server, pairs, kind)
    space = Space(1, 1, "k", "memtx", (), (KeyPart(0, kind),))
    data = binaries([b"\x91" + value for pair in pairs for value in pair])
    keys = canonical_keys(data, [space]).field("key")
    ordered = ordered_keys(keys, key_order([directions_of(space)]), np.zeros(len(keys), np.int32)).to_pylist()
    texts = keys.to_pylist()
    assert sum(key is None for key in texts) < len(texts) / 4
    wrong: list[object] = []
    for number, (one, other) in enumerate(pairs):
        left, right = texts[2 * number], texts[2 * number + 1]
        if left is None or right is None:
            continue
        if left == right and theirs[number] != 0:
            wrong.append(("one key here", one.hex(), other.hex(), theirs[number]))
        first, second = ordered[2 * number], ordered[2 * number + 1]
        mine = (first > second) - (first < second)
        if mine != theirs[number] and not is_unclear(one, other):
            wrong.append(("another order", one.hex(), other.hex(), theirs[number], mine))
    return wrong


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", [0, *SOAKED])
def test_pairs_compare_as_on_the_server(server: Tarantool, seed: int, kind: str) -> None:
    pairs = list(pairs_of(random.Random(seed), CHUNK, kind))
    if server.eval("return _TARANTOOL").startswith("2.6"):
        # It has no uuid in `scalar`; NaN in a `double` key is refused by name (`pipeline.changelog.keyed_rows`).
        absent = {UUID, *(NANS if kind == "double" else ())}
        pairs = [pair for pair in pairs if not absent & set(pair)]
    assert differences(server, pairs, kind) == []


IN_HASH = """
    local decimal, ffi = require('decimal'), require('ffi')
    local counts = {}
    for _, kind in ipairs({'number', 'scalar', 'decimal'}) do
        local space = box.schema.space.create('hashed_' .. kind)
        space:create_index('pk', {type = 'hash', parts = {{1, kind}}})
        local keys = {decimal.new('2'), decimal.new('2.0'), decimal.new('0.5'), decimal.new('0.50')}
        if kind ~= 'decimal' then
            for _, one in ipairs({2, ffi.cast('double', 2), 0.5}) do table.insert(keys, one) end
        end
        for _, key in ipairs(keys) do space:replace({key}) end
        table.insert(counts, space:len())
    end
    return counts, box.space._index:get({box.space.hashed_number.id, 0}):totable()
"""


def test_a_hash_index_has_decimals_of_other_digits_as_other_keys(server: Tarantool) -> None:
    """Only a double is one key with its integer; so decimals are refused there."""
    counts, index = server.eval(IN_HASH)
    assert counts == [6, 6, 4]
    assert space_of([1, 1, "k", "memtx", 0, {}, []], index).is_hashed

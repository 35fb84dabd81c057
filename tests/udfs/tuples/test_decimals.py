"""Decimals of the servers in columns and variants: each is exact, rounded half-even and named, or a misfit.

The oracle is Python's `decimal`, whose digits and rounding follow the same specification as the server's.
"""

import decimal
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.types import VariantVal

from schemas.layout import TableLayout, TypeOptions, table_layout
from schemas.space import Field, Space
from tests.live.server import Tarantool
from tests.soaked import partly_soaked
from tests.udfs.messages import EXACT, binaries, decimal_ext, decimal_of, pack, unpack
from udfs.tuples.tuples import decode_tuples

SCALES = (0, 2, 18, 38)
TEXT = TypeOptions(decimal_scale="string")


def layout_of(kind: str, options: TypeOptions) -> TableLayout:
    return table_layout([Space(512, 1, "money", "memtx", (Field("f", kind),))], options=options)


def drawn(draw: random.Random) -> Decimal:
    """Return a decimal as servers have them: mostly money, also quotients of 38 and 76 digits, halves and limits."""
    form = draw.randrange(8)
    if form < 3:
        return Decimal(draw.randrange(-(10**12), 10**12)).scaleb(-draw.randrange(5))
    digits = draw.choice((1, 15, 16, 18, 19, 20, 37, 38, 39, 75, 76, draw.randint(1, 76)))
    number = draw.randrange(10**digits) if form < 6 else int(str(draw.choice((5, 9, 49, 50, 51, 99))) * 38)
    number = int(str(number)[:digits])
    if form == 7:
        number = int(f"{number}5{'0' * draw.randrange(20)}"[:76])
    exponent = draw.choice((0, -1, -2, -3, -18, -19, -20, -38, -39, -76, 1, 20, draw.randint(-90, 40)))
    with decimal.localcontext(EXACT):
        return Decimal(number * draw.choice((1, -1))).scaleb(exponent)


def rounded(value: Decimal, scale: int) -> Decimal | None:
    """Return what a decimal(38, scale) has of a value; None if it has none."""
    with decimal.localcontext(EXACT):
        found = value.quantize(Decimal(1).scaleb(-scale), decimal.ROUND_HALF_EVEN)
        return found if abs(found) < Decimal(10) ** (38 - scale) else None


def counted(value: Decimal, scale: int) -> int:
    """Return how many digits the reason names: before the point if there are too many, else behind it."""
    _, digits, exponent = value.as_tuple()
    return max(0, len(digits) + int(exponent) if rounded(value, scale) is None else -int(exponent))


def where(value: Decimal, scale: int) -> str:
    side, taken = ("before", 38 - scale) if rounded(value, scale) is None else ("behind", scale)
    return f"{side} the point; the column, decimal(38,{scale}), takes {taken}"


def check(values: list[Decimal], raws: list[bytes], scale: int, *, exact: bool) -> Counter[str]:
    """Compare a column with the oracle; return how many values are exact, rounded and misfits."""
    options = TypeOptions(decimal_scale=scale, exact=exact)
    decoded = decode_tuples(binaries([b"\x91" + raw for raw in raws]), layout_of("decimal", options))
    decoded.validate(full=True)
    expected = [rounded(value, scale) for value in values]
    inexact = [None if found in (None, value) else "f" for value, found in zip(values, expected, strict=True)]
    if exact:
        expected = [None if loses else found for loses, found in zip(inexact, expected, strict=True)]
    column = decoded.field("f").to_pylist()
    assert column == expected
    misfits = [["f"] if found is None else None for found in expected]
    assert decoded.field("_misfits").to_pylist() == misfits
    assert decoded.field("_inexact").to_pylist() == ([None] * len(values) if exact else inexact)
    for value, error in zip(values, decoded.field("_error").to_pylist(), strict=True):
        assert error is None or error.replace("too many digits", f"{counted(value, scale)} digits") == (
            f"field f: a decimal of {counted(value, scale)} digits {where(value, scale)}; "
            "`types.decimal: string` keeps it"
        )
    return Counter(
        "misfit" if lost else "rounded" if loses and not exact else "exact"
        for lost, loses in zip(misfits, inexact, strict=True)
    )


@pytest.mark.parametrize("seed", partly_soaked([0], range(1, 50)))
def test_every_decimal_is_exact_or_rounded_and_named_or_a_misfit(seed: int) -> None:
    draw = random.Random(seed)
    values = [drawn(draw) for _ in range(20_000)]
    raws = [pack(decimal_ext(value)) for value in values]
    for scale in SCALES:
        for exact in (False, True):
            found = check(values, raws, scale, exact=exact)
            assert found["exact"] > 100
            assert found["misfit"] > 100
            assert exact or found["rounded"] > 100


@pytest.mark.parametrize("seed", partly_soaked([0], range(1, 50)))
def test_every_decimal_has_its_digits_as_text(seed: int) -> None:
    draw = random.Random(seed)
    values = [drawn(draw) for _ in range(20_000)]
    raws = [b"\x91" + pack(decimal_ext(value)) for value in values]
    decoded = decode_tuples(binaries(list(raws)), layout_of("decimal", TEXT))
    assert decoded.field("f").to_pylist() == [str(value) for value in values]
    assert decoded.field("_error").null_count == len(values)


def numbers_in_variants(raws: list[bytes]) -> pa.StructArray:
    return decode_tuples(binaries([b"\x91" + raw for raw in raws]), layout_of("any", TypeOptions()))


def value_of(cell: dict[str, bytes]) -> Any:
    with decimal.localcontext(EXACT):
        return VariantVal(cell["value"], cell["metadata"]).toPython()


def test_a_decimal_in_a_variant_has_38_digits_and_is_named_if_it_had_more() -> None:
    draw = random.Random(7)
    values = [drawn(draw) for _ in range(5000)]
    raws = [pack(decimal_ext(value)) for value in values]
    decoded = numbers_in_variants(raws)
    for value, raw, cell, lost in zip(
        values, raws, decoded.field("f").to_pylist(), decoded.field("_inexact").to_pylist(), strict=True
    ):
        found = value_of(cell)
        if isinstance(found, bytes):
            assert found == raw
            assert abs(value) > Decimal("9" * 38)
            continue
        with decimal.localcontext(EXACT) as context:
            assert lost == (None if found == value else "f")
            if abs(value) < 1:
                nearest = value.quantize(Decimal("1E-38"), decimal.ROUND_HALF_EVEN)
            else:
                context.prec = 38
                nearest = +value
        assert found == nearest


@pytest.mark.parametrize("exact", [False, True])
def test_a_number_of_76_digits_is_the_nearest_double(exact: bool) -> None:
    third = Decimal("0." + "3" * 76)
    options = TypeOptions(exact=exact)
    row = decode_tuples(
        binaries([b"\x91" + pack(decimal_ext(third))]), layout_of("number", options)
    ).to_pylist()[0]
    assert row["f"] == (None if exact else float(third))
    assert row["_inexact"] == (None if exact else "f")
    assert row["_misfits"] == (["f"] if exact else None)


def test_other_inexact_values_are_misfits_where_only_exact_ones_fit() -> None:
    fields = tuple(Field(name, kind) for name, kind in (("at", "datetime"), ("tags", "map"), ("n", "number")))
    layout = table_layout([Space(512, 1, "s", "memtx", fields)], options=TypeOptions(exact=True))
    rows = [
        b"\x93"
        + pack(msgpack.ExtType(4, b"\0" * 8 + b"\1" + b"\0" * 7))
        + b"\x82\xa1a\1\xa1a\2"
        + pack(2**53 + 1),
        b"\x93" + pack(msgpack.ExtType(4, b"\0" * 8)) + b"\x81\xa1a\1" + pack(2**53),
    ]
    decoded = decode_tuples(binaries(list(rows)), layout)
    decoded.validate(full=True)
    lost, kept = decoded.to_pylist()
    assert (lost["at"], lost["tags"], lost["n"]) == (None, None, None)
    assert lost["_misfits"] == ["at", "tags", "n"]
    assert "timestamp has no value that is exactly this one" in lost["_error"]
    assert kept["tags"] is not None
    assert kept["n"] == 2.0**53
    assert (kept["_misfits"], kept["_error"], kept["_inexact"]) == (None, None, None)


MAKE = """
local decimal = require('decimal')
math.randomseed(...)
local made = {}
for k = 1, 5000 do
    local one = decimal.new(math.random(1, 1000000000)) / decimal.new(10 ^ math.random(0, 9))
    local other = decimal.new(math.random(1, 1000000))
    local how = k % 5
    local ok, value = pcall(function()
        if how == 0 then return one end
        if how == 1 then return one / other end
        if how == 2 then return one * one * one / other end
        if how == 3 then return -one - one / other end
        return one * one / other * one
    end)
    if ok then made[#made + 1] = {value, tostring(value)} end
end
return made
"""


@pytest.mark.live
def test_decimals_that_a_server_has_computed(tarantool_oracle: Tarantool) -> None:
    """The server's own bytes have the server's own text, and are exact, rounded and named, or misfits."""
    made = [pair for seed in range(4) for pair in tarantool_oracle.connection.eval(MAKE, seed)]
    values = [Decimal(text) for _, text in made]
    raws = [pack(extension) for extension, _ in made]
    assert [decimal_of(unpack(raw)) for raw in raws] == values
    digits = {len(value.as_tuple().digits) for value in values}
    assert max(digits) in (38, 76)
    for scale in SCALES:
        check(values, raws, scale, exact=False)

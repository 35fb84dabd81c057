"""The rules that depend on the version of the server."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from schemas.errors import ConfigurationError, TupleError, UnsupportedError
from schemas.space import Field, KeyPart, Space
from tests.udfs.cases import Raw, decimal, double, pack, single
from udfs.operations import decimals
from udfs.operations.operations import apply_update, apply_upsert
from udfs.operations.tuple_check import TupleCheck
from udfs.operations.tuple_format import TupleFormat, format_of, format_of_names
from udfs.operations.update_rules import LATEST, Rules, rules_of
from udfs.versions.key_state import Fold, RowChange, Version

OLDEST, MIDDLE, LIVE = rules_of("1.10.15-0-g0c7433e"), rules_of("2.4.2"), rules_of("2.6.0-0-g47aa4e01e")


def plus(old: object, argument: object, rules: Rules) -> bytes:
    return apply_update(pack([1, old]), pack([["+", 2, argument]]), 1, TupleFormat(rules=rules))[2:]


def test_versions_have_the_rules_of_their_time() -> None:
    assert rules_of("2.6.1") == replace(LIVE, checks_upserts=True, accepts_long_encodings=True)
    assert LIVE == Rules("exact", *[False] * 9)  # noqa: SIM300
    assert rules_of("2.8.1") == replace(
        LIVE, checks_upserts=True, fills_gaps=True, accepts_long_encodings=True
    )
    assert rules_of("2.11.9-0-g1234567").allows_repeated_fields is False
    assert rules_of("3.0.0").allows_repeated_fields
    assert rules_of("2.11.9").ignores_missing_deletes
    assert not rules_of("3.4.1").has_wide_decimals
    assert (rules_of("2.10.8").double_accepts_integers, rules_of("2.11.9").double_accepts_integers) == (
        False,
        True,
    )
    assert (rules_of("3.0.2").double_includes_number, rules_of("3.1.0").double_includes_number) == (
        False,
        True,
    )
    assert rules_of("3.8.0-0-gabcdef") == LATEST
    assert rules_of("10.0.0") == LATEST
    assert (OLDEST.float_sums, MIDDLE.float_sums) == ("typed", "unclear")


def test_a_double_field_of_a_vinyl_space_takes_integers_since_2_11() -> None:
    """If the result of an UPSERT does not fit, the server keeps its tuple."""
    operations = pack([["=", 2, "x"]])
    fmt = TupleFormat(rules=rules_of("3.9.0"), check=TupleCheck((Field("d", "double"),)))
    assert apply_upsert(pack([4, "y"]), pack([4]), operations, 1, fmt) == pack([4, "x"])
    older = replace(fmt, rules=rules_of("2.8.1"))
    assert apply_upsert(pack([4, "y"]), pack([4]), operations, 1, older) == pack([4, "y"])


@pytest.mark.parametrize("text", ["", "2", "2.6", "v2.6.0", "three"])
def test_an_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a version"):
        rules_of(text)


def test_floats_before_2_3_keep_the_type_of_their_operands() -> None:
    assert plus(1.5, 1, OLDEST) == double(2.5)
    assert plus(single(1.5), 1, OLDEST) == single(2.5)
    assert plus(single(1), 2**24, OLDEST) == single(2.0**24)
    assert plus(single(3e38), single(3e38), OLDEST) == single(float("inf"))


def test_floats_of_unclear_servers_are_refused_if_the_rules_disagree() -> None:
    with pytest.raises(UnsupportedError, match="servers before"):
        plus(1.5, 1, MIDDLE)
    with pytest.raises(UnsupportedError, match="servers before"):
        plus(single(1), 2**24, MIDDLE)
    assert plus(single(1.5), 1, MIDDLE) == single(2.5)
    assert plus(0.1, 0.2, MIDDLE) == double(0.1 + 0.2)


def test_decimals_are_wider_since_3_5() -> None:
    nines = decimal("9" * 38)
    assert plus(nines, decimal("1"), LATEST) == decimal("1" + "0" * 38)
    with pytest.raises(TupleError, match="Decimal overflow"):
        plus(nines, decimal("1"), LIVE)
    tiny, small = decimal("1E-30"), double(1e-40)
    assert plus(tiny, small, LIVE) == decimals.encode(Decimal("1E-30").quantize(Decimal("1E-38")))
    assert plus(tiny, small, LATEST) == decimal("1.0000000001E-30")


def test_a_double_that_is_not_a_decimal_is_not_an_argument() -> None:
    for rules in (LIVE, LATEST):
        with pytest.raises(TupleError, match="convertible to decimal"):
            plus(decimal("1"), double(float("nan")), rules)
    with pytest.raises(TupleError, match="convertible to decimal"):
        plus(decimal("1"), 1e300, LIVE)
    assert plus(decimal("1"), 1e50, LATEST) == decimal("1" + "0" * 49 + "1")


@pytest.mark.parametrize("text", ["0", "-0", "1", "-1", "0.5", "-12.34", "1E+5", "1E-38", "9" * 38, "0.00"])
def test_decimals_read_back(text: str) -> None:
    encoded = decimals.encode(Decimal(text))
    assert decimals.read(encoded, 0).as_tuple() == Decimal(text).as_tuple()


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("-12.34", "d6010201234d"),
        ("0", "d501000c"),
        ("1E+5", "d501fb1c"),
        ("123", "c70301001 23c".replace(" ", "")),
    ],
)
def test_decimals_have_the_bytes_that_tarantool_documents(text: str, encoded: str) -> None:
    assert decimals.encode(Decimal(text)).hex() == encoded


@pytest.mark.parametrize(
    "body",
    [
        *("d50100", "c70001", "c70b01cf00000000000f42ff1c", "c70201a11c"),
        *("d5010001", "d501001a0c", "c7030100ffff", "c702010ab0"),
    ],
)
def test_a_decimal_that_is_not_one_is_an_error(body: str) -> None:
    with pytest.raises(TupleError):
        plus(Raw(bytes.fromhex(body)), 1, LIVE)


def test_fields_of_fixed_size_floats() -> None:
    fields = (Field("id", "unsigned"), Field("f", "float32"), Field("d", "float64"))
    fmt = format_of(Space(512, 1, "s", "memtx", fields, (KeyPart(0, "unsigned"),)))
    old = pack([1, single(1.5), 1.5])
    assert apply_update(old, pack([["+", "d", 1]]), 1, fmt) == pack([1, single(1.5), 2.5])
    assert apply_update(old, pack([["=", "f", single(2)]]), 1, fmt) == pack([1, single(2), 1.5])
    with pytest.raises(UnsupportedError, match="float32"):
        apply_update(old, pack([["+", "f", 1]]), 1, fmt)


@pytest.mark.parametrize(
    ("operations", "is_fit"),
    [
        ([["=", 2, 5]], True),
        ([["=", 2, None]], True),
        ([["=", 2, "x"]], False),
        ([["-", 2, 9]], False),
        ([["=", 3, decimal("1.5")]], True),
        ([["=", 3, Raw(b"\xd8\x02" + b"u" * 16)]], False),
        ([["=", 4, Raw(b"\xd8\x02" + b"u" * 16)]], True),
        ([["=", 4, 1]], False),
        ([["=", 5, [1]]], True),
        ([["#", 2, 9]], False),
        ([["=", 6, "behind the format"]], True),
    ],
)
def test_upserts_of_vinyl_that_do_not_fit_are_skipped(operations: list[Any], is_fit: bool) -> None:
    fields = (
        *(Field("id", "unsigned"), Field("n", "unsigned", is_nullable=True), Field("m", "number")),
        *(Field("u", "uuid", is_nullable=True), Field("a", "any")),
    )
    space = Space(512, 1, "s", "vinyl", fields, (KeyPart(0, "unsigned"),))
    row = RowChange("UPSERT", pack([1, 0, 0]), pack(operations), 1, 1, 2, 2)
    memtx = format_of(replace(space, engine="memtx"))
    for fmt, is_applied in ((format_of(space), is_fit), (format_of(space, LIVE), True), (memtx, True)):
        state = Fold([fmt])
        state.start(Version(pack([1, 5, 1, None, None]), 1, 1, 1, 1))
        state.apply(row)
        assert state.faults == []
        assert state.is_changed == is_applied


def test_a_gap_that_fits_into_no_tuple_is_refused_before_it_is_made() -> None:
    with pytest.raises(TupleError, match="do not fit"):
        apply_update(pack([1]), pack([["=", 2**31 - 1, 0]]), 1, format_of_names(["id"]))

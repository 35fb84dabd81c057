"""Decoding of tuples, case by case: each type with its limits, each fault with its text, formats, slices."""

import datetime
import pickle
import struct
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from schemas.layout import TableLayout, TypeOptions, table_layout
from schemas.space import Field, Space
from tests.udfs.messages import binaries, datetime_ext, decimal_ext, interval_ext, pack, uuid_ext
from udfs.tuples.tuples import decode, decode_tuples, decoding_plan

UUID = "64d22e4d-ac92-4a23-899a-e59f34af5479"
RAW = {"_extra": None, "_inexact": None, "_misfits": None, "_error": None}


def layout_of(*fields: Field, options: TypeOptions | None = None) -> TableLayout:
    return table_layout([Space(512, 1, "things", "memtx", fields)], options=options)


def one_field(
    kind: str, value: Any, options: TypeOptions | None = None, nullable: bool = False
) -> dict[str, Any]:
    """Decode a tuple of one field `f`; bytes in `msgpack.Timestamp`-free MessagePack, or a value to pack."""
    raw = b"\x91" + (value.data if isinstance(value, Raw) else pack(value))
    decoded = decode_tuples(binaries([raw]), layout_of(Field("f", kind, nullable), options=options))
    decoded.validate(full=True)
    row: dict[str, Any] = decoded.to_pylist()[0]
    return row


class Raw:
    """MessagePack that the library would not write."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __repr__(self) -> str:
        return self.data.hex()


def utc(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=datetime.UTC)  # type: ignore[misc,arg-type]


LONG, TEXT, WIDE = (
    TypeOptions(unsigned="long"),
    TypeOptions(decimal_scale="string"),
    TypeOptions(integer="decimal"),
)
CENTS = TypeOptions(decimal_scale=2)
EXACT_CENTS = TypeOptions(decimal_scale=2, exact=True)


@pytest.mark.parametrize(
    ("kind", "value", "expected", "options"),
    [
        ("unsigned", 0, Decimal(0), None),
        ("unsigned", 2**64 - 1, Decimal(2**64 - 1), None),
        ("unsigned", Raw(b"\xcd\x00\x02"), Decimal(2), None),
        ("unsigned", 2**63 - 1, 2**63 - 1, LONG),
        ("integer", -(2**63), -(2**63), None),
        ("integer", 2**63 - 1, 2**63 - 1, None),
        ("integer", Raw(b"\xd3" + bytes(7) + b"\x05"), 5, None),
        ("integer", 2**64 - 1, Decimal(2**64 - 1), WIDE),
        ("integer", -(2**63), Decimal(-(2**63)), WIDE),
        ("integer", -1, Decimal(-1), WIDE),
        ("double", 0.1, 0.1, None),
        (
            "double",
            Raw(b"\xca" + struct.pack(">f", 0.1)),
            struct.unpack(">f", struct.pack(">f", 0.1))[0],
            None,
        ),
        ("double", 2**53, 2.0**53, None),
        ("number", -(2**63), -(2.0**63), None),
        ("number", 2**63, 2.0**63, None),
        ("number", decimal_ext("0.10"), 0.1, None),
        ("number", decimal_ext("-123456789012345"), -123456789012345.0, None),
        ("number", decimal_ext("1152921504606846976"), 2.0**60, None),
        ("number", decimal_ext("1.8446744073709551616E+19"), 2.0**64, None),
        ("number", decimal_ext("0"), 0.0, None),
        ("decimal", decimal_ext("12.50"), Decimal("12.50"), CENTS),
        ("decimal", decimal_ext("12.5000"), Decimal("12.50"), CENTS),
        ("decimal", decimal_ext("-0.01"), Decimal("-0.01"), CENTS),
        ("decimal", decimal_ext("1E+3"), Decimal("1000.00"), CENTS),
        ("decimal", decimal_ext("-" + "9" * 36 + ".99"), Decimal("-" + "9" * 36 + ".99"), CENTS),
        ("decimal", decimal_ext("9" * 38), Decimal("9" * 38), TypeOptions(decimal_scale=0)),
        ("decimal", decimal_ext("0E-40"), Decimal(0), CENTS),
        ("decimal", decimal_ext("0." + "9" * 38), Decimal("0." + "9" * 38), TypeOptions(decimal_scale=38)),
        ("decimal", Raw(b"\xc7\x04\x01\x00\x00\x12\x3c"), Decimal(123), CENTS),
        ("decimal", Raw(b"\xd5\x01\x00\x5b"), Decimal(-5), CENTS),
        ("string", "", "", None),
        ("string", "é\u20ac\U0001f600", "é\u20ac\U0001f600", None),
        ("string", "x" * 70000, "x" * 70000, None),
        ("varbinary", b"\x00\xff", b"\x00\xff", None),
        ("boolean", True, True, None),
        ("boolean", False, False, None),
        ("uuid", uuid_ext(UUID), UUID, None),
        ("uuid", Raw(b"\xc7\x10\x02" + uuid_ext(UUID).data), UUID, None),
        ("datetime", datetime_ext(0), utc(1970, 1, 1), None),
        ("datetime", datetime_ext(-1, 999999000), utc(1969, 12, 31, 23, 59, 59, 999999), None),
        ("datetime", datetime_ext(1700000000, 0, 180, 947), utc(2023, 11, 14, 22, 13, 20), None),
        ("datetime", datetime_ext(-62135596800), utc(1, 1, 1), None),
        ("datetime", datetime_ext(253402300799, 999999000), utc(9999, 12, 31, 23, 59, 59, 999999), None),
    ],
    ids=repr,
)
def test_a_value_that_fits(kind: str, value: Any, expected: Any, options: TypeOptions | None) -> None:
    row = one_field(kind, value, options)
    assert row == {"f": expected, **RAW}
    assert type(row["f"]) is type(expected)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0", "0"),
        ("-0", "-0"),
        ("0.00", "0.00"),
        ("12.50", "12.50"),
        ("-0.000001", "-0.000001"),
        ("0.0000001", "1E-7"),
        ("1.23E-7", "1.23E-7"),
        ("1E+3", "1E+3"),
        ("-1.5E+30", "-1.5E+30"),
        ("100000000000000000001.5", "100000000000000000001.5"),
        ("9" * 38, "9" * 38),
        ("0." + "0" * 30 + "12345678", "1.2345678E-31"),
        ("1E-38", "1E-38"),
        ("1E+9999", "1E+9999"),
        ("-0." + "9" * 76, "-0." + "9" * 76),
        ("1." + "1" * 75 + "E-1000000", "1." + "1" * 75 + "E-1000000"),
    ],
)
def test_a_decimal_as_text(text: str, shown: str) -> None:
    assert str(Decimal(text)) == shown, "Python writes decimals by the same rule"
    assert one_field("decimal", decimal_ext(text), TEXT)["f"] == shown


@pytest.mark.parametrize(
    ("amounts", "shown"),
    [
        ({}, "+0 seconds"),
        ({"months": 1, "days": -3}, "+1 months, -3 days"),
        ({"days": 2}, "+2 days"),
        ({"years": -1, "weeks": 2}, "-1 years, 2 weeks"),
        ({"nanoseconds": 6}, "+0 seconds, 6 nanoseconds"),
        ({"hours": 3, "minutes": 4, "seconds": 5}, "+3 hours, 4 minutes, 5 seconds"),
        ({"years": 1, "adjust": 2}, "+1 years"),
        ({"seconds": -(2**63)}, "-9223372036854775808 seconds"),
    ],
)
def test_an_interval_as_text(amounts: dict[str, int], shown: str) -> None:
    """The second and third are from a 3.8 server; the rest follows its `interval_to_string`."""
    assert one_field("interval", interval_ext(**amounts)) == {"f": shown, **RAW}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("number", 2**53 + 1, 2.0**53),
        ("number", -(2**53) - 1, -(2.0**53)),
        ("number", 2**64 - 1, 2.0**64),
        ("number", 2**63 - 1, 2.0**63),
        ("number", decimal_ext("9007199254740993"), 2.0**53),
        ("number", decimal_ext("0.3333333333333333"), 1 / 3),
        ("number", decimal_ext("9" * 38), 1e38),
        ("double", 2**53 + 1, 2.0**53),
        ("datetime", datetime_ext(0, 123456789), utc(1970, 1, 1, 0, 0, 0, 123456)),
        ("datetime", datetime_ext(-1, 1), utc(1969, 12, 31, 23, 59, 59)),
    ],
)
def test_a_value_that_its_column_holds_inexactly_is_reported(kind: str, value: Any, expected: Any) -> None:
    assert one_field(kind, value) == {**RAW, "f": expected, "_inexact": "f"}


@pytest.mark.parametrize(
    ("kind", "value", "reason", "options"),
    [
        ("unsigned", -1, "field 1 (f): unsigned expected, integer found", None),
        ("unsigned", Raw(b"\xd0\x05"), "field 1 (f): unsigned expected, integer found", None),
        ("unsigned", 1.0, "field 1 (f): unsigned expected, double found", None),
        ("unsigned", None, "field 1 (f): unsigned expected, nil found", None),
        (
            "unsigned",
            2**63,
            "field f: a number beyond the range of bigint; `types.unsigned: precise` keeps it",
            LONG,
        ),
        (
            "integer",
            2**63,
            "field f: a number beyond the range of bigint; `types.integer: precise` keeps it",
            None,
        ),
        ("integer", 1.5, "field 1 (f): integer expected, double found", None),
        ("double", "1", "field 1 (f): double expected, string found", None),
        ("double", decimal_ext("1"), "field 1 (f): double expected, decimal found", None),
        ("number", True, "field 1 (f): number expected, boolean found", None),
        ("number", decimal_ext("1E+400"), "field f: the value is beyond the range of double", None),
        ("decimal", 1, "field 1 (f): decimal expected, unsigned found", None),
        (
            "decimal",
            decimal_ext("0.001"),
            "field f: a decimal of 3 digits behind the point; the column, decimal(38,2), takes 2; "
            "`types.decimal: string` keeps it",
            EXACT_CENTS,
        ),
        (
            "decimal",
            decimal_ext("1E+36"),
            "field f: a decimal of 37 digits before the point; the column, decimal(38,2), takes 36; "
            "`types.decimal: string` keeps it",
            CENTS,
        ),
        (
            "decimal",
            decimal_ext("9" * 38),
            "field f: a decimal of 38 digits before the point; the column, decimal(38,18), takes 20; "
            "`types.decimal: string` keeps it",
            None,
        ),
        (
            "decimal",
            decimal_ext("9" * 76),
            "field f: a decimal of 76 digits before the point; the column, decimal(38,18), takes 20; "
            "`types.decimal: string` keeps it",
            None,
        ),
        ("decimal", Raw(b"\xd5\x01\x00\xac"), "field f: the content of the decimal is not valid", None),
        ("decimal", Raw(b"\xd5\x01\x00\x11"), "field f: the content of the decimal is not valid", None),
        ("decimal", Raw(b"\xd4\x01\x00"), "field f: the content of the decimal is not valid", TEXT),
        ("decimal", decimal_ext("1" * 77), "field f: the content of the decimal is not valid", TEXT),
        ("string", b"x", "field 1 (f): string expected, varbinary found", None),
        (
            "string",
            "\udcff",
            "field f: the string is not UTF-8; `spaces.strings: {things: binary}` keeps its bytes",
            None,
        ),
        ("varbinary", "x", "field 1 (f): varbinary expected, string found", None),
        ("boolean", 1, "field 1 (f): boolean expected, unsigned found", None),
        ("uuid", UUID, "field 1 (f): uuid expected, string found", None),
        ("uuid", msgpack.ExtType(2, b"short"), "field f: the content of the uuid is not valid", None),
        ("datetime", 0, "field 1 (f): datetime expected, unsigned found", None),
        (
            "datetime",
            msgpack.ExtType(4, bytes(9)),
            "field f: the content of the datetime is not valid",
            None,
        ),
        ("datetime", datetime_ext(0, 10**9), "field f: the content of the datetime is not valid", None),
        (
            "datetime",
            datetime_ext(-62135596801),
            "field f: a datetime outside of the years 1 to 9999, which a timestamp has",
            None,
        ),
        (
            "datetime",
            datetime_ext(253402300800),
            "field f: a datetime outside of the years 1 to 9999, which a timestamp has",
            None,
        ),
        ("interval", msgpack.ExtType(6, b"\x01"), "field f: the content of the interval is not valid", None),
        (
            "interval",
            msgpack.ExtType(6, b"\x01\x09\x01"),
            "field f: the content of the interval is not valid",
            None,
        ),
        (
            "interval",
            msgpack.ExtType(6, b"\x01\x00\xc0"),
            "field f: the content of the interval is not valid",
            None,
        ),
        (
            "interval",
            msgpack.ExtType(6, b"\x00\x00"),
            "field f: the content of the interval is not valid",
            None,
        ),
        ("map", [], "field 1 (f): map expected, array found", None),
        ("array", {}, "field 1 (f): array expected, map found", None),
        ("scalar", [], "field 1 (f): scalar expected, array found", None),
        (
            "scalar",
            msgpack.ExtType(9, b"x"),
            "field 1 (f): scalar expected, an unknown extension found",
            None,
        ),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit(kind: str, value: Any, reason: str, options: TypeOptions | None) -> None:
    assert one_field(kind, value, options) == {**RAW, "f": None, "_misfits": ["f"], "_error": reason}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "the tuple is not MessagePack at field 1"),
        (b"\xc1", "the tuple is not MessagePack at field 1"),
        (b"\x92\x01", "the tuple is not MessagePack at field 2"),
        (b"\x92\x01\xa2x", "the tuple is not MessagePack at field 2"),
        (b"\x93\x01\xa1x\xc1", "the tuple is not MessagePack at field 3"),
        (b"\x93\x01\xa1x\xd9\x05ab", "the tuple is not MessagePack at field 3"),
        (b"\x92\x01\xa1x\x00", "bytes follow the end of the tuple"),
        (b"\x81\x01\x02", "the tuple is not an array: map found"),
        (b"\x01", "the tuple is not an array: unsigned found"),
        (b"\xdd\xff\xff\xff\xff\x01\xa1x", "the tuple is not MessagePack at field 3"),
    ],
    ids=repr,
)
def test_damaged_tuples_are_errors(raw: bytes, reason: str) -> None:
    layout = layout_of(Field("id", "unsigned"), Field("name", "string"))
    rows = decode_tuples(binaries([pack([1, "a"]), raw, pack([2, "b"])]), layout).to_pylist()
    assert rows[1] == {**RAW, "id": None, "name": None, "_error": reason}
    assert [(row["id"], row["name"], row["_error"]) for row in rows[::2]] == [(1, "a", None), (2, "b", None)]


def test_every_truncation_is_an_error_and_reads_nothing_past_it() -> None:
    kinds = ("unsigned", "string", "decimal", "uuid", "datetime", "interval", "any", "double")
    layout = layout_of(*(Field(kind, kind) for kind in kinds))
    whole = pack(
        [
            *(2**40, "x" * 40, decimal_ext("1.5"), uuid_ext(UUID), datetime_ext(1, 1000)),
            *(interval_ext(days=300), {"k": [1, 2.5, "v"]}, 0.5),
        ]
    )
    assert decode_tuples(binaries([whole]), layout).field("_error").null_count == 1
    cut = decode_tuples(binaries([whole[:size] for size in range(len(whole))]), layout)
    assert cut.field("_error").null_count == 0
    assert set(cut.field("any").to_pylist()) == {None}


def test_nulls_and_absent_fields() -> None:
    layout = layout_of(
        Field("id", "unsigned"), *(Field(kind, kind, True) for kind in ("string", "map", "boolean"))
    )
    rows: list[bytes | None] = [pack([1]), pack([2, None, None, None]), None, pack([3, "x", {}, False])]
    decoded = decode_tuples(binaries(rows), layout)
    assert decoded.null_count == 0
    assert decoded.field("_error").null_count == 4
    assert decoded.field("id").to_pylist() == [1, 2, None, 3]
    assert decoded.field("string").to_pylist() == [None, None, None, "x"]
    assert decoded.field("boolean").to_pylist() == [None, None, None, False]
    assert decoded.field("map").is_null().to_pylist() == [True, True, True, False]


def test_any_may_be_nil_but_not_absent() -> None:
    assert one_field("any", None) == {"f": None, **RAW}
    assert one_field("map", None, nullable=True) == {"f": None, **RAW}
    bare = decode_tuples(binaries([b"\x90"]), layout_of(Field("f", "any"))).to_pylist()
    assert bare[0]["_error"] == "field 1 (f) is missing: any expected"


def test_slices_and_both_sizes_of_offsets_give_the_same() -> None:
    layout = layout_of(Field("id", "unsigned"), Field("name", "string"), Field("m", "map", True))
    rows: list[bytes | None] = [pack([number, "é" * number, {"n": number}]) for number in range(50)]
    rows[7] = rows[33] = None
    whole = binaries(rows)
    expected = decode_tuples(whole, layout).to_pylist()
    for first, last in ((0, 50), (1, 50), (7, 8), (8, 34), (33, 50), (20, 20)):
        part = whole.slice(first, last - first)
        assert decode_tuples(part, layout).to_pylist() == expected[first:last]
    assert decode_tuples(whole.cast(pa.large_binary()).slice(5, 30), layout).to_pylist() == expected[5:35]


def test_each_tuple_is_read_by_its_own_format() -> None:
    one = Space(
        1, 1, "s", "memtx", (Field("id", "unsigned"), Field("name", "string"), Field("n", "unsigned"))
    )
    other = Space(
        2, 1, "s", "memtx", (Field("n", "number"), Field("mail", "string", True), Field("id", "unsigned"))
    )
    layout = table_layout([one, other])
    rows = [
        pack([1, "a", 7]),
        pack([0.5, None, 2]),
        pack([0.5, "m", 3, "more"]),
        pack([4, "b"]),
        pack([5, "c", 1]),
    ]
    which = pa.array([0, 1, 1, 0, 5], pa.int32())
    decoded = decode_tuples(binaries(list(rows)), layout, which).to_pylist()
    typed = [(row["id"], row["name"], row["n"], row["mail"], row["_error"]) for row in decoded]
    assert typed == [
        (1, "a", 7.0, None, None),
        (2, None, 0.5, None, None),
        (3, None, 0.5, "m", None),
        (4, "b", None, None, "field 3 (n) is missing: unsigned expected"),
        (None, None, None, None, "there is no format with index 5"),
    ]
    assert decode_tuples(binaries([rows[0]]), layout, pa.array([None], pa.int32())).to_pylist()[0][
        "_error"
    ] == ("there is no format with index -1")


def test_inexact_columns_are_named_in_their_order() -> None:
    layout = layout_of(
        Field("a", "number"), Field("b", "unsigned"), Field("c", "datetime"), Field("d", "map")
    )
    rows: list[bytes | None] = [
        pack([2**53 + 1, 1, datetime_ext(0, 1), {}]),
        pack([1, 1, datetime_ext(0, 1), {}]),
        pack([1, 1, datetime_ext(0), {}]),
        b"\x95\x01\x01" + pack(datetime_ext(0)) + b"\x82\x01\x01\xa11\x02" + b"\x82\x01\x01\xa11\x02",
    ]
    decoded = decode_tuples(binaries(rows), layout)
    assert decoded.field("_inexact").to_pylist() == ["a,c", "c", None, "d,_extra"]


def test_a_field_that_does_not_fit_leaves_the_others_as_they_are() -> None:
    layout = layout_of(
        Field("a", "datetime"), Field("b", "decimal"), Field("c", "string"), Field("d", "unsigned")
    )
    rows: list[bytes | None] = [
        pack([datetime_ext(0, 1), decimal_ext("1E+30"), "x", 1]),
        pack([datetime_ext(0), decimal_ext("1"), "y", 2]),
        b"\x95" + pack(datetime_ext(0)) + pack(decimal_ext("1E+30")) + b"\xa1\xff\x03\x81\xa1k\xa1\xff",
        pack([datetime_ext(0), "text", "z"]),
    ]
    decoded = decode_tuples(binaries(rows), layout)
    decoded.validate(full=True)
    found = decoded.to_pylist()
    assert [(row["b"], row["c"], row["d"]) for row in found] == [
        (None, "x", 1),
        (Decimal(1), "y", 2),
        (None, None, 3),
        (None, "z", None),
    ]
    assert [row["_inexact"] for row in found] == ["a", None, None, None]
    assert [row["_misfits"] for row in found] == [["b"], None, ["b", "c"], ["b", "d"]]
    digits = (
        "field b: a decimal of 31 digits before the point; the column, decimal(38,18), takes 20; "
        "`types.decimal: string` keeps it"
    )
    assert [row["_error"] for row in found] == [
        digits,
        None,
        f"{digits}; field c: the string is not UTF-8; `spaces.strings: {{things: binary}}` keeps its bytes",
        "field 2 (b): decimal expected, string found; field 4 (d) is missing: unsigned expected",
    ]
    assert found[2]["_extra"] is not None


def test_strings_of_a_binary_field_are_their_bytes() -> None:
    fields = (Field("s", "string"), Field("t", "string"), Field("n", "unsigned"))
    layout = table_layout([Space(512, 1, "things", "memtx", fields)], binary_fields=frozenset({"s", "n"}))
    texts = [b"", b"x", b"\xff\xfe", b"y" * 31, b"\xff" * 32, b"z" * 255, b"\x80" * 256, b"w" * 70000]
    forms = [b"\xdb" + len(text).to_bytes(4, "big") + text for text in texts]
    forms += [b"\xd9" + bytes((len(text),)) + text for text in texts if len(text) < 256]
    forms += [bytes((0xA0 | len(text),)) + text for text in texts if len(text) < 32]
    decoded = decode_tuples(binaries([b"\x93" + one + b"\xa1t\x01" for one in forms]), layout)
    decoded.validate(full=True)
    assert decoded.field("s").type == pa.binary()
    assert decoded.field("s").to_pylist() == [
        *texts,
        *(text for text in texts if len(text) < 256),
        *(text for text in texts if len(text) < 32),
    ]
    assert set(decoded.field("t").to_pylist()) == {"t"}
    assert set(decoded.field("n").to_pylist()) == {1}
    assert decoded.field("_error").null_count == len(decoded)
    wrong = decode_tuples(binaries([b"\x93\xc4\x01x\xa1t\x01"]), layout).to_pylist()
    assert wrong[0]["_error"] == "field 1 (s): string expected, varbinary found"


@pytest.mark.parametrize(
    ("raw", "row", "reason"),
    [
        (b"\x91\x01", (1, None, ["name"]), "field 2 (name) is missing: string expected"),
        (
            b"\x90",
            (None, None, ["id", "name"]),
            "field 1 (id) is missing: unsigned expected; field 2 (name) is missing: string expected",
        ),
        (b"\x92\xa1x\xa1y", (None, "y", ["id"]), "field 1 (id): unsigned expected, string found"),
    ],
    ids=repr,
)
def test_a_tuple_that_lacks_a_field(raw: bytes, row: tuple[Any, ...], reason: str) -> None:
    layout = layout_of(Field("id", "unsigned"), Field("name", "string"))
    found = decode_tuples(binaries([raw]), layout).to_pylist()[0]
    assert (found["id"], found["name"], found["_misfits"]) == row
    assert found["_error"] == reason


def test_a_plan_travels_to_workers() -> None:
    plan = decoding_plan(layout_of(Field("id", "unsigned")))
    again = pickle.loads(pickle.dumps(plan))
    assert decode(binaries([pack([5])]), again).to_pylist() == [{"id": 5, **RAW}]


def test_no_rows_and_no_columns() -> None:
    layout = layout_of(Field("id", "unsigned"))
    empty = decode_tuples(binaries([]), layout)
    assert len(empty) == 0
    assert empty.type == pa.struct(layout.arrow_fields())
    bare = decode_tuples(binaries([b"\x90", b"\x91\x05"]), layout_of()).to_pylist()
    assert [row["_extra"] is None for row in bare] == [True, False]

"""The walk that writes columns: frequent encodings against rare ones, damage, and rows in one batch."""

import struct
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from schemas.layout import TableLayout, TypeOptions, table_layout
from schemas.space import Field, Space
from tests.udfs.generated import numbers, others, steady, strings, values
from tests.udfs.messages import binaries, datetime_ext, decimal_ext, interval_ext, pack, uuid_ext
from udfs.tuples.tuples import decode_tuples

KINDS = (
    *("unsigned", "integer", "number", "decimal", "string", "varbinary", "boolean", "uuid", "datetime"),
    *("interval", "any", "map", "scalar", "double"),
)


def layout_of(*kinds: str, options: TypeOptions | None = None) -> TableLayout:
    fields = tuple(Field(f"f{index}", kind, is_nullable=True) for index, kind in enumerate(kinds))
    return table_layout([Space(1, 1, "s", "memtx", fields)], options=options)


def rows_of(raws: list[bytes | None], layout: TableLayout) -> list[dict[str, Any]]:
    decoded = decode_tuples(binaries(raws), layout)
    decoded.validate(full=True)
    rows: list[dict[str, Any]] = decoded.to_pylist()
    return rows


def same_in_both_forms(kind: str, quick: list[bytes], rare: list[bytes], options: TypeOptions | None) -> None:
    layout = layout_of(kind, options=options)
    one, other = (
        rows_of([b"\x91" + raw for raw in quick], layout),
        rows_of([b"\x91" + raw for raw in rare], layout),
    )
    assert repr(one) == repr(other)


def extension(code: int, content: bytes) -> bytes:
    """Return an extension in its shortest form, which the fast path handles."""
    if len(content) in (1, 2, 4, 8, 16):
        return bytes((0xD4 + len(content).bit_length() - 1, code)) + content
    return bytes((0xC7, len(content), code)) + content


def long_extension(code: int, content: bytes) -> bytes:
    return struct.pack(">BHB", 0xC8, len(content), code) + content


_nibbles = st.lists(st.sampled_from([0, 0, 0, 1, 5, 9, 9, 9, 10, 15]), min_size=0, max_size=18)
_decimals = st.builds(
    lambda scale, digits, sign: (
        bytes((scale,))
        + bytes.fromhex("".join(f"{digit:x}" for digit in [*[0] * (1 - len(digits) % 2), *digits, sign]))
    ),
    st.one_of(st.integers(0, 20), st.integers(0, 255)),
    _nibbles,
    st.sampled_from([12, 12, 13, 11, 10, 14, 15, 9, 0]),
)


@given(st.lists(st.one_of(_decimals, st.binary(max_size=12)), max_size=30), st.sampled_from([0, 2, 18, 38]))
@steady
def test_decimals_of_any_content(contents: list[bytes], scale: int) -> None:
    quick, rare = [extension(1, one) for one in contents], [long_extension(1, one) for one in contents]
    same_in_both_forms("decimal", quick, rare, TypeOptions(decimal_scale=scale))


_instants = st.builds(
    lambda seconds, nanoseconds, zone: struct.pack("<qiI", seconds, nanoseconds, zone),
    st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-62135596802, -62135596798),
        st.integers(253402300797, 253402300801),
        st.integers(0, 2**31),
    ),
    st.one_of(
        st.integers(-(2**31), 2**31 - 1),
        st.integers(0, 10**6).map(lambda number: number * 1000),
        st.just(10**9),
    ),
    st.integers(0, 2**32 - 1),
)


@given(
    st.lists(st.one_of(_instants, _instants.map(lambda one: one[:8]), st.binary(max_size=17)), max_size=30)
)
@steady
def test_datetimes_of_any_content(contents: list[bytes]) -> None:
    quick, rare = [extension(4, one) for one in contents], [long_extension(4, one) for one in contents]
    same_in_both_forms("datetime", quick, rare, None)


@given(st.lists(st.one_of(st.binary(min_size=16, max_size=16), st.binary(max_size=17)), max_size=30))
@steady
def test_uuids_of_any_content(contents: list[bytes]) -> None:
    quick, rare = [extension(2, one) for one in contents], [long_extension(2, one) for one in contents]
    same_in_both_forms("uuid", quick, rare, None)


def short_string(content: bytes, is_text: bool) -> bytes:
    if is_text and len(content) < 32:
        return bytes((0xA0 | len(content),)) + content
    return bytes((0xD9 if is_text else 0xC4, len(content))) + content


_texts = st.one_of(
    st.text(max_size=80).map(str.encode),
    st.text(st.sampled_from("aЖ€😀"), max_size=60).map(str.encode),
    st.binary(max_size=70),
    st.builds(lambda text, tail: b"x" * text + tail, st.integers(0, 70), st.binary(max_size=4)),
)


NOT_UTF8 = "field f0: the string is not UTF-8; `spaces.strings: {s: binary}` keeps its bytes"


@given(st.lists(_texts.map(lambda one: one[:255]), max_size=30))
@steady
def test_strings_of_any_content(contents: list[bytes]) -> None:
    for kind, is_text, long in (("string", True, 0xDA), ("varbinary", False, 0xC5)):
        quick = [short_string(one, is_text) for one in contents]
        rare = [struct.pack(">BH", long, len(one)) + one for one in contents]
        same_in_both_forms(kind, quick, rare, None)
    found = rows_of([b"\x91" + short_string(one, is_text=True) for one in contents], layout_of("string"))
    for one, row in zip(contents, found, strict=True):
        try:
            assert row["f0"] == one.decode()
        except UnicodeDecodeError:
            assert (row["f0"], row["_error"]) == (None, NOT_UTF8)


_INTEGER_FORMS = [
    (0xCC, ">B"),
    (0xCD, ">H"),
    (0xCE, ">I"),
    (0xCF, ">Q"),
    (0xD0, ">b"),
    (0xD1, ">h"),
    (0xD2, ">i"),
    (0xD3, ">q"),
]


@given(st.lists(st.integers(-(2**63), 2**64 - 1), max_size=20), st.integers(0, 63))
@steady
def test_integers_in_every_form_that_holds_them(drawn: list[int], shift: int) -> None:
    for number in (value >> shift for value in drawn):
        forms = [bytes((number & 0xFF,))] if -32 <= number < 128 else []
        for first, form in _INTEGER_FORMS:
            try:
                forms.append(bytes((first,)) + struct.pack(form, number))
            except struct.error:
                continue
        raws: list[bytes | None] = [b"\x91" + one for one in forms]
        for kind, options in (
            ("integer", TypeOptions(integer="decimal")),
            ("unsigned", TypeOptions(unsigned="precise")),
        ):
            for one, row in zip(forms, rows_of(raws, layout_of(kind, options=options)), strict=True):
                fits = kind == "integer" or one[0] < 0x80 or 0xCC <= one[0] < 0xD0
                assert row["f0"] == (number if fits else None)
        for row in rows_of(raws, layout_of("integer")):
            assert row["f0"] == (number if number < 2**63 else None)
            assert (row["_error"] is None) == (number < 2**63)


_fields = st.one_of(
    values,
    numbers,
    strings,
    others,
    st.sampled_from(
        [
            decimal_ext("12.50"),
            decimal_ext("0.3333333333333333"),
            decimal_ext("1E+400"),
            uuid_ext("64d22e4d-ac92-4a23-899a-e59f34af5479"),
            datetime_ext(1, 1),
            interval_ext(days=3),
        ]
    ).map(pack),
)
_right = st.tuples(
    st.integers(0, 2**63).map(pack),
    st.integers(-100, 100).map(pack),
    numbers,
    st.just(pack(decimal_ext("12.50"))),
    st.text(max_size=40).map(pack),
    st.binary(max_size=40).map(pack),
    st.booleans().map(pack),
    st.just(pack(uuid_ext("64d22e4d-ac92-4a23-899a-e59f34af5479"))),
    st.integers(0, 10**6).map(lambda n: pack(datetime_ext(n, n))),
    st.just(pack(interval_ext(days=3))),
    values,
    st.just(b"\x81\xa1k\xa1v"),
    numbers,
    st.floats().map(pack),
).map(list)


@st.composite
def tuples(draw: st.DrawFn) -> bytes | None:
    """Draw a tuple of `KINDS`: valid, with a field of another type, too short or long, damaged, or null."""
    fields = draw(_right)
    what = draw(
        st.sampled_from(["right", "right", "nil", "other", "cut", "more", "damaged", "truncated", "none"])
    )
    index = draw(st.integers(0, len(fields) - 1))
    if what in ("nil", "other"):
        fields[index] = b"\xc0" if what == "nil" else draw(_fields)
    fields = fields[:index] if what == "cut" else fields
    fields = fields + draw(st.lists(_fields, min_size=1, max_size=3)) if what == "more" else fields
    raw = struct.pack(">BH", 0xDC, len(fields)) + b"".join(fields)
    where = draw(st.integers(0, len(raw) - 1))
    if what == "damaged":
        raw = raw[:where] + draw(st.binary(min_size=1, max_size=2)) + raw[where + 1 :]
    return None if what == "none" else (raw[:where] if what == "truncated" else raw)


@given(st.lists(tuples(), max_size=12))
@steady
def test_a_row_does_not_depend_on_other_rows(raws: list[bytes | None]) -> None:
    layout = layout_of(*KINDS)
    together = rows_of(raws, layout)
    assert repr(together) == repr([rows_of([raw], layout)[0] for raw in raws])
    for raw, row in zip(raws, together, strict=True):
        misfits = row["_misfits"] or ()
        assert all(row[name] is None for name in misfits)
        if raw is None or (row["_error"] is not None and not misfits):
            assert {value for name, value in row.items() if name != "_error"} == {None}


def test_contents_grow_where_a_later_row_is_larger() -> None:
    """Room for variants is allocated on demand: a row without enough room is walked again."""
    layout = layout_of("string", "any", "boolean", "map")
    raws: list[bytes | None] = []
    for number in range(600):
        payload = {f"key {index}": "v" * (number % 50) for index in range(number // 20)}
        raws.append(
            pack([f"é{number}", [payload] * 2, number % 3 == 0, {"n": number}, *["more"] * (number % 2)])
        )
    raws[400] = pack(["x", ["y" * 100_000], True, {}])
    together = decode_tuples(binaries(raws), layout)
    assert together.field("_error").null_count == len(raws)
    alone = [decode_tuples(binaries([raw]), layout) for raw in raws]
    assert together.to_pylist() == pa.concat_arrays(alone).to_pylist()


def test_a_decimal_decided_by_python_is_reported_with_other_faults() -> None:
    layout = layout_of("number", "decimal", "any")
    thirds, huge, long = decimal_ext("0.3333333333333333"), decimal_ext("1E+400"), decimal_ext("9" * 38)
    rows = rows_of(
        [pack([thirds, long, 1]), pack([huge, long, 1]), pack([huge, None, [1]]), pack([thirds])], layout
    )
    too_long = (
        "field f1: a decimal of 38 digits before the point; the column, decimal(38,18), takes 20; "
        "`types.decimal: string` keeps it"
    )
    beyond = "field f0: the value is beyond the range of double"
    assert [row["_error"] for row in rows] == [too_long, f"{beyond}; {too_long}", beyond, None]
    assert [row["_misfits"] for row in rows] == [["f1"], ["f0", "f1"], ["f0"], None]
    assert [row["f0"] for row in rows] == [1 / 3, None, None, 1 / 3]
    assert [row["_inexact"] for row in rows] == ["f0", None, None, "f0"]
    assert [row["f2"] is None for row in rows] == [False, False, False, True]

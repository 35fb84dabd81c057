"""Every tuple of the recorded servers, decoded by the space's own format, equals an independent reader's result."""

import datetime
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgpack
import pytest
from pyspark.sql.types import VariantVal

from schemas.layout import TypeOptions, table_layout
from schemas.space import Space
from tests.truth import Recording, recordings
from tests.udfs.messages import EXACT, INTERVAL_UNITS, Pairs, binaries, decimal_of, unpack
from udfs.keys.keys import canonical_keys
from udfs.tuples.tuples import decode_tuples

OPTIONS = TypeOptions(decimal_scale="string", integer="decimal")
MEMBERS = [(recording, node) for recording in recordings() for node in recording.nodes]


def instant(data: bytes) -> tuple[datetime.datetime, bool]:
    """Return an MP_DATETIME to the microsecond, and whether that is exact."""
    seconds, nanoseconds = struct.unpack("<qi", (data + bytes(8))[:12])
    start = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return start + datetime.timedelta(
        seconds=seconds, microseconds=nanoseconds // 1000
    ), nanoseconds % 1000 == 0


def interval(data: bytes) -> str:
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[1:])
    amounts = {unpacker.unpack(): unpacker.unpack() for _ in range(data[0])}
    parts = [
        f"{amounts[unit]} {INTERVAL_UNITS[unit]}" for unit in sorted(amounts) if unit < len(INTERVAL_UNITS)
    ]
    text = ", ".join(parts)
    return text if text.startswith("-") else f"+{text}"


class Kept:
    """A value that a variant stores as MessagePack; equal to bytes that encode the same value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bytes) and unpacked(other) == self.value

    __hash__ = None  # type: ignore[assignment]


def unpacked(raw: bytes) -> Any:
    return msgpack.unpackb(raw, strict_map_key=False, unicode_errors="surrogateescape")


def inside(value: Any) -> Any:
    """Return the value that a variant of it is read as."""
    if isinstance(value, msgpack.ExtType):
        readers: dict[int, Callable[[bytes], Any]] = {
            1: lambda _: decimal_of(value),
            2: lambda data: str(uuid.UUID(bytes=data)),
            4: lambda data: instant(data)[0],
            6: interval,
        }
        return readers[value.code](value.data) if value.code in readers else Kept(value)
    if isinstance(value, list):
        return [inside(item) for item in value]
    if isinstance(value, dict):
        if any(map(is_odd, value)):
            return Kept(value)
        return {name_of(key): inside(item) for key, item in value.items()}
    if isinstance(value, str) and not is_text(value):
        return value.encode(errors="surrogateescape")
    return Decimal(value) if isinstance(value, int) and value >= 2**63 else value


def name_of(key: object) -> str:
    """Return the name of a key in an object: a byte that is not UTF-8 is a backslash, `x` and two digits."""
    return str(key).encode(errors="surrogateescape").decode(errors="backslashreplace")


def is_text(value: str) -> bool:
    """Return whether a string was UTF-8."""
    return not any("\udc80" <= letter <= "\udcff" for letter in value)


def typed(kind: str, value: Any) -> Any:
    """Return the expected value of a field's column; of a variant the value that is read."""
    if value is None:
        return None
    if kind in ("unsigned", "integer"):
        return Decimal(value)
    if kind in ("double", "number"):
        return float(decimal_of(value)) if isinstance(value, msgpack.ExtType) else float(value)
    if kind == "decimal":
        return str(decimal_of(value))
    if kind in ("uuid", "datetime", "interval", "any", "map", "array", "scalar"):
        return inside(value)
    return value


def whole(value: Any) -> bool:
    """Return whether a variant is exact for a value whose maps are lists of pairs."""
    if isinstance(value, Pairs):
        if any(is_odd(key) for key, _ in value):
            return True
        names = [str(key) for key, _ in value]
        return (
            len(set(names)) == len(names)
            and all(map(is_text, names))
            and all(whole(item) for _, item in value)
        )
    if isinstance(value, list):
        return all(map(whole, value))
    return not isinstance(value, msgpack.ExtType) or value.code != 4 or instant(value.data)[1]


def is_odd(key: Any) -> bool:
    """Return whether a key cannot be a key of an object."""
    return not isinstance(key, int | str) or isinstance(key, bool)


def is_exact(kind: str, value: Any) -> bool:
    if kind in ("any", "map", "array", "scalar"):
        return whole(value)
    if kind == "datetime" and value is not None:
        return instant(value.data)[1]
    return kind != "number" or not isinstance(value, int) or float(value) == value


def cell(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"value", "metadata"}:
        return VariantVal(value["value"], value["metadata"]).toPython()
    return value


def check(space: Space, raws: list[bytes]) -> None:
    decoded = decode_tuples(binaries(list(raws)), table_layout([space], options=OPTIONS))
    decoded.validate(full=True)
    for raw, row in zip(raws, decoded.to_pylist(), strict=True):
        values = unpacked(raw)
        fields = list(zip(space.fields, values, strict=False))
        broken = [
            f.name
            for f, value in fields
            if f.type == "string" and isinstance(value, str) and not is_text(value)
        ]
        if broken:
            way_out = f"`spaces.strings: {{{space.name}: binary}}` keeps its bytes"
            texts = [f"field {name}: the string is not UTF-8; {way_out}" for name in broken]
            assert row["_error"] == "; ".join(texts)
        assert (row["_error"] is None) == (not broken)
        assert row["_misfits"] == (broken or None)
        for field, value in fields:
            if field.name in broken:
                assert row[field.name] is None
                continue
            found, expected = cell(row[field.name]), typed(field.type, value)
            assert found == expected or repr(found) == repr(expected) == "nan", (space.name, field, row)
        assert all(row[field.name] is None for field in space.fields[len(values) :])
        extra = [inside(value) for value in values[len(space.fields) :]]
        assert cell(row["_extra"]) == (extra or None)
        paired = zip(space.fields, unpack(raw), strict=False)
        lost = [f.name for f, value in paired if f.name not in broken and not is_exact(f.type, value)]
        lost += ["_extra"] * (not whole(unpack(raw)[len(space.fields) :]))
        assert (row["_inexact"] or "") == ",".join(lost)


@pytest.mark.parametrize(("recording", "node"), MEMBERS, ids=[f"{r.name}-{node}" for r, node in MEMBERS])
def test_all_tuples_are_typed(recording: Recording, node: str) -> None:
    total = 0
    for name, space in recording.spaces(node).items():
        raws = recording.tuples(node, name)
        total += len(raws)
        check(space, raws)
        keys = canonical_keys(binaries(list(raws)), [space])
        assert keys.field("error").null_count == len(raws)
        assert len(set(keys.field("key").to_pylist())) == len(raws), "keys are unique in a primary index"
    assert total > 100


def test_the_independent_reader_knows_intervals() -> None:
    assert interval(b"\x02\x01\x01\x03\xfd") == "+1 months, -3 days"
    assert EXACT.prec > 38


@pytest.mark.parametrize("recording", recordings(), ids=lambda recording: str(recording.name))
def test_text_forms_are_those_that_the_server_showed(recording: Recording) -> None:
    """`modern` of 3.8 has datetimes, intervals and decimals; the expected texts were printed by the server itself."""
    if "modern" not in recording.spaces("a1"):
        pytest.skip(f"{recording.name} has no space `modern`")
    space, raws = recording.spaces("a1")["modern"], recording.tuples("a1", "modern")
    shown = {row[0]: row for row in recording.system("a1", "modern")}
    for row in decode_tuples(binaries(list(raws)), table_layout([space], options=OPTIONS)).to_pylist():
        _, at, ivl, blob, dec = (*shown[int(row["id"])], *[None] * 4)[:5]
        assert (row["ivl"], row["dec"]) == (ivl, dec)
        assert row["bin"] == (blob if blob is None else blob.encode())
        if at is not None and at.endswith("Z"):
            assert f"{row['at']:%Y-%m-%dT%H:%M:%S}Z".zfill(len(at)) == at

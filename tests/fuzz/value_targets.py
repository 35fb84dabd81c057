"""The kinds of cases of values: tuples, keys, variants, operations, definitions, rows of system spaces."""

import json
import math
import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from config.spaces import Spaces
from pipeline.plan.ids.settle import settle
from pipeline.plan.rows.summary import Summary
from pipeline.plan.spaces.meanings_builder import SpacesBefore, build_history
from pipeline.plan.spaces.router import build_router
from pipeline.plan.spaces.system_rows import apply_control_rows
from pipeline.plan.spaces.tables import build_table_layout, check_space
from pipeline.state import SpaceDefinition
from schemas.errors import UnsupportedError
from schemas.field_types import type_family
from schemas.iproto import SystemSpace
from schemas.layout import TypeOptions, table_layout
from schemas.space import KeyPart, Space, space_of
from schemas.system_tuples import unpacked
from sources.xlog.format.vylog import trees_at_checkpoint
from sources.xlog.stream.origins import expelled_replica_id, id_assignment_of
from tests.fuzz import draw as made
from tests.fuzz.draw import Draw
from tests.pipeline.logs import control_row
from udfs.keys.grouping import group
from udfs.keys.key_order import directions_of, key_order, ordered_keys
from udfs.keys.keys import canonical_keys_with_plan, canonical_prefixes, key_plan
from udfs.keys.sequence import sequence_bytes
from udfs.operations.operations import apply_update, apply_upsert
from udfs.operations.tuple_format import format_of
from udfs.tuples.row_body import delete_ranges
from udfs.tuples.tuples import decode_tuples


def _options(draw: Draw) -> TypeOptions:
    return TypeOptions(
        unsigned=draw.choice(("precise", "long")),
        decimal_scale=draw.choice((0, 2, 18, 38, "string")),
        integer=draw.choice(("long", "decimal")),
    )


def _rows(draw: Draw, form: Any) -> list[bytes | None]:
    found: list[bytes | None] = []
    for _ in range(draw.size(12) + 1):
        data = made.tuple_of(draw, form)
        found.append(made.mutated(draw, data) if draw.chance(3) else data)
    if draw.chance(4):
        found.insert(0, None)
    return found


def _exact(data: bytes) -> list[Any] | None:
    """Return what the library makes of a tuple; None where it takes it for no tuple, or cannot say."""
    try:
        found = msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape", timestamp=0)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return found if isinstance(found, list) else None


_PLAIN: dict[str, Callable[[Any], bool]] = {
    "string": lambda one: isinstance(one, str),
    "varbinary": lambda one: isinstance(one, bytes),
    "boolean": lambda one: isinstance(one, bool),
    "integer": lambda one: isinstance(one, int) and not isinstance(one, bool),
    "unsigned": lambda one: isinstance(one, int) and not isinstance(one, bool),
}


def tuples(draw: Draw) -> None:
    """Tuples → typed columns, against the msgpack library."""
    form = made.fields(draw)
    space = Space(512, 1, "s", "memtx", form)
    layout = table_layout([space], options=_options(draw))
    rows = _rows(draw, form)
    array = pa.array([b"\x90", *rows, b"\x90"], pa.binary()).slice(1, len(rows))
    found = decode_tuples(array, layout)
    found.validate(full=True)
    for data, row in zip(rows, found.to_pylist(), strict=True):
        if data is None or row["_error"] is not None:
            continue
        fields = _exact(data)
        if fields is None:
            continue
        for one, given in zip(form, fields, strict=False):
            if one.type in _PLAIN and given is not None:
                assert row[one.name] is not None, f"{one.type} {given!r} became null"
                assert _PLAIN[one.type](given), f"{one.type} took {given!r}"
                assert row[one.name] == given, f"{given!r} became {row[one.name]!r}"
            if one.type == "double" and isinstance(given, float) and row[one.name] is not None:
                same = row[one.name] == given or (math.isnan(given) and math.isnan(row[one.name]))
                assert same, f"{given!r} became {row[one.name]!r}"
            if isinstance(row[one.name], float) and math.isinf(row[one.name]):
                assert isinstance(given, float), f"{given!r} became an infinity"


def variants(draw: Draw) -> None:
    """Nested values → variants, in several columns and many rows."""
    layout = table_layout([Space(512, 1, "s", "memtx", made.fields(draw, 2))])
    shape = [made.value(draw) for _ in range(3)]
    rows = [
        made.array(
            draw, [draw.choice(shape) if draw.chance(2) else made.value(draw) for _ in range(draw.size(6))]
        )
    ]
    rows += [made.mutated(draw, one) if draw.chance(4) else one for one in rows * draw.size(8)]
    decode_tuples(pa.array(rows, pa.binary()), layout).validate(full=True)


def keys(draw: Draw) -> None:
    """Tuples → canonical keys → keys that order, groups; a canonical key is its own canonical form."""
    spaces = [made.space(draw) for _ in range(draw.size(3) + 1)]
    plan = key_plan(spaces)
    rows = _rows(draw, spaces[0].fields + spaces[0].fields)
    which = pa.array([draw.randrange(len(spaces)) for _ in rows], pa.int32())
    array = pa.array(rows, pa.binary())
    is_tuple = pa.array([draw.chance(2) for _ in rows])
    found = canonical_keys_with_plan(array, plan, which, is_tuple)
    found.validate(full=True)
    own = found.field("key")
    again = canonical_keys_with_plan(own, plan, which, False)
    again_ = again.field("key").to_pylist()
    for number, key, other in zip(which.to_pylist(), own.to_pylist(), again_, strict=True):
        # The shortest form of a number may be of a type that a part of doubles or of decimals does not take.
        if not any(type_family(part.type) in ("double", "decimal") for part in spaces[number].primary_key):
            assert key == other, f"{key!r} is {other!r}"
    order = key_order([directions_of(one) for one in spaces])
    ordered_keys(own, order, np.asarray(which)).validate(full=True)
    canonical_prefixes(array, plan, which).validate(full=True)
    numbers = np.asarray(which)
    groups = group(numbers, own)
    pairs = [None if key is None else (int(n), key) for n, key in zip(numbers, own.to_pylist(), strict=True)]
    assert len(groups) == len({pair for pair in pairs if pair is not None})
    assert groups.find(numbers, own).tolist() == groups.group_numbers.tolist()


def sequences(draw: Draw) -> None:
    """Numbers and texts order as their values do, whatever their encoding; damaged tuples are below all."""
    values = [draw.number() if draw.chance(2) else draw.float() for _ in range(draw.size(12) + 2)]
    sound = [one for one in values if not (isinstance(one, float) and math.isnan(one))]
    tuples_ = [
        b"\x91" + (made.integer(draw, one) if isinstance(one, int) else made.packed(one)) for one in sound
    ]
    found = sequence_bytes(pa.array(tuples_, pa.binary()), 0, [[0]]).to_pylist()
    for a, one in zip(sound, found, strict=True):
        for b, other in zip(sound, found, strict=True):
            assert (a < b) == (one < other), f"{a!r} and {b!r}"
    rows = _rows(draw, made.fields(draw))
    formats = [[draw.randrange(-1, 6) for _ in range(3)] for _ in range(2)]
    which = pa.array([draw.randrange(-1, 3) for _ in rows], pa.int32())
    sequence_bytes(pa.array(rows, pa.binary()), which, formats).validate(full=True)


def operation_list(draw: Draw) -> bytes:
    found = []
    for _ in range(draw.size(6) + 1):
        name = draw.choice("===!!#+-&|^:")
        field: Any = draw.choice((1, 1, 2, 2, 3, -1, "f1", "f1"))
        if draw.chance(4):
            field = draw.choice((0, 5, -2, "f2.a", "[2].b", "f1[1]", draw.text(), draw.number()))
        if name == ":":
            found.append([name, field, draw.randrange(-3, 9), draw.randrange(-3, 9), draw.text()])
        elif name == "#":
            found.append([name, field, draw.randrange(0, 3)])
        else:
            found.append(
                [name, field, draw.choice((draw.number(), draw.float(), draw.text(), [1], {"a": 1}, None))]
            )
    data = made.packed(found)
    return made.mutated(draw, data) if draw.chance(5) else data


def operations(draw: Draw) -> None:
    """UPDATE and UPSERT leave a sound tuple, or an error."""
    space = made.space(draw)
    form = format_of(replace(space, primary_key=(KeyPart(0, "scalar"),)))
    old = made.tuple_of(draw, space.fields)
    old = made.mutated(draw, old) if draw.chance(4) else old
    base = draw.choice((0, 1))
    if draw.chance(2):
        new = apply_update(old, operation_list(draw), base, form)
    else:
        other = made.tuple_of(draw, space.fields)
        new = apply_upsert(None if draw.chance(4) else old, other, operation_list(draw), base, form)
        if new is other:
            return
    assert new[0] >= 0x90, "no array"
    if _exact(old) is not None:
        assert is_sound(new), f"{new.hex()} is no MessagePack"


def is_sound(data: bytes) -> bool:
    unpacker = msgpack.Unpacker(strict_map_key=False, raw=True, max_buffer_size=0)
    unpacker.feed(data)
    try:
        unpacker.skip()
    except (msgpack.OutOfData, ValueError):
        return False
    return bool(unpacker.tell() == len(data))


def formats(draw: Draw) -> None:
    """Definitions as rows of `_space` and `_index` give them, changed, and tuples under them."""
    space_row, index_row = made.space_row(draw), made.index_row(draw)
    for _ in range(draw.randrange(3)):
        space_row = made.mixed_up(draw, space_row)
    for _ in range(draw.randrange(3)):
        index_row = made.mixed_up(draw, index_row)
    space = space_of(
        space_row if isinstance(space_row, list) else [space_row],
        index_row if isinstance(index_row, list) else [index_row],
    )
    json.dumps(asdict(space))
    space.name.encode()
    check_space(space)
    rows = pa.array(_rows(draw, space.fields), pa.binary())
    found = decode_tuples(rows, build_table_layout([space], _types(), Spaces()))
    found.validate(full=True)
    canonical_keys_with_plan(rows, key_plan([space])).validate(full=True)


def _types() -> Any:
    from config.deployment import Types

    return Types()


def _row(draw: Draw, fields: Any, space_id: int) -> dict[str, Any]:
    data = made.packed(fields)
    data = made.mutated(draw, data) if draw.chance(6) else data
    kind = draw.choice(
        ("INSERT", "INSERT", "REPLACE", "UPDATE", "UPSERT", "DELETE", "SELECT", "NOP", "TYPE_200")
    )
    row: dict[str, Any] = {"type": kind, "space_id": space_id, "index_base": draw.choice((0, 1))}
    key = fields[: 1 + (space_id == SystemSpace.INDEX)] if isinstance(fields, list) else fields
    row["key"] = made.packed(key) if kind in ("UPDATE", "DELETE") or draw.chance(12) else None
    row["tuple"] = data if kind in ("INSERT", "REPLACE", "UPSERT") or draw.chance(12) else None
    operations_ = [
        ["=", draw.randrange(8), draw.choice((made.odd(draw), fields))] for _ in range(draw.randrange(3))
    ]
    row["operations"] = made.packed(operations_) if kind in ("UPDATE", "UPSERT") or draw.chance(12) else None
    row["body"] = None
    return row


def control(draw: Draw) -> None:
    """Rows of system spaces in any order: nothing but a fault comes of an odd one."""
    makers = (
        (SystemSpace.SPACE, made.space_row),
        (SystemSpace.INDEX, made.index_row),
        (SystemSpace.CLUSTER, made.cluster_row),
        (SystemSpace.TRUNCATE, lambda one: [one.choice((512, 513, 600)), one.randrange(9)]),
    )
    rows = []
    for _ in range(draw.size(12) + 2):
        space_id, make = draw.choice(makers)
        fields: Any = make(draw)
        for _ in range(draw.randrange(3) if draw.chance(2) else 0):
            fields = made.mixed_up(draw, fields)
        rows.append(_row(draw, fields, space_id))
    known = {512: SpaceDefinition(made.packed(made.space_row(draw)), {0: made.packed(made.index_row(draw))})}
    control_rows = [control_row(row, 10 * (i + 1)) for i, row in enumerate(rows)]
    found = apply_control_rows(known, {1: "a0000000-0000-4000-8000-000000000001"}, control_rows, frozenset())
    for one in found.registrations:
        assert 0 < one.replica_id < 32
        assert one.uuid is None or len(one.uuid.encode("ascii")) == 36
    for rows_ in (*found.spaces.values(), *(one.definition for one in found.changes)):
        space = rows_.decoded()
        json.dumps(asdict(space)).encode()
        space.name.encode()
    before = SpacesBefore(known, {}, {512: "s"}, {})
    history = build_history({1: before}, {1: found.changes}, build_router(Spaces(), check_space))
    for refusal in history.refusals:
        refusal.name.encode()
        refusal.reason.encode()
    for row in rows:
        if row["space_id"] == SystemSpace.CLUSTER:
            id_assignment_of({**row, "position": 0})
            expelled_replica_id(row)


def limbo(draw: Draw) -> None:
    """Rows that settle synchronous transactions, with any body."""
    body: Any = {2: draw.randrange(32), 3: draw.number() & (2**63 - 1), 0x53: 1}
    for _ in range(draw.randrange(3)):
        body = made.mixed_up(draw, body)
    data = made.packed(body)
    data = made.mutated(draw, data) if draw.chance(3) else data
    kind = draw.choice(("RAFT_CONFIRM", "RAFT_ROLLBACK", "RAFT_PROMOTE", "RAFT_DEMOTE"))
    row = replace(control_row({"type": kind, "body": data}, 10), body=data)
    settle(Summary(1, control=(row,)), {}, {0: None}, None, "hold", lambda *_: False)


def vylog(draw: Draw) -> None:
    """Read records of a `.vylog`."""
    records: list[Any] = [
        [0, {0: 1, 5: 0, 6: 512}],
        [2, {0: 1, 1: 2}],
        [5, {0: 1, 2: 3, 9: 7}],
        [8, {1: 2, 2: 3, 8: 4}],
        [draw.choice((1, 3, 9, 14, 99)), {0: draw.randrange(3), 1: 2, 8: 4}],
        [11, {}],
    ]
    records = [made.mixed_up(draw, one) if draw.chance(12) else one for one in records]
    data = [made.packed(one) for one in records]
    data = [made.mutated(draw, one) if draw.chance(30) else one for one in data]
    trees_at_checkpoint(data, "x.vylog")


def bodies(draw: Draw) -> None:
    """Bodies of DELETE_RANGE and of types that are not known."""
    body: Any = {0x10: 512, 0x37: [1], 0x38: [draw.number(), draw.text()], 0x11: draw.choice((0, 1))}
    body = made.mixed_up(draw, body) if draw.chance(2) else body
    data = [made.packed(body), None, made.mutated(draw, made.packed(body))]
    found = delete_ranges(pa.array(data, pa.binary()))
    space = made.space(draw)
    for name in ("begin", "end"):
        prefixes = canonical_prefixes(found.field(name), key_plan([space])).field("key")
        ordered_keys(prefixes, key_order([directions_of(space)]), np.zeros(3, np.int32)).validate(full=True)


def system_tuples(draw: Draw) -> None:
    """Any bytes as a system tuple."""
    data = made.value(draw) if draw.chance(2) else made.packed(made.space_row(draw))
    unpacked(made.mutated(draw, data))


def extremes(draw: Draw) -> None:
    """Few rows and many: plans of many spaces, keys of many parts, wide formats, damaged lengths."""
    count = draw.choice((1, 50, 255, 256))
    parts = tuple(KeyPart(draw.randrange(300), draw.choice(made.KEY_TYPES)) for _ in range(count))
    space = Space(512, 1, "s", "memtx", made.fields(draw, 200), parts)
    tuple_ = made.array(draw, [made.scalar(draw) for _ in range(300)])
    rows = pa.array(
        [tuple_, made.mutated(draw, tuple_), b"\xdd\xff\xff\xff\xff", struct.pack(">BI", 0xDD, 2**31)]
    )
    decode_tuples(rows, table_layout([space])).validate(full=True)
    try:
        plan = key_plan([space])
    except UnsupportedError:
        plan = key_plan(
            [replace(space, primary_key=tuple(KeyPart(i, "scalar") for i in range(min(count, 255))))]
        )
    canonical_keys_with_plan(rows, plan).validate(full=True)
    sequence_bytes(rows, 0, [[draw.randrange(300) for _ in range(20)]]).validate(full=True)

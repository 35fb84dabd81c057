"""One row: every field in any order and width, everything that is no xrow, and bytes at random."""

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sources.xlog.format.arrays import Ints
from sources.xlog.format.damage import WalkStatus
from sources.xlog.format.kernels import row as kernels
from tests.sources.xlog import plain
from tests.sources.xlog.samples import guarded

BITS = {
    "type": kernels.TYPE,
    "replica_id": kernels.REPLICA_ID,
    "group_id": kernels.GROUP_ID,
    "lsn": kernels.LSN,
    "timestamp": kernels.TIMESTAMP,
    "space_id": kernels.SPACE_ID,
    "index_base": kernels.INDEX_BASE,
}
FLAGS = {"is_commit": kernels.COMMIT, "wait_sync": kernels.WAIT_SYNC, "wait_ack": kernels.WAIT_ACK}
BINARY = {"key": kernels.KEY, "tuple": kernels.TUPLE, "operations": kernels.OPERATIONS, "body": kernels.BODY}


def walk(data: bytes, numbers: Ints, field_bounds: Ints) -> tuple[int, int]:
    end, row_bits = kernels.walk_row(guarded(data).ctypes.data, 0, len(data), numbers, field_bounds)
    return int(end), int(row_bits)


def walked(data: bytes) -> dict[str, Any] | WalkStatus:
    """Return a row's columns as the plain reader names them, or what is wrong."""
    numbers, field_bounds = np.full(16, -77, np.int64), np.full(8, -77, np.int64)
    end, row_bits = walk(data, numbers, field_bounds)
    if end < 0:
        return WalkStatus(end)
    assert end <= len(data)
    columns: dict[str, Any] = {
        name: int(numbers[bit]) if (row_bits >> bit) & 1 else None for name, bit in BITS.items()
    }
    columns |= {name: bool((row_bits >> bit) & 1) for name, bit in FLAGS.items()}
    columns["tsn"] = int(numbers[kernels.TSN]) if (row_bits >> kernels.LSN) & 1 else None
    for index, (name, bit) in enumerate(BINARY.items()):
        there = (row_bits >> bit) & 1
        assert not there or 0 <= field_bounds[2 * index] <= field_bounds[2 * index + 1] <= len(data)
        columns[name] = data[field_bounds[2 * index] : field_bounds[2 * index + 1]] if there else None
    return columns


def inside(found: dict[str, Any] | WalkStatus, data: bytes) -> bool:
    """Whether bytes were refused by a known reason, or all that was found in them is a part of them."""
    if isinstance(found, WalkStatus):
        return found in WalkStatus
    return all(found[name] is None or found[name] in data for name in BINARY)


def expected(data: bytes) -> dict[str, Any]:
    row = next(plain.rows_of(data))
    code = msgpack.Unpacker(strict_map_key=False, raw=True)
    code.feed(data)
    row["type"] = code.unpack().get(0)
    if row["timestamp"] is not None:
        row["timestamp"] = round((row["timestamp"] - plain.EPOCH).total_seconds() * 1e6)
    return row


def uint(draw: st.DrawFn, value: int) -> bytes:
    """Return a number in any width that holds it."""
    widths = [(0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)]
    ways = [bytes([head]) + value.to_bytes(size, "big") for head, size in widths if value < 1 << 8 * size]
    return draw(st.sampled_from([value.to_bytes(1, "big"), *ways] if value < 0x80 else ways))


def packed(draw: st.DrawFn, pairs: list[tuple[int, bytes]], others: list[tuple[int, bytes]]) -> bytes:
    """Return a map of the pairs and some unknown ones, in any order and any width of head and keys."""
    chosen = draw(st.permutations(pairs + others))
    heads = [
        bytes([0x80 | len(chosen)]),
        b"\xde" + len(chosen).to_bytes(2, "big"),
        b"\xdf" + len(chosen).to_bytes(4, "big"),
    ]
    assert len(chosen) < 16
    return draw(st.sampled_from(heads)) + b"".join(uint(draw, key) + value for key, value in chosen)


ANYTHING = st.sampled_from([None, 1, -1, 1.5, "x" * 40, b"y", [1, [2]], {1: {2: 3}}]).map(msgpack.packb)
ARRAYS = st.lists(st.integers() | st.text(max_size=5), max_size=20).map(
    lambda fields: msgpack.packb([v if isinstance(v, str) else v % 2**64 for v in fields])
)


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    """Draw a row with any subset of all keys."""
    kind = draw(st.sampled_from([0, 2, 3, 4, 5, 9, 12, 17, 18, 29, 30, 31, 40, 41, 100, 102, 200, 2**31 - 1]))
    numbers = {
        2: st.integers(0, 31),
        3: st.integers(0, 2**63 - 1),
        7: st.integers(0, 2**31 - 1),
        8: st.integers(0, 2**64 - 1),
        9: st.integers(0, 2**16),
    }
    pairs = [(0, uint(draw, kind))]
    pairs += [(key, uint(draw, draw(values))) for key, values in numbers.items() if draw(st.booleans())]
    if draw(st.booleans()):
        pairs.append((4, msgpack.packb(draw(st.floats(0, 4e9)))))
    others = draw(
        st.lists(st.tuples(st.sampled_from([1, 5, 6, 10, 11, 0x7F, 0x100, 2**40]), ANYTHING), max_size=3)
    )
    data = packed(draw, pairs, others)
    if kind == 12 or draw(st.integers(0, 9)) == 0:
        return data
    fields = [(key, draw(ARRAYS)) for key in (0x20, 0x21, 0x28) if draw(st.booleans())]
    fields += [
        (key, uint(draw, draw(st.integers(0, 2**31 - 1)))) for key in (0x10, 0x15) if draw(st.booleans())
    ]
    unknown = [2, 3, 0x11, 0x26, 0x2A, 0x2C, 0x2D, 0x36, 0x53, 2**40]
    others = draw(st.lists(st.tuples(st.sampled_from(unknown), ANYTHING), max_size=3))
    return data + packed(draw, fields, others)


@example(b"\x81\x00\x04\x83\x28\x91\x00\x21\x90\x20\x90")
@example(b"\x81\x00\x04\x83\x21\x90\x28\x91\x00\x20\x90")
@given(rows())
def test_any_row_is_what_the_plain_reader_says(data: bytes) -> None:
    assert walked(data) == {name: value for name, value in expected(data).items() if name != "row"}


@given(rows())
def test_an_incomplete_row_is_refused(data: bytes) -> None:
    header = msgpack.Unpacker(strict_map_key=False)
    header.feed(data)
    header.skip()
    for size in range(len(data)):
        if size != header.tell():
            assert walked(data[:size]) in (WalkStatus.ROW_HEADER, WalkStatus.ROW_BODY)


@given(rows(), st.integers(0, 10_000), st.integers(0, 255))
def test_a_wrong_byte_leads_nowhere_outside(data: bytes, at: int, byte: int) -> None:
    changed = data[: at % len(data)] + bytes([byte]) + data[at % len(data) + 1 :]
    assert inside(walked(changed), changed)


@given(st.binary(max_size=80))
@example(b"\xdf\xff\xff\xff\xff" + bytes(20))
@example(b"\x81\x00\x02\xdf\xff\xff\xff\xff" + bytes(20))
def test_no_bytes_lead_outside(data: bytes) -> None:
    assert inside(walked(data), data)


def header(**more: object) -> bytes:
    return bytes(msgpack.packb({0: 2, 2: 1, 3: 7, 4: 1.5, **{int(k[1:]): v for k, v in more.items()}}))


BODY = msgpack.packb({0x10: 512, 0x21: [1]})


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", WalkStatus.ROW_HEADER),
        (b"\x01", WalkStatus.ROW_HEADER),
        (msgpack.packb([0, 2]), WalkStatus.ROW_HEADER),
        (msgpack.packb({"0": 2}), WalkStatus.ROW_HEADER),
        (msgpack.packb({-1: 2}), WalkStatus.ROW_HEADER),
        (header(_0="x"), WalkStatus.ROW_HEADER),
        (header(_2=-1), WalkStatus.ROW_HEADER),
        (header(_3=1.5), WalkStatus.ROW_HEADER),
        (header(_4=1), WalkStatus.ROW_HEADER),
        (header(_7=None), WalkStatus.ROW_HEADER),
        (header(_8=[]), WalkStatus.ROW_HEADER),
        (header(_9=True), WalkStatus.ROW_HEADER),
        (header(_0=2**31), WalkStatus.ROW_RANGE),
        (header(_2=32), WalkStatus.ROW_RANGE),
        (header(_2=2**31), WalkStatus.ROW_RANGE),
        (header(_3=2**63), WalkStatus.ROW_RANGE),
        (header(_4=float("nan")), WalkStatus.ROW_RANGE),
        (header(_4=float("inf")), WalkStatus.ROW_RANGE),
        (header(_4=1e13), WalkStatus.ROW_RANGE),
        (header(_7=2**40), WalkStatus.ROW_RANGE),
        (header() + b"\x01", WalkStatus.ROW_BODY),
        (header() + b"\x91\x01", WalkStatus.ROW_BODY),
        (header() + msgpack.packb({0x10: "x"}), WalkStatus.ROW_BODY),
        (header() + msgpack.packb({0x10: 2**31}), WalkStatus.ROW_RANGE),
        (header() + msgpack.packb({0x15: -1}), WalkStatus.ROW_BODY),
        (header() + msgpack.packb({0x15: 2**32}), WalkStatus.ROW_RANGE),
        (header() + msgpack.packb({0x20: {}}), WalkStatus.ROW_BODY),
        (header() + msgpack.packb({0x21: "x"}), WalkStatus.ROW_BODY),
        (header() + msgpack.packb({0x28: 1}), WalkStatus.ROW_BODY),
        (header() + msgpack.packb({"x": 1}), WalkStatus.ROW_BODY),
        (header() + b"\x81\x21\x92\x01", WalkStatus.ROW_BODY),
        (header(_0=40) + b"\xc1", WalkStatus.ROW_BODY),
    ],
)
def test_what_tarantool_refuses_is_refused(data: bytes, status: WalkStatus) -> None:
    assert walked(data) == status


def test_a_local_row_inside_a_global_transaction_wraps_around() -> None:
    found = walked(msgpack.packb({0: 2, 7: 1, 3: 5, 8: 2**64 - 100}) + BODY)
    assert isinstance(found, dict)
    assert (found["lsn"], found["tsn"], found["replica_id"], found["is_commit"]) == (5, 105, None, False)


def test_operations_of_update_and_of_upsert() -> None:
    update = walked(header(_0=4) + msgpack.packb({0x20: [1], 0x21: [["+", 1, 2]]}))
    upsert = walked(header(_0=9) + msgpack.packb({0x21: [1], 0x28: [["+", 1, 2]]}))
    assert isinstance(update, dict)
    assert isinstance(upsert, dict)
    operations = msgpack.packb([["+", 1, 2]])
    assert [update[name] for name in BINARY] == [b"\x91\x01", None, operations, None]
    assert [upsert[name] for name in BINARY] == [None, b"\x91\x01", operations, None]


def test_a_new_tuple_with_operations_keeps_the_whole_body() -> None:
    body = msgpack.packb({0x10: 512, 0x20: [1], 0x21: [["+", 1, 2]], 0x2C: [1, 1], 0x2D: [1, 3]})
    update = walked(header(_0=4) + body)
    assert isinstance(update, dict)
    assert [update[name] for name in BINARY] == [b"\x91\x01", None, msgpack.packb([["+", 1, 2]]), body]
    replace = walked(header(_0=3) + msgpack.packb({0x10: 512, 0x21: [1, 3], 0x2D: [1, 3]}))
    assert isinstance(replace, dict)
    assert [replace[name] for name in BINARY] == [None, msgpack.packb([1, 3]), None, None]


@pytest.mark.parametrize("kind", [17, 18, 19, 29])
@pytest.mark.parametrize("content", [{0x10: 512, 0x20: "no array", 0x21: [1]}, ["no map"]])
def test_changes_of_later_servers_keep_their_whole_body(kind: int, content: Any) -> None:
    body = msgpack.packb(content)
    found = walked(header(_0=kind) + body)
    assert isinstance(found, dict)
    assert [found[name] for name in BINARY] == [None, None, None, body]
    assert found["space_id"] == (512 if isinstance(content, dict) else None)


def test_protocol_rows_keep_their_whole_body() -> None:
    body = msgpack.packb({2: 1, 3: 99, 0x20: [1]})
    found = walked(header(_0=40) + body)
    assert isinstance(found, dict)
    assert [found[name] for name in BINARY] == [None, None, None, body]


def test_a_nop_has_no_body_and_the_next_row_follows() -> None:
    numbers, field_bounds = np.zeros(16, np.int64), np.zeros(8, np.int64)
    data = header(_0=12)
    end, row_bits = walk(data + header() + BODY, numbers, field_bounds)
    assert (end, row_bits >> kernels.KEY & 15) == (len(data), 0)

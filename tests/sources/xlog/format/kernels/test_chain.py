"""From block to block: checksums, every cut, every wrong header, magics."""

import random

import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from sources.xlog.format.arrays import Blocks
from sources.xlog.format.block import BLOCK_LIMIT, EOF_MARKER, encode_block
from sources.xlog.format.damage import WalkStatus
from sources.xlog.format.kernels import chain
from sources.xlog.format.kernels.chain import ZSTD_BLOCK_MAX, decompressed_bound
from sources.xlog.format.kernels.native import HAS_CRC32C
from tests.sources.xlog import plain
from tests.sources.xlog.samples import blocks, guarded


@given(st.binary(max_size=100), st.integers(0, 9))
@example(bytes(50), 0)
@example(b"\xff" * 64, 0)
def test_both_checksums_are_the_librarys(data: bytes, begin: int) -> None:
    begin = min(begin, len(data))
    expected = plain.crc32c(data[begin:])
    assert chain.crc_by_tables(guarded(data).ctypes.data, begin, len(data)) == expected
    assert chain.crc_of(guarded(data).ctypes.data, begin, len(data)) == expected


def test_the_fast_checksum_is_used_where_the_processor_has_it() -> None:
    assert chain.crc_of is (chain.crc_by_instruction if HAS_CRC32C else chain.crc_by_tables)


def walk(
    data: bytes, stop: int | None = None, limit: int = BLOCK_LIMIT, check: bool = True, room: int = 64
) -> tuple[int, int, int, Blocks]:
    found = np.full((4, room), -7, np.int64)
    count, position, status = chain.walk_blocks(
        guarded(data), 0, len(data), len(data) if stop is None else stop, limit, check, found
    )
    return count, position, status, found[:, :count]


def test_the_places_of_blocks() -> None:
    parts = blocks(5)
    count, position, status, found = walk(b"".join(parts))
    starts = np.cumsum([0, *(len(part) for part in parts)])
    assert (count, position, status) == (5, starts[-1], WalkStatus.GROUP)
    assert found[chain.BLOCK_START].tolist() == starts[:-1].tolist()
    assert found[chain.BLOCK_BEGIN].tolist() == (starts[:-1] + 19).tolist()
    assert found[chain.BLOCK_END].tolist() == starts[1:].tolist()
    assert found[chain.BLOCK_ZSTD].tolist() == [0, 0, 1, 0, 0]


def test_blocks_from_stop_on_are_left() -> None:
    parts = blocks(3)
    for stop in range(1, sum(map(len, parts)) + 1):
        expected = sum(start < stop for start in np.cumsum([0, *(len(part) for part in parts[:-1])]))
        assert walk(b"".join(parts), stop)[0] == expected


def test_the_walk_ends_when_the_matrix_is_full() -> None:
    parts = blocks(4)
    assert walk(b"".join(parts), room=3)[:3] == (3, sum(map(len, parts[:3])), WalkStatus.GROUP)


@pytest.mark.parametrize("check", [True, False])
def test_a_walk_over_a_truncated_buffer_stops_at_the_incomplete_block(check: bool) -> None:
    parts = blocks(3)
    data = b"".join(parts)
    starts = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    for size in range(len(data)):
        count, position, status, _ = walk(data[:size], check=check)
        whole = sum(start <= size for start in starts[1:])
        if check or size < starts[whole] + 19:
            assert (count, position) == (whole, starts[whole])
            assert status == (WalkStatus.GROUP if size == starts[whole] else WalkStatus.PART)
        else:
            assert (count, position, status) == (whole + 1, starts[whole + 1], WalkStatus.GROUP)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (EOF_MARKER, WalkStatus.EOF),
        (bytes(4), WalkStatus.ZEROS),
        (b"\xd5\xba\x0b\xac" + bytes(40), WalkStatus.MAGIC),
        (b"XLOG", WalkStatus.MAGIC),
        (bytes.fromhex("d5ba0bab a1 00 00") + bytes(40), WalkStatus.LENGTH),
        (bytes.fromhex("d5ba0bab c1 00 00") + bytes(40), WalkStatus.LENGTH),
        (bytes.fromhex("d5ba0bab 05 c0 00") + bytes(40), WalkStatus.CHECKSUM_FIELD),
        (bytes.fromhex("d5ba0bab 05 00 e0") + bytes(40), WalkStatus.CHECKSUM_FIELD),
        (bytes.fromhex("d5ba0bab 05 00 00 aa") + bytes(40), WalkStatus.PADDING),
        (bytes.fromhex("d5ba0bab cf ffffffffffffffff 00 00 a3 000000"), WalkStatus.TOO_LONG),
        (bytes.fromhex("d5ba0bab ce 40000001 00 00 a7") + bytes(40), WalkStatus.TOO_LONG),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_the_status_of_bytes_that_are_no_block(data: bytes, status: WalkStatus, check: bool) -> None:
    assert walk(data, check=check)[:3] == (0, 0, status)
    good = encode_block(b"\x80")
    assert walk(good + data, check=check)[:3] == (1, len(good), status)


def test_the_limit_is_inclusive() -> None:
    data = encode_block(bytes(100))
    assert walk(data, limit=100)[2] == WalkStatus.GROUP
    assert walk(data, limit=99)[2] == WalkStatus.TOO_LONG


def test_every_flipped_bit_of_the_data_or_its_checksum_is_seen() -> None:
    data = encode_block(bytes(range(40)))
    checksum_end = 4 + 1 + 1 + 5
    for bit in range(8 * 6, 8 * len(data)):
        if checksum_end <= bit // 8 < 19:
            continue
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert walk(bytes(flipped))[2] < 0


@given(st.binary(max_size=60))
def test_no_bytes_lead_outside_the_buffer(data: bytes) -> None:
    count, position, _, found = walk(b"\xd5\xba\x0b\xab" + data)
    assert 0 <= position <= len(data) + 4
    assert count == 0 or found[chain.BLOCK_END, -1] == position


@given(
    st.binary(max_size=30),
    st.binary(max_size=30),
    st.sampled_from([b"\xd5\xba\x0b\xab", b"\xd5\xba\x0b\xba"]),
)
@example(b"\xd5\xd5\xba\x0b", b"", b"\xd5\xba\x0b\xab")
@example(b"\xd5\xba", b"", b"\xd5\xba\x0b\xba")
def test_the_first_magic_is_found(before: bytes, after: bytes, magic: bytes) -> None:
    data = before + magic + after
    magics = [data.find(m) for m in (b"\xd5\xba\x0b\xab", b"\xd5\xba\x0b\xba") if m in data]
    assert chain.find_magic(guarded(data), 0, len(data)) == min(magics)
    assert chain.find_magic(guarded(data), 0, min(magics) + 3) == -1
    assert chain.find_magic(guarded(data), min(magics), len(data)) == min(magics)


def bound(frame: bytes) -> int:
    return int(decompressed_bound(guarded(frame), 0, len(frame)))


def content(kind: str, size: int) -> bytes:
    if kind == "random":
        return random.Random(size).randbytes(size)
    return bytes(size) if kind == "zeros" else b"".join(b"row %d," % k for k in range(size // 8))


@pytest.mark.parametrize("kind", ["random", "zeros", "rows"])
@pytest.mark.parametrize("size", [0, 1, 100, 131071, 131072, 131073, 400_000])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("summed", [False, True])
def test_the_bound_holds_the_content(kind: str, size: int, known: bool, summed: bool) -> None:
    data = content(kind, size)
    compressor = zstandard.ZstdCompressor(write_content_size=known, write_checksum=summed)
    frame = compressor.compress(data)
    assert len(data) <= bound(frame) <= len(data) + ZSTD_BLOCK_MAX


def test_a_bomb_is_known_before_it_is_decompressed() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(50 << 20))
    assert len(frame) < 10_000
    assert bound(frame) >= 50 << 20


@given(st.binary(max_size=2000), st.booleans(), st.booleans(), st.integers(0, 20))
def test_a_truncated_frame_is_not_whole(data: bytes, known: bool, summed: bool, step: int) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=known, write_checksum=summed)
    frame = compressor.compress(data)
    for size in range(0, len(frame), 1 + step):
        assert bound(frame[:size]) == -1
    assert bound(frame + b"\x00") == -1
    assert bound(frame + frame) == -1


@given(st.binary(max_size=80))
def test_other_bytes_are_no_frame(data: bytes) -> None:
    assert bound(data) == -1
    assert bound(b"\x28\xb5\x2f\xfd" + data) >= -1


def test_a_reserved_block_type_is_refused() -> None:
    assert bound(bytes.fromhex("28b52ffd 00 58 07 00 00")) == -1


def test_a_dictionary_id_is_passed_over() -> None:
    frame = bytes.fromhex("28b52ffd 03 58 01020304 11 00 00 6869")
    assert bound(frame) == 2
    assert bound(frame[:-1]) == -1

"""The outside of zstd frames: whole or not, and how large at most."""

from __future__ import annotations

import random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sources.xlog.format.kernels.frame import ZSTD_BLOCK_MAX, frame_bound
from tests.sources.xlog.samples import guarded


def bound(frame: bytes) -> int:
    return int(frame_bound(guarded(frame), 0, len(frame)))


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

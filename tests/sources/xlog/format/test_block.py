"""Blocks: golden bytes of a real server, encoding, checksums, errors."""

import pickle

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from schemas import errors
from sources.xlog.format import block
from sources.xlog.format.block import checksum, decompress, encode_block
from sources.xlog.format.damage import WalkStatus, damage_error
from sources.xlog.format.kernels.chain import BLOCK_BEGIN, BLOCK_END, BLOCK_ZSTD, walk_blocks
from tests.sources.xlog import plain

ROWS = bytes.fromhex("8400030201030104cb41dac053244036248210cd0138219501 00a4726f6c651f04".replace(" ", ""))
GOLDEN = bytes.fromhex("d5ba0bab2100cea3e4f721a700000000000000") + ROWS
"""The first block of a log of Tarantool 2.6.0: a DELETE and more of `_priv`."""


def test_a_plain_block_is_byte_for_byte_tarantools() -> None:
    assert encode_block(ROWS[:0x21]) == GOLDEN[: 19 + 0x21]


@given(st.binary(max_size=300))
def test_the_checksum_starts_at_zero_and_is_not_inverted(data: bytes) -> None:
    assert checksum(data) == plain.crc32c(data)


def walked(data: bytes) -> tuple[int, int, int, np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    blocks = np.empty((4, 4), np.int64)
    buffer = np.frombuffer(data, np.uint8).copy()
    count, position, status = walk_blocks(buffer, 0, len(data), len(data), 1 << 30, True, blocks)
    return count, position, status, blocks


@pytest.mark.parametrize("size", [0, 1, 127, 128, 255, 256, 65535, 65536, 70000])
@pytest.mark.parametrize("compress", [False, True])
def test_every_length_of_a_block_reads_back(size: int, compress: bool) -> None:
    rows = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    data = encode_block(rows, compress)
    count, position, status, blocks = walked(data)
    assert (count, position, status) == (1, len(data), WalkStatus.GROUP)
    found = data[blocks[BLOCK_BEGIN, 0] : blocks[BLOCK_END, 0]]
    assert bool(blocks[BLOCK_ZSTD, 0]) == compress
    if compress:
        found = zstandard.ZstdDecompressor().decompressobj().decompress(found)
    assert found == rows


@pytest.mark.parametrize(("size", "magic"), [(2048, "d5ba0bab"), (2049, "d5ba0bba")])
def test_only_what_is_above_2_kib_is_compressed(size: int, magic: str) -> None:
    assert encode_block(bytes(size)).startswith(bytes.fromhex(magic))


def test_frames_have_no_content_size_as_tarantools_have_none() -> None:
    data = encode_block(bytes(5000))
    parameters = zstandard.get_frame_parameters(data[block.FIXED_HEADER_SIZE :])
    assert parameters.content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert not parameters.has_checksum


def test_decompression_writes_nothing_behind_its_room() -> None:
    frame = encode_block(bytes(5000), compress=True)[block.FIXED_HEADER_SIZE :]
    out = bytearray(b"\xff" * 200)
    size = decompress(memoryview(frame), memoryview(out)[:100], zstandard.ZstdDecompressor())
    assert (size, bytes(out)) == (100, bytes(100) + b"\xff" * 100)


@pytest.mark.parametrize("status", [status for status in WalkStatus if status < 0])
def test_every_damage_has_an_error_that_travels(status: WalkStatus) -> None:
    error = damage_error(status, "f.xlog", 42, 3)
    assert isinstance(error, errors.XlogError)
    assert error.fields["file"] == "f.xlog"
    assert error.fields["offset"] == 42
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (WalkStatus.MAGIC, errors.XlogMagicError),
        (WalkStatus.AFTER_EOF, errors.XlogMagicError),
        (WalkStatus.LENGTH, errors.XlogHeaderError),
        (WalkStatus.TOO_LONG, errors.XlogHeaderError),
        (WalkStatus.CHECKSUM, errors.XlogChecksumError),
        (WalkStatus.FRAME, errors.XlogCompressionError),
        (WalkStatus.TOO_BIG, errors.XlogCompressionError),
        (WalkStatus.ROW_BODY, errors.XlogRowError),
        (WalkStatus.TRUNCATED, errors.XlogTruncatedError),
    ],
)
def test_the_class_of_an_error_says_what_is_wrong(status: WalkStatus, kind: type[errors.XlogError]) -> None:
    assert type(damage_error(status, "f", 0)) is kind


def test_a_block_that_no_header_can_say_is_refused() -> None:
    with pytest.raises(errors.XlogHeaderError):
        block._packed_uint(2**32)

"""One block of a log file: the unit that Tarantool writes, checks and compresses as a whole.

    bytes   what
    4       magic: d5 ba 0b ab plain, d5 ba 0b ba zstd; d5 10 ad ed alone is the end of the file
    1..5    mp_uint: length of what follows the fixed header, in bytes
    1..5    mp_uint: checksum of the block before; always 0
    1..5    mp_uint: checksum of this block's bytes as they are in the file (compressed)
    0..12   mp_str of padding, so that the fixed header is always 19 bytes long
    length  rows, one after another (`kernels.row`), or a zstd frame of them

The checksum is CRC-32C that starts at 0 and is not inverted at the end. A block has whole transactions: none spans
two blocks. Four zero bytes where a block must start are space that is allocated but not written yet.

Source: `struct xlog_fixheader`, `xlog_fixheader_decode`, `xlog_tx_write_plain`, `xlog_tx_write_zstd` and
`xlog_cursor_next_tx` in Tarantool's `src/box/xlog.c`; `crc32_calc` in `src/lib/core/crc32.c`.
This module encodes and decompresses blocks. `kernels.chain` walks from block to block.
"""

from __future__ import annotations

import google_crc32c
import zstandard

from schemas.errors import XlogHeaderError

MAGIC_PLAIN = 0xD5BA0BAB
MAGIC_ZSTD = 0xD5BA0BBA
MAGIC_EOF = 0xD510ADED
MAGIC_SIZE = 4
EOF_MARKER = MAGIC_EOF.to_bytes(MAGIC_SIZE, "big")
CHECKSUM_MASK = 0xFFFFFFFF
MP_UINT32_MAX_SIZE = 5  # 0xCE and four bytes
FIXED_HEADER_SIZE = MAGIC_SIZE + 3 * MP_UINT32_MAX_SIZE

COMPRESS_THRESHOLD = 2 * 1024
"""Rows of more bytes are compressed (`XLOG_TX_COMPRESS_THRESHOLD`)."""

FLUSH_THRESHOLD = 128 * 1024
"""A writer ends a block that has reached this size (`XLOG_TX_AUTOCOMMIT_THRESHOLD`)."""

ZSTD_LEVEL = 3
"""The level at which Tarantool compresses (`xlog_opts_default`)."""

BLOCK_LIMIT = 1 << 30
"""The longest block that is read or written, in bytes, both in the file and decompressed: the default of the
option `max_block_bytes` of the job, the daemon and the relay."""


def checksum(data: bytes | memoryview) -> int:
    """Return the checksum of a block's bytes: CRC-32C from 0, not inverted."""
    return int(google_crc32c.extend(CHECKSUM_MASK, bytes(data))) ^ CHECKSUM_MASK


def encode_block(rows: bytes, compress: bool | None = None) -> bytes:
    """Return a block of encoded rows.

    Args:
        rows: Whole transactions: the rows of `rows.encode_row`, one after another.
        compress: Whether to compress the rows. By default, rows of more than `COMPRESS_THRESHOLD` bytes are compressed,
            as Tarantool does, unless compression makes them longer.
    """
    is_free = compress is None
    if compress is None:
        compress = len(rows) > COMPRESS_THRESHOLD
    data, magic = rows, MAGIC_PLAIN
    if compress:
        # Tarantool's frames carry neither their content's size nor a checksum of it.
        frame = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=False, write_checksum=False)
        data, magic = frame.compress(rows), MAGIC_ZSTD
        if is_free and len(data) > len(rows):
            # No block is longer in the file than its rows are, so one limit applies to both.
            data, magic = rows, MAGIC_PLAIN
    header = (
        magic.to_bytes(MAGIC_SIZE, "big")
        + _packed_uint(len(data))
        + _packed_uint(0)
        + _packed_uint(checksum(data))
    )
    return header + _padding(FIXED_HEADER_SIZE - len(header)) + data


def decompress(frame: memoryview, out: memoryview, decompressor: zstandard.ZstdDecompressor) -> int:
    """Decompress one zstd frame and return the number of bytes written.

    Args:
        frame: A complete frame (checked by `chain.decompressed_bound`).
        out: The buffer for the rows. Rows that do not fit are not written.
        decompressor: Reused for every block.

    Raises:
        zstandard.ZstdError: If the frame is damaged.
    """
    return int(decompressor.stream_reader(frame).readinto(out))


def _packed_uint(value: int) -> bytes:
    if value < 0x80:
        return bytes([value])
    for head, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4)):
        if value < 1 << 8 * size:
            return bytes([head]) + value.to_bytes(size, "big")
    raise XlogHeaderError(f"{value} does not fit a block's header")


def _padding(size: int) -> bytes:
    return bytes([0xA0 | size - 1]) + bytes(size - 1) if size else b""

"""Allocates the memory of one batch's typed columns for `udfs.tuples.kernels.columns`, and wraps it as Arrow arrays.

Buffers of a fixed size per row (values, offsets, validity) share one block; each column of text or variants has its
own content buffers, which grow when the decoding loop (`udfs.tuples.kernels.walk`) runs out of room.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import UnsupportedError
from schemas.field_types import ColumnStorage
from schemas.layout import VARIANT_ARROW
from udfs.buffers import OFFSET_MAX, SMALLER_BATCHES_ADVICE
from udfs.kernels.keyed_hash import hash_seeds
from udfs.kernels.memory import WRITE_SLACK_BYTES
from udfs.tuples.kernels import columns as words
from udfs.tuples.kernels.json_text import JSON_GROWTH, JSON_MORE_BYTES
from udfs.tuples.kernels.variant import FRAME_STACK_WORDS, VARIANT_GROWTH
from udfs.tuples.kernels.variant_keys import (
    DICTIONARY_WORDS,
    ENTRIES,
    FRAMES,
    HASH_SEEDS,
    KEYS,
    SLOT_MASK,
    SLOTS,
    TEXTS,
)
from udfs.tuples.kernels.variant_shape import SHAPE_WORDS, SLACK_BYTES
from udfs.tuples.kernels.writers import DECIMAL_TEXT_MAX, INTERVAL_TEXT_MAX, UUID_TEXT_BYTES

_ALIGNMENT_BYTES = 64
_HUGE_ROW_BYTES = 64 << 20
"""A row that needs more bytes than this gets exactly that room, not twice as much."""

_MAPPED_BYTES = 32 << 20
"""Working memory of at least this size is mapped from the system; mapping less takes longer than clearing it."""

_TEXT_WIDTHS = {
    ColumnStorage.DECIMAL_TEXT: DECIMAL_TEXT_MAX,
    ColumnStorage.UUID: UUID_TEXT_BYTES,
    ColumnStorage.INTERVAL: INTERVAL_TEXT_MAX,
}
"""Greatest number of bytes of one row's text; a string or varbinary is never longer than its tuple."""

_SIXTEEN_BYTE_STORAGES = (ColumnStorage.WIDE, ColumnStorage.DECIMAL)
"""Columns with values of 16 bytes; those of other numbers have 8."""

_NESTED_STORAGES = (ColumnStorage.VARIANT, ColumnStorage.JSON)
"""Columns whose rows are null until they have a value, and whose buffers are made for the first one."""

_COPIED_STORAGES = (ColumnStorage.STRING, ColumnStorage.BINARY, ColumnStorage.RAW_STRING)
"""Columns whose values are copies of bytes of the tuple."""


def _allocate(size: int) -> NDArray[np.uint8]:
    """Allocate from Arrow's pool, which reuses the memory of earlier batches instead of asking the system for pages."""
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


def _zeroed_words(count: int) -> NDArray[np.int64]:
    """Return zeroed memory; a large one takes pages of the system only where it is written.

    `np.zeros` does so in a new process, but was seen to clear gigabytes of reused memory in one that had run for long.
    """
    if count * 8 < _MAPPED_BYTES:
        return np.zeros(count, np.int64)
    return np.frombuffer(mmap.mmap(-1, count * 8), np.int64)


def _aligned(size: int) -> int:
    return (size + _ALIGNMENT_BYTES - 1) // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES


@dataclass
class Columns:
    """The columns of one batch; the last one is for the fields past the format. Made by `empty_columns`."""

    storages: tuple[ColumnStorage, ...]
    """How each column is stored."""
    rows: int
    """Number of rows of the batch."""
    largest_tuple_bytes: int
    """Size of the largest_tuple_bytes tuple in bytes."""
    column_words: NDArray[np.int64]
    """The words that describe each column (`udfs.tuples.kernels.columns`; int64[columns, COLUMN_WORDS])."""
    statuses: NDArray[np.uint8]
    """The status of each field (`udfs.tuples.kernels.columns`; uint8[columns, rows])."""
    fixed_block: NDArray[np.uint8]
    """Values, offsets, validity."""
    contents: dict[tuple[int, bool], NDArray[np.uint8]] = field(default_factory=dict)
    """Content buffers, by column and by whether they contain a variant's metadata."""
    working_memory: list[NDArray[np.int64]] = field(default_factory=list)
    """Working memory of the variant encoder."""

    @property
    def _validity_bytes(self) -> int:
        return (self.rows + 7) // 8

    def _enlarge(self, column: int, size: int, is_metadata: bool = False) -> None:
        """Enlarge a column's content buffer to `size` bytes; its content stays."""
        column_words = self.column_words[column]
        start, end, limit = (
            (words.META_START, words.META_END, words.META_LIMIT)
            if is_metadata
            else (words.START, words.END, words.LIMIT)
        )
        used = int(column_words[end] - column_words[start])
        grown = _allocate(size + WRITE_SLACK_BYTES)
        if used:
            grown[:used] = self.contents[column, is_metadata][:used]
        self.contents[column, is_metadata] = grown
        column_words[start] = grown.ctypes.data
        column_words[end], column_words[limit] = column_words[start] + used, column_words[start] + size

    def _dictionary_address(self) -> int:
        """Return the address of the working memory of the variant encoder, shared by all columns."""
        if not self.working_memory:
            slots = 1 << max(self.largest_tuple_bytes, 4).bit_length()
            dictionary = np.zeros(DICTIONARY_WORDS, np.int64)
            parts = {
                KEYS: 2 * self.largest_tuple_bytes + 2,
                SLOTS: slots,
                TEXTS: self.largest_tuple_bytes + 8,
                FRAMES: FRAME_STACK_WORDS,
                ENTRIES: 2 * self.largest_tuple_bytes + 2,
            }
            dictionary[SLOT_MASK] = slots - 1
            dictionary[HASH_SEEDS] = hash_seeds().ctypes.data
            self.working_memory.append(dictionary)
            for word, size in parts.items():
                self.working_memory.append(_zeroed_words(size))
                dictionary[word] = self.working_memory[-1].ctypes.data
        return self.working_memory[0].ctypes.data

    def grow(self, row: int) -> None:
        """Enlarge each text or variant column that is too small to continue at a row.

        A huge row enlarges only the columns that need it, one after another.
        """
        wants = self.column_words[:, words.WANTED].copy()
        self.column_words[:, words.WANTED] = 0
        usual = min(VARIANT_GROWTH * self.largest_tuple_bytes + 32 + SLACK_BYTES, _HUGE_ROW_BYTES)
        is_huge = int(wants.max(initial=0)) > _HUGE_ROW_BYTES
        for column, storage in enumerate(self.storages):
            if storage not in _NESTED_STORAGES:
                self._grow_text(column, storage)
                continue
            if is_huge and not wants[column]:
                continue
            if storage is ColumnStorage.JSON:
                self._grow_json(column, int(wants[column]), row)
                continue
            column_words, wanted = self.column_words[column], max(usual, int(wants[column]))
            column_words[words.DICTIONARY] = self._dictionary_address()
            if not column_words[words.SHAPE]:
                self.working_memory.append(np.zeros(SHAPE_WORDS, np.int64))
                column_words[words.SHAPE] = self.working_memory[-1].ctypes.data
            for is_metadata, start, end, limit in (
                (False, words.START, words.END, words.LIMIT),
                (True, words.META_START, words.META_END, words.META_LIMIT),
            ):
                used = int(column_words[end] - column_words[start])
                if column_words[end] + wanted > column_words[limit]:
                    self._enlarge(column, self._grown_size(used, wanted, row), is_metadata)

    def _grow_json(self, column: int, wanted: int, row: int) -> None:
        """Enlarge a column of JSON that has no room for one more row of the usual size, or of the `wanted` one."""
        column_words = self.column_words[column]
        column_words[words.DICTIONARY] = self._dictionary_address()
        usual = min(JSON_GROWTH * self.largest_tuple_bytes + JSON_MORE_BYTES, _HUGE_ROW_BYTES)
        used, need = int(column_words[words.END] - column_words[words.START]), max(usual, wanted)
        if column_words[words.END] + need > column_words[words.LIMIT]:
            self._enlarge(column, self._grown_size(used, need, row))

    def _grown_size(self, used: int, needed: int, row: int) -> int:
        """Return a new size for the content of a variant, estimated for all rows from the rows before `row`.

        If a row is huge, the size is at least what this row needs.
        """
        expected = used * self.rows // row * 5 // 4 if row else 0
        if needed > _HUGE_ROW_BYTES:
            return max(used + needed, expected)
        return max(2 * used, expected) + 2 * needed

    def _grow_text(self, column: int, storage: ColumnStorage) -> None:
        """Enlarge a text column that has no room for one more row."""
        column_words = self.column_words[column]
        need = self.largest_tuple_bytes if storage in _COPIED_STORAGES else _TEXT_WIDTHS.get(storage, 0)
        if (
            column_words[words.KIND] == words.IS_TEXT
            and column_words[words.END] + need > column_words[words.LIMIT]
        ):
            self._enlarge(column, 2 * int(column_words[words.END] - column_words[words.START]) + need)

    def doubles(self, column: int) -> NDArray[np.float64]:
        """Return the values of a column of doubles; the caller may change them in place."""
        position = int(self.column_words[column, words.START]) - self.fixed_block.ctypes.data
        return self.fixed_block[position : position + 8 * self.rows].view(np.float64)

    def set_null(self, column: int, rows: NDArray[np.int64]) -> None:
        """Make rows of a column null."""
        column_words, size = self.column_words[column], self._validity_bytes
        position = int(column_words[words.VALID]) - self.fixed_block.ctypes.data
        bits = np.unpackbits(self.fixed_block[position : position + size], bitorder="little")
        bits[rows] = 0
        self.fixed_block[position : position + size] = np.packbits(bits, bitorder="little")
        column_words[words.NULLS] = self.rows - int(np.count_nonzero(bits[: self.rows]))

    def arrays(self, kinds: list[pa.DataType]) -> list[pa.Array]:
        """Return the filled columns as Arrow arrays of these types."""
        block = pa.py_buffer(self.fixed_block)
        return [
            self._nested_array(column, block)
            if storage in _NESTED_STORAGES
            else self._plain_array(column, kind, block)
            for column, (storage, kind) in enumerate(zip(self.storages, kinds, strict=True))
        ]

    def _plain_array(self, column: int, kind: pa.DataType, block: pa.Buffer) -> pa.Array:
        column_words = self.column_words[column].tolist()
        nulls, base = column_words[words.NULLS], self.fixed_block.ctypes.data
        buffers = [block.slice(column_words[words.VALID] - base, self._validity_bytes) if nulls else None]
        if column_words[words.KIND] == words.IS_TEXT:
            offsets = block.slice(column_words[words.OFFSETS] - base, 4 * self.rows + 4)
            buffers += [offsets, self._content_buffer(column, column_words, False)]
        else:
            size = (
                self._validity_bytes
                if column_words[words.KIND] == words.IS_BITS
                else 8 * column_words[words.KIND] * self.rows
            )
            buffers.append(block.slice(column_words[words.START] - base, size))
        return pa.Array.from_buffers(kind, self.rows, buffers, nulls)

    def _content_buffer(self, column: int, column_words: list[int], is_metadata: bool) -> pa.Buffer:
        start, end = (words.META_START, words.META_END) if is_metadata else (words.START, words.END)
        size = column_words[end] - column_words[start]
        if size > OFFSET_MAX:
            raise UnsupportedError(f"a column of one batch takes {size} bytes", advice=SMALLER_BATCHES_ADVICE)
        return pa.py_buffer(self.contents[column, is_metadata]).slice(0, size) if size else pa.py_buffer(b"")

    def _nested_array(self, column: int, block: pa.Buffer) -> pa.Array:
        column_words, base = self.column_words[column].tolist(), self.fixed_block.ctypes.data
        nulls, is_json = column_words[words.NULLS], column_words[words.JSON]
        validity = block.slice(column_words[words.VALID] - base, self._validity_bytes) if nulls else None
        parts = []
        for is_metadata, part in ((False, words.OFFSETS), (True, words.META_OFFSETS)):
            first = column_words[part] - base
            offsets = self.fixed_block[first : first + 4 * self.rows + 4].view(np.int32)
            content = self._content_buffer(column, column_words, is_metadata)
            offsets[column_words[words.FILLED] + 1 :] = content.size
            if is_json:
                buffers = [validity, block.slice(first, 4 * self.rows + 4), content]
                return pa.Array.from_buffers(pa.string(), self.rows, buffers, nulls)
            parts.append(
                pa.Array.from_buffers(
                    pa.binary(), self.rows, [None, block.slice(first, 4 * self.rows + 4), content], 0
                )
            )
        return pa.Array.from_buffers(VARIANT_ARROW, self.rows, [validity], nulls, children=parts)


def empty_columns(
    storages: tuple[ColumnStorage, ...], scale: int, data: NDArray[np.uint8], offsets: NDArray[np.int32]
) -> Columns:
    """Return empty columns for the tuples of a batch.

    Args:
        storages: How each column is stored; the last one, for the fields past the format, is a variant.
        scale: Scale of decimals.
        data, offsets: The tuples (`udfs.buffers.BinaryBuffers`).
    """
    rows, total = len(offsets) - 1, int(offsets[-1]) - int(offsets[0])
    bits, offset_bytes = _aligned((rows + 7) // 8), _aligned(4 * rows + 4)
    sizes = [_block_bytes(storage, rows, bits, offset_bytes) for storage in storages]
    validity = len(storages) * bits
    block = _allocate(validity + sum(sizes))
    block[:validity] = 0xFF
    table = np.zeros((len(storages), words.COLUMN_WORDS), np.int64)
    statuses = np.zeros((len(storages), rows), np.uint8)
    largest_tuple_bytes = int(np.diff(offsets).max(initial=0))
    made = Columns(storages, rows, largest_tuple_bytes, table, statuses, block)
    position = validity
    for column, (storage, size) in enumerate(zip(storages, sizes, strict=True)):
        column_words = table[column]
        address = block.ctypes.data + position
        column_words[words.DATA], column_words[words.SCALE] = data.ctypes.data, scale
        column_words[words.VALID] = block.ctypes.data + column * bits
        column_words[words.STATUSES] = statuses.ctypes.data + column * rows
        if storage in _NESTED_STORAGES:
            column_words[words.KIND], column_words[words.NULLS] = words.IS_VARIANT, rows
            column_words[words.JSON] = storage is ColumnStorage.JSON
            column_words[words.OFFSETS], column_words[words.META_OFFSETS] = address, address + offset_bytes
            block[column * bits : (column + 1) * bits] = 0
            block[position : position + 4] = block[position + offset_bytes : position + offset_bytes + 4] = 0
        elif storage in _TEXT_WIDTHS or storage in _COPIED_STORAGES:
            column_words[words.KIND], column_words[words.OFFSETS] = words.IS_TEXT, address
            block[position : position + 4] = 0
            made._enlarge(column, total if storage in _COPIED_STORAGES else _TEXT_WIDTHS[storage] * rows)
        else:
            column_words[words.KIND] = 2 if storage in _SIXTEEN_BYTE_STORAGES else 1
            column_words[words.START] = address
        if storage is ColumnStorage.BOOLEAN:
            column_words[words.KIND] = words.IS_BITS
            block[position : position + size] = 0
        position += size
    return made


def _block_bytes(storage: ColumnStorage, rows: int, bitmap_bytes: int, offset_bytes: int) -> int:
    if storage in _NESTED_STORAGES:
        return 2 * offset_bytes
    if storage is ColumnStorage.BOOLEAN:
        return bitmap_bytes
    if storage in _COPIED_STORAGES or storage in _TEXT_WIDTHS:
        return offset_bytes
    return _aligned((16 if storage in _SIXTEEN_BYTE_STORAGES else 8) * rows)

"""Reads the rows of a growing log block by block, as bytes, which the relay sends unchanged.

Damage is an error; an incomplete block at the end is not. Files are local. `sources.xlog.reader.reader` decodes rows to
columns.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import zstandard

from schemas.errors import SpoolError
from sources.xlog.format.arrays import Bytes
from sources.xlog.format.block import BLOCK_LIMIT, MAGIC_SIZE, Status, damage, decompress
from sources.xlog.format.kernels.chain import BLOCK_BEGIN, BLOCK_END, BLOCK_ZSTD, walk_blocks
from sources.xlog.format.kernels.frame import frame_bound
from sources.xlog.format.meta import META_LIMIT, Meta, parse_meta

READ_BYTES = 1 << 20
BLOCKS = 1 << 12


class BlockReader:
    """Reads the blocks of one file in order; as a context manager it closes the file.

    Blocks of the `.xlog` or `.snap` file may have up to `limit` bytes, compressed and decompressed.
    """

    def __init__(self, path: Path, limit: int = BLOCK_LIMIT) -> None:
        self.path, self._limit = path, limit
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.meta: Meta = parse_meta(os.pread(self._file, META_LIMIT, 0), path.name)
        self.position = self.meta.length
        """Position of the next block, in bytes."""
        self.is_closed = False
        """Whether the end marker of the file was read."""
        self._size = READ_BYTES
        self._zstd = zstandard.ZstdDecompressor()

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @property
    def is_empty(self) -> bool:
        """Whether no block has been read yet."""
        return self.position == self.meta.length

    def read(self, limit: int | None = None) -> list[Bytes]:
        """Return the rows of the next complete blocks, one array per block; an empty list if there are none yet.

        Parameters
        ----------
        limit : int, optional
            Position in bytes: only blocks that begin before it are read.

        Raises
        ------
        SpoolError, XlogError
            The file is damaged.

        """
        while not self.is_closed:
            data = np.frombuffer(os.pread(self._file, self._size, self.position), np.uint8)
            if data.size < MAGIC_SIZE:
                return []
            blocks = np.empty((4, BLOCKS), np.int64)
            stop = data.size if limit is None else min(data.size, limit - self.position)
            count, end, status = walk_blocks(data, 0, data.size, stop, self._limit, True, blocks)
            if status < 0:
                raise damage(Status(int(status)), self.path.name, self.position + int(end))
            blocks_read = [self._block_rows(data, blocks[:, k]) for k in range(count)]
            self.position += int(end)
            self.is_closed = status == Status.EOF
            if blocks_read or data.size < self._size or stop < data.size:
                self._size = READ_BYTES
                return blocks_read
            if not self.is_closed:
                self._size *= 2
        return []

    def _block_rows(self, data: Bytes, block: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Bytes:
        begin, end = int(block[BLOCK_BEGIN]), int(block[BLOCK_END])
        if not block[BLOCK_ZSTD]:
            return data[begin:end]
        bound = int(frame_bound(data, begin, end))
        if bound < 0:
            raise SpoolError(
                "a block is not exactly one zstd frame", file=str(self.path), offset=self.position
            )
        out = np.empty(min(bound, self._limit + 1), np.uint8)
        try:
            size = decompress(data.data[begin:end], out.data, self._zstd)
        except zstandard.ZstdError as error:
            raise SpoolError(
                f"a block cannot be decompressed: {error}", file=str(self.path), offset=self.position
            ) from None
        if size > self._limit:
            raise damage(Status.TOO_BIG, self.path.name, self.position)
        return out[:size]

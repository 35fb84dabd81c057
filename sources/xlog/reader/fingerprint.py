"""Computes the checksum of what a stream has read of a file, by which it notices that the file's history has changed.

A server that lost the end of its log, or was restored from an older state, writes other rows into a file of the same
name (the name is only the sum of the lsns before it). Then a byte position in the file means something else. So an
offset has a checksum of the bytes before its position: of the block that ends there, and of at least `CHECKED_BYTES`
bytes. A block has the times of its rows, so two histories do not have the same block.

The checksum depends on nothing but these bytes of the file. Finding the block decodes no row.
"""

import numpy as np
import pyarrow.fs

from schemas.errors import XlogMissingError, XlogTruncatedError
from sources.xlog.format.block import checksum
from sources.xlog.format.kernels.chain import header_claims_end
from sources.xlog.reader.file_buffer import base_name

CHECKED_BYTES = 1 << 16
"""The least number of bytes before a position that are checked, unless the file begins later."""
WINDOW_GROWTH = 16
"""How much more is read if the block before a position is longer."""


def checksum_before(fs: pyarrow.fs.FileSystem, path: str, position: int) -> int:
    """Return the CRC-32C of the bytes before a position at which a block ends.

    Raises:
        XlogTruncatedError: If the file ends before the position.
        XlogMissingError: If the file is gone.
    """
    window = CHECKED_BYTES
    try:
        with fs.open_input_file(path) as source:
            while True:
                begin = max(0, position - window)
                data = source.read_at(position - begin, begin)
                if len(data) < position - begin:
                    raise XlogTruncatedError(
                        "the file has become shorter than what was read of it",
                        file=base_name(path),
                        offset=position,
                    )
                if begin == 0 or header_claims_end(np.frombuffer(data, np.uint8), 0, len(data), position):
                    return checksum(data)
                window *= WINDOW_GROWTH
    except FileNotFoundError:
        raise XlogMissingError("the file is gone", file=base_name(path), offset=position) from None

"""A hash of each tuple, the same on the server (`sources.iproto.page_checksum`) and here."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.buffers import flatten
from udfs.kernels.values import OVERREAD
from udfs.keys.kernels.row_hash import SEED, hash_bytes_column

Int64s = NDArray[np.int64]


def tuple_hashes(tuples: pa.Array) -> Int64s:
    """Return XXH64 of each tuple, with the seed that the server uses.

    Parameters
    ----------
    tuples : pyarrow.BinaryArray
        As MessagePack, none of them null.

    """
    hashes: Int64s = np.full(len(tuples), SEED, np.int64)
    flat = flatten(tuples, OVERREAD)
    hash_bytes_column(flat.data, flat.offsets, flat.nulls, hashes)
    return hashes

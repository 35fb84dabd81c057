"""Hashes tuples in the same way as the server does (`sources.iproto.page_checksum`)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.buffers import flatten
from udfs.kernels.values import OVERREAD
from udfs.keys.kernels.row_hash import SEED, hash_bytes_column

Int64s = NDArray[np.int64]


def tuple_hashes(tuples: pa.Array) -> Int64s:
    """Return XXH64 of each tuple, with the server's seed.

    Parameters
    ----------
    tuples : pyarrow.BinaryArray
        MessagePack, without nulls.

    """
    hashes: Int64s = np.full(len(tuples), SEED, np.int64)
    flat = flatten(tuples, OVERREAD)
    hash_bytes_column(flat.data, flat.offsets, flat.nulls, hashes)
    return hashes

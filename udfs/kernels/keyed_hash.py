"""Hashes bytes for hash tables in memory, with secret seeds, so that no input can be made to collide.

The bytes are read as words of 32 bits; the hash is the upper half of the sum of each word times a random number of 64
bits. Two inputs of one size collide no more often than by chance (Dietzfelbinger; Lemire and Kaser, "Strongly universal
string hashing is fast"). A longer input is hashed in pieces of `WORDS_PER_PIECE` words, and the hash of each piece
includes that of the piece before. Seeds are drawn when the process starts (`hash_seeds`), so nothing that is stored,
compared between processes, or visible in a result may depend on a hash.
"""

from __future__ import annotations

import os
from functools import cache

import numpy as np
from numpy.typing import NDArray

from schemas.compiled import inner
from udfs.kernels.memory import load64, word
from udfs.kernels.values import Int

WORDS_PER_PIECE = 64
"""Number of 32-bit words of a piece; even."""

SEED_COUNT = WORDS_PER_PIECE + 2
"""Number of seeds of 64 bits: one for the start, one for the size, and one for each word."""

_LOW_HALF_MASK = 0xFFFFFFFF


@inner
def keyed_hash(pos: Int, size: Int, number: Int, seeds: Int) -> Int:
    """Return a hash, 0 to 2^32 - 1, of some bytes and a number of 32 bits.

    Args:
        pos, size: Address and number of the bytes; up to 7 bytes past the end are loaded.
        number: The number of 32 bits that is hashed with the bytes.
        seeds: Address of `SEED_COUNT` words.
    """
    code = (
        word(seeds, 0)
        + (size & _LOW_HALF_MASK) * word(seeds, 1)
        + (number & _LOW_HALF_MASK) * word(seeds, SEED_COUNT - 1)
    )
    index: Int = np.int64(2)
    for k in range(0, size, 8):
        if index == WORDS_PER_PIECE:
            # The hash so far is the first word of the next piece.
            code = word(seeds, 0) + (code >> 32 & _LOW_HALF_MASK) * word(seeds, 1)
            index = np.int64(2)
        value = load64(pos + k)
        if size - k < 8:
            value &= (np.int64(1) << 8 * (size - k)) - 1
        code += (value & _LOW_HALF_MASK) * word(seeds, index) + (value >> 32 & _LOW_HALF_MASK) * word(
            seeds, index + 1
        )
        index += 2
    return code >> 32 & _LOW_HALF_MASK


@cache
def hash_seeds() -> NDArray[np.int64]:
    """Return the seeds of this process."""
    return np.frombuffer(os.urandom(8 * SEED_COUNT), np.int64)

"""Draws the random seeds of this process's hashes (`udfs.kernels.keyed_hash`); they are secret."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
from numpy.typing import NDArray

from udfs.kernels.keyed_hash import SEEDS


@cache
def hash_seeds() -> NDArray[np.int64]:
    """Return the seeds of this process."""
    return np.frombuffer(os.urandom(8 * SEEDS), np.int64)

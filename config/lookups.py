"""How batches find and delete rows of existing tables: deletion vectors, and the key copies on the local disk."""

from __future__ import annotations

from typing import Literal

from config.values import ByteCount, ConfigSection, Location

VectorMode = Literal["auto", "always", "never"]
"""When a table of a space gets deletion vectors: once a batch would write too many old rows again, at once, or never."""

DEFAULT_VECTORS_ABOVE = 64 * 1024 * 1024


class KeyCache(ConfigSection):
    """The folder of key copies: what lookups need of each data file, on the local disk of each process.

    Parameters
    ----------
    path : str or None
        A folder of the local disk; None: beside the checkpoint, or in the system's folder for temporary files if the
        checkpoint is not on the local disk.
    limit : int
        The maximum size of the folder (`16 GiB` in the YAML). The least recently used copies are removed.

    """

    path: Location | None = None
    limit: ByteCount = 16 * 1024 * 1024 * 1024

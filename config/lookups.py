"""How batches find and delete rows of existing tables: deletion vectors, and the key copies on the local disk."""

import hashlib
import tempfile
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

from config.values import ByteCount, ConfigSection, Location

VectorMode = Literal["auto", "always", "never"]
"""When a table gets deletion vectors: once a batch would write too many of its old rows again, at once, or never."""

DEFAULT_VECTORS_ABOVE = 64 * 1024 * 1024


class KeyCache(ConfigSection):
    """The folder of key copies: what lookups need of each data file, on the local disk of each process.

    Where Spark runs on one machine, its folder `counts` has the numbers of rows of the batch in progress.
    """

    path: Location | None = None
    """A folder of the local disk; None: beside the checkpoint, or in the system's folder for temporary files if the
    checkpoint is not on the local disk."""
    limit: ByteCount = 16 * 1024 * 1024 * 1024
    """The maximum size of the folder (`16 GiB` in the YAML). The least recently used copies are removed."""

    def folder(self, checkpoint: str) -> str:
        """Return the folder of key copies of a deployment with this checkpoint."""
        if self.path is not None:
            return self.path
        scheme = urlparse(checkpoint).scheme
        if scheme in ("", "file"):
            path = urlparse(checkpoint).path if scheme else checkpoint  # a path may have # and ?
            return path.rstrip("/") + "-keys"
        return str(Path(tempfile.gettempdir()) / f"aggregator-keys-{_digest(checkpoint)}")

    def counts_folder(self, checkpoint: str) -> str:
        """Return the folder for the row counts of a batch, of one deployment alone: others may have the same `path`."""
        return str(Path(self.folder(checkpoint)) / "counts" / _digest(checkpoint))

    def proof_file(self, checkpoint: str) -> str:
        """Return the file with the state of the rolling proof of one deployment."""
        return str(Path(self.folder(checkpoint)) / f"proof-{_digest(checkpoint)}.json")


def _digest(checkpoint: str) -> str:
    return hashlib.blake2b(checkpoint.encode(), digest_size=8).hexdigest()

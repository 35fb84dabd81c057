"""The folder of key copies: which of its files are copies, their size, and the room that they leave on its disk."""

import os
import shutil
from pathlib import Path

SUFFIX = ".keys"

KEPT_FREE_BYTES = 1 << 30
"""No copy is stored that leaves less room than this on its disk, which may be that of the warehouse."""


def free_bytes(folder: Path) -> int:
    """Return the free space of a folder's disk."""
    return shutil.disk_usage(folder).free


def stored_files(folder: Path | None) -> list[tuple[Path, os.stat_result]]:
    """Return the stored copies, and parts of copies that killed processes left."""
    found = []
    try:
        for path in folder.iterdir() if folder is not None else ():
            if path.name.endswith((SUFFIX, ".part")):
                found.append((path, path.stat()))
    except OSError:
        pass
    return found


def stored_bytes(folder: Path | None) -> int:
    """Return the size of the stored copies."""
    return sum(info.st_size for _, info in stored_files(folder))

"""How a spool is written, and how long its files are kept, as plain data from the configuration.

The configuration is read in processes without Spark and without the log reader, so this module imports neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.writer import Fsync


@dataclass(frozen=True)
class SpoolRetention:
    """How long files of a spool are kept.

    Parameters
    ----------
    readers : frozenset of str
        Names of readers that must have acknowledged, even if they have not done so yet.
    size : int or None
        Without readers: total bytes of all files.
    age : float or None
        Without readers: seconds after the last write to a file.
    forget : float
        Seconds after its last acknowledgement until a reader that is not in `readers` is ignored.
    snapshot : bool
        Whether the newest snapshot and all logs since are kept for new readers (a relay's).

    """

    readers: frozenset[str] = frozenset()
    size: int | None = None
    age: float | None = None
    forget: float = 86400.0
    snapshot: bool = False


@dataclass(frozen=True)
class SpoolOptions:
    """How a spool is written.

    Parameters
    ----------
    rotate_bytes : int
        A log of this size is closed, and a new one begins.
    fsync : Fsync
        What survives a power failure. `BLOCK`: all appended rows. `CLOSE`: closed files, and rows forced by
        `sync_point`. `NEVER`: nothing for certain. Lost rows are fetched again as long as the server has them.
    compress : bool or None
        None: blocks above 2 KiB, as Tarantool does.
    max_block_bytes : int
        Longest block that is written or read; a transaction is in one block.
    room_bytes : int
        Bytes of the file system that stay free when a snapshot is fetched.

    """

    rotate_bytes: int = 256 << 20
    fsync: Fsync = Fsync.CLOSE
    compress: bool | None = None
    max_block_bytes: int = BLOCK_LIMIT
    room_bytes: int = 64 << 20

"""Options for writing a spool and for the retention of its files, as dataclasses; `config.subscribe` creates them.

The configuration is read in processes without Spark and without the log reader, so this module imports neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.writer import Fsync


@dataclass(frozen=True)
class SpoolRetention:
    """How long the files of a spool are retained.

    Parameters
    ----------
    readers : frozenset of str
        Names of readers whose acknowledgement is required before a file is removed, even if they never sent one.
    size : int or None
        If there are no readers: maximum total size of the files, in bytes.
    age : float or None
        If there are no readers: seconds after its last write until a file may be removed.
    forget : float
        A reader that is not in `readers` is ignored this many seconds after its last acknowledgement.
    snapshot : bool
        Whether the newest snapshot and all logs after it stay for new readers, such as subscribers of a relay.

    """

    readers: frozenset[str] = frozenset()
    size: int | None = None
    age: float | None = None
    forget: float = 86400.0
    snapshot: bool = False


@dataclass(frozen=True)
class SpoolOptions:
    """Options for writing a spool.

    Parameters
    ----------
    rotate_bytes : int
        Size at which a log is closed and a new one begins.
    fsync : Fsync
        What survives a power failure. `BLOCK`: all appended rows. `CLOSE`: closed files, and rows up to a
        `FlushPoint` that was flushed. `NEVER`: nothing for certain. Lost rows are fetched again if the server has them.
    compress : bool or None
        Whether blocks are compressed; None: those above 2 KiB, as in Tarantool.
    max_block_bytes : int
        Longest block that is written or read; each transaction is in one block.
    room_bytes : int
        Free space of the file system that must remain when a snapshot is fetched, in bytes.

    """

    rotate_bytes: int = 256 << 20
    fsync: Fsync = Fsync.CLOSE
    compress: bool | None = None
    max_block_bytes: int = BLOCK_LIMIT
    room_bytes: int = 64 << 20

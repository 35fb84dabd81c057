"""How a spool is written, as plain data: what a configuration says, without the readers and writers of logs."""

from __future__ import annotations

from dataclasses import dataclass

from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.writer import Fsync


@dataclass(frozen=True)
class SpoolOptions:
    """How a spool is written.

    Parameters
    ----------
    rotate_bytes : int
        A log that has grown to this is closed.
    fsync : Fsync
        `BLOCK`: what was appended survives a power failure. `CLOSE`: closed files do, and what `sync_point` has
        forced. `NEVER`: nothing surely does. What is lost is fetched again, as long as the server has it.
    compress : bool or None
        None: blocks above 2 KiB, as Tarantool does.
    max_block_bytes : int
        The longest block that is written or read: a transaction is in one block.
    room_bytes : int
        Of the file system so much stays free when a snapshot is fetched.

    """

    rotate_bytes: int = 256 << 20
    fsync: Fsync = Fsync.CLOSE
    compress: bool | None = None
    max_block_bytes: int = BLOCK_LIMIT
    room_bytes: int = 64 << 20

"""Options for writing a spool and for the retention of its files, as dataclasses; `config.subscribe` creates them.

The configuration is read in processes without Spark and without the log reader, so this module imports neither.
"""

from dataclasses import dataclass

from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.writer import Fsync


@dataclass(frozen=True)
class SpoolRetention:
    """When the files of a spool may be removed."""

    required_readers: frozenset[str] = frozenset()
    """Names of readers that must acknowledge the rows of a log before it is removed. No log is removed while one of
    them has sent no acknowledgement."""
    max_bytes: int | None = None
    """If there are no readers: maximum total size of the files, in bytes; None: there is no such limit."""
    max_age_seconds: float | None = None
    """If there are no readers: seconds after its last write until a file is removed; None: there is no such limit."""
    reader_expiry_seconds: float = 86400.0
    """Seconds after its last acknowledgement until a reader that is not in `required_readers` is ignored."""
    keeps_snapshot: bool = False
    """Whether the newest snapshot and all logs after it always stay, for new readers such as subscribers of a relay."""


@dataclass(frozen=True)
class SpoolOptions:
    """Options for writing a spool."""

    rotate_bytes: int = 256 << 20
    """Size at which a log is closed and a new one begins."""
    fsync: Fsync = Fsync.CLOSE
    """What survives a power failure. `BLOCK`: all appended rows. `CLOSE`: closed files, and rows up to the last flushed
    `FlushPoint`. `NEVER`: nothing for certain. Lost rows are fetched again if the server still has them."""
    compress: bool | None = None
    """Whether blocks are compressed; None: blocks above 2 KiB are, as in Tarantool."""
    max_block_bytes: int = BLOCK_LIMIT
    """Longest block that is written or read; each transaction is in one block."""
    min_free_bytes: int = 64 << 20
    """Space of the file system that must remain free when a snapshot is fetched, in bytes."""

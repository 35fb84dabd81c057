"""What of a spool is kept: a value, which configuration makes and `sources.spool.removal` obeys.

Of its own, since a configuration is read where neither Spark nor the reader of logs is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Keep:
    """How long files of a spool are kept.

    Parameters
    ----------
    readers : frozenset of str
        Names of readers that must have acknowledged, even if they never did yet.
    size : int or None
        Where there are no readers: bytes that all files may take.
    age : float or None
        Where there are no readers: seconds after the last write to a file.
    forget : float
        A reader that is not in `readers` counts for so many seconds after its last acknowledgement.
    snapshot : bool
        Whether the newest snapshot and all logs since stay, for readers that are new (a relay's).

    """

    readers: frozenset[str] = frozenset()
    size: int | None = None
    age: float | None = None
    forget: float = 86400.0
    snapshot: bool = False

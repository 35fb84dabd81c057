"""How long files of a spool are kept, as a value: made from the configuration, used by `sources.spool.removal`.

A module of its own, since the configuration is read in processes without Spark and without the log reader.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Keep:
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

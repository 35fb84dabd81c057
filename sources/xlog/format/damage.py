"""What happens to parts of a log that cannot be read: `mode` FAILFAST, DROPMALFORMED or PERMISSIVE.

Nothing is skipped in silence: whatever a lenient mode leaves out is counted here, by its error.
Not here: what the damage is (`block`), where reading goes on after it (`scan`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from schemas.errors import XlogError

ERRORS_KEPT = 100


class Mode(StrEnum):
    """Spark's names of what to do with malformed records."""

    FAILFAST = "FAILFAST"
    DROPMALFORMED = "DROPMALFORMED"
    PERMISSIVE = "PERMISSIVE"


@dataclass
class Skipped:
    """What lenient reading left out; the caller makes one, passes it in, and reads it afterwards.

    Parameters
    ----------
    places : int
        How many damaged places.
    bytes : int
        Bytes left out: of the file, and of a bad row in a block as they are when decompressed.
    reasons : Counter of str
        Places by class of error.
    errors : list of XlogError
        The first `ERRORS_KEPT` of them.

    """

    places: int = 0
    bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    errors: list[XlogError] = field(default_factory=list)

    def add(self, error: XlogError, size: int) -> None:
        """Count one damaged place of `size` bytes."""
        self.places += 1
        self.bytes += size
        self.reasons[type(error).__name__] += 1
        if len(self.errors) < ERRORS_KEPT:
            self.errors.append(error)


def meet(error: XlogError, size: int, mode: Mode, skipped: Skipped) -> XlogError:
    """Raise the error in mode FAILFAST, otherwise count it and return it."""
    if mode is Mode.FAILFAST:
        raise error
    skipped.add(error, size)
    return error

"""Decides about parts of a log that cannot be read: `mode` FAILFAST, DROPMALFORMED or PERMISSIVE.

Nothing is skipped silently: all that a lenient mode leaves out is counted here, by error class.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from schemas.errors import XlogError

MAX_ERRORS = 100


class Mode(StrEnum):
    """Spark's modes for malformed records."""

    FAILFAST = "FAILFAST"
    DROPMALFORMED = "DROPMALFORMED"
    PERMISSIVE = "PERMISSIVE"


@dataclass
class Skipped:
    """Counts of damage that a lenient mode left out; the caller passes one in and reads it afterwards.

    Parameters
    ----------
    places : int
        Number of damaged places.
    bytes : int
        Bytes left out: of the file; for a bad row, decompressed bytes.
    reasons : Counter of str
        Places by class of error.
    errors : list of XlogError
        The first `MAX_ERRORS` of them.

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
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(error)


def raise_or_count(error: XlogError, size: int, mode: Mode, skipped: Skipped) -> XlogError:
    """Raise the error in mode FAILFAST, otherwise count it and return it."""
    if mode is Mode.FAILFAST:
        raise error
    skipped.add(error, size)
    return error

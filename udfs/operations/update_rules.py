"""The differences of UPDATE and UPSERT between Tarantool versions, as named switches.

A log contains operations, not results, so the rules of the server that wrote it decide the bytes of a tuple. An UPDATE
in a log was accepted by its server, so a newer rule that only accepts more does not change its result. Such rules
matter for UPSERT, because the server skips operations that fail. The rules for floats matter for both. Checked live
against 2.6.0 and on recorded logs of 3.8.0; the versions in between come from Tarantool's change logs, which each
switch names.
"""

import re
from dataclasses import dataclass

from schemas.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one server version."""

    float_sums: str = "exact"
    """How a sum of doubles or floats is stored. `exact`: as MP_FLOAT if no digit is lost, else as MP_DOUBLE; `typed`
    (before gh-4701): as MP_DOUBLE if an operand is one, else rounded to MP_FLOAT; `unclear`: in one of these ways, and
    a sum for which the two differ raises `UnsupportedError`."""
    fills_gaps: bool = True
    """`=` and `!` by number or name past the end fill the gap with nulls (gh-3378)."""
    allows_repeated_fields: bool = True
    """Several operations of a request may change one field; each changes the result of the previous one (gh-8226)."""
    accepts_long_encodings: bool = True
    """Field numbers, and offsets and lengths of `:`, may be in 64-bit encodings, which some clients always use (refused
    by 2.6.0, accepted by 2.11.9 and 3.9)."""
    ignores_missing_deletes: bool = True
    """`#` past the end of an array does nothing (gh-7398, seen in 2.11.9); before, it is an error."""
    checks_upserts: bool = True
    """Vinyl skips an UPSERT whose result does not fit the format (gh-1622); before, it stores the result."""
    splices_binary: bool = True
    """`:` accepts binaries like strings, and pastes either into the other; a field keeps its type (gh-9997)."""
    has_wide_decimals: bool = True
    """Decimals have 76 digits and exponents up to 999999 (tarantool/doc#5127); before, 38 digits in all."""
    double_accepts_integers: bool = True
    """A field of type `double` accepts integers too (gh-7483); before, only doubles."""
    double_includes_number: bool = True
    """`double` includes all values of `number`, as `number` does of `double` (gh-9548), so a field that the format and
    index parts give both types has the type of the last part; before, it has `double`, the narrower type."""


def release_of(version: str) -> tuple[int, int, int]:
    """Return the three numbers of a `Version` such as `2.6.0-0-g47aa4e01e`; raise ConfigurationError for other text."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        raise ConfigurationError(f"{version!r} is not a version of Tarantool")
    return int(match[1]), int(match[2]), int(match[3])


def release_text(version: str) -> str:
    """Return the release in a `Version`, such as 2.6.0; raises like `release_of`."""
    return ".".join(map(str, release_of(version)))


def release_number(version: str) -> int:
    """Return the release in a `Version` as a comparable number: 2006000 for `2.6.0`; raises like `release_of`."""
    major, minor, patch = release_of(version)
    return (major * 1000 + minor) * 1000 + patch


def rules_of(version: str) -> Rules:
    """Return the rules of a server from the `Version` of a log's header; raises like `release_of`."""
    return rules_of_release(release_number(version))


def rules_of_release(release: int) -> Rules:
    """Return the rules of a release (`release_number`); 0, an unknown server, gives those of the newest release."""
    if not release:
        return LATEST
    number = release // 1_000_000, release // 1000 % 1000, release % 1000
    return Rules(
        float_sums="exact" if number >= (2, 6, 0) else "typed" if number < (2, 3, 0) else "unclear",
        fills_gaps=number >= (2, 8, 0),
        allows_repeated_fields=number >= (3, 0, 0),
        accepts_long_encodings=number > (2, 6, 0),
        ignores_missing_deletes=number >= (2, 10, 0),
        checks_upserts=number >= (2, 6, 1),
        splices_binary=number >= (3, 2, 0),
        has_wide_decimals=number >= (3, 5, 0),
        double_accepts_integers=number >= (2, 11, 1),
        double_includes_number=number >= (3, 1, 0),
    )


LATEST = Rules()
"""The rules of 3.x."""

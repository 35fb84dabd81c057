"""Sizes and durations: their units, and values in them as text."""

SIZE_UNITS = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))
"""Units with their lengths in bytes."""

DURATION_UNITS = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
"""Units with their lengths in seconds."""


def size_text(byte_count: float) -> str:
    """Return a number of bytes as text in the largest unit that it reaches, like `16.3 KiB` or `256 MiB`."""
    for unit, length in SIZE_UNITS:
        if byte_count >= length:
            return f"{byte_count / length:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{byte_count:.0f} B"

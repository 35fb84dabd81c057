"""Sizes are written in the largest unit that they reach, with one digit after the point where it is not 0."""

import pytest

from schemas.units import size_text


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (16_691, "16.3 KiB"),
        (256 << 20, "256 MiB"),
        (3 << 29, "1.5 GiB"),
        (5000 << 40, "5,000 TiB"),
    ],
)
def test_a_size_is_written_in_its_unit(byte_count: int, text: str) -> None:
    assert size_text(byte_count) == text

"""The hash_text hash of masked columns is HMAC-SHA-256, checked by the vectors of RFC 4231."""

import pytest

from udfs.tuples.masking import hash_text


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (b"\x0b" * 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        (
            b"Jefe",
            "what do ya want for nothing?",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        ),
    ],
)
def test_a_text_under_a_key(key: bytes, text: str, expected: str) -> None:
    assert hash_text(text, key) == expected


def test_a_text_that_is_not_utf_8_has_a_hash_too() -> None:
    assert hash_text("\udcff", b"key") != hash_text("\udcfe", b"key")

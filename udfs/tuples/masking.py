"""Masks values so that readers can compare but not read them: HMAC-SHA-256 of a column's text, as 64 hex digits.

A hash without a key does not protect values that can be guessed: all phone numbers are hashed in minutes. With a key,
only its owner can guess values; equal values have equal hashes for every reader.
"""

import hmac
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import VariantVal

_EXPONENT_FROM, _EXPONENT_BELOW = 1e7, 1e-3
"""Java, and so Spark, writes doubles outside of this range with an exponent (`Double.toString`)."""


def hash_text(text: str, key: bytes) -> str:
    """Return the HMAC-SHA-256 of a text as 64 hex digits."""
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def hmac_column(column: pa.Array, key: bytes) -> pa.Array:
    """Return the HMAC of each value of a column, by `hash_text`; null for null."""
    text = _text_function(column.type)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values = column.to_pylist()
    return pa.array([None if value is None else hash_text(text(value), key) for value in values], pa.string())


def _text_function(kind: pa.DataType) -> Callable[[Any], str]:
    """Return a function that formats values like Spark's `cast(... as string)`; variants as JSON, bytes as hex."""
    if pa.types.is_binary(kind):
        return lambda value: bytes(value).hex().upper()
    if pa.types.is_struct(kind):
        return lambda value: VariantVal(value["value"], value["metadata"]).toJson()
    if pa.types.is_floating(kind):
        return double_text
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    return str


def double_text(value: float) -> str:
    """Return a double as Java's `Double.toString` writes it."""
    if value != value:  # noqa: PLR0124 - NaN
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or _EXPONENT_BELOW <= abs(value) < _EXPONENT_FROM:
        return repr(value)
    sign = "-" if value < 0 else ""
    digits, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = digits.partition(".")
    fraction = "" if fraction == "0" else fraction
    significant = (whole + fraction).lstrip("0")
    power = int(exponent or 0) + len(whole) - 1
    if whole == "0":
        power = int(exponent or 0) - (len(fraction) - len(fraction.lstrip("0"))) - 1
    significant = significant.rstrip("0") or "0"
    return f"{sign}{significant[0]}.{significant[1:] or '0'}E{power}"

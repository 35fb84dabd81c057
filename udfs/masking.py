"""Values that readers may compare but not read: HMAC-SHA-256 of a column's text, as 64 hex digits.

A hash without a key protects no value that can be guessed: every phone number is hashed in minutes. With one, who has
the key can still guess, and equal values stay equal for everybody. The key travels to executors within the function,
never as a literal, so no plan shows it.
Not here: which columns are masked, and where the key is found (the configuration).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BinaryType, DataType, StringType, TimestampType, VariantType


def text_of(column: Column, kind: DataType) -> Column:
    """Return a column as the text that is hashed: one for each value, in every session."""
    if isinstance(kind, BinaryType):
        return F.hex(column)
    if isinstance(kind, TimestampType):
        return F.unix_micros(column).cast("string")
    if isinstance(kind, VariantType):
        return F.to_json(column)
    return column.cast("string")


def keyed(text: str, key: bytes) -> str:
    """Return the keyed hash of a text."""
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def keyed_hash(key: bytes) -> Callable[[Column], Column]:
    """Return an Arrow UDF from texts to their keyed hashes; null stays null."""

    def hashed(texts: pa.Array) -> pa.Array:
        told = (None if text is None else keyed(text, key) for text in texts.to_pylist())
        return pa.array(told, pa.string())

    hashed.__annotations__ = {"texts": pa.Array, "return": pa.Array}
    make: Any = arrow_udf
    wrapped: Callable[[Column], Column] = make(hashed, returnType=StringType())
    return wrapped

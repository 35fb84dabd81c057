"""Converts MessagePack tuples to JSON text, for SQL: the function `tuple_json(_tuple)`."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType

from schemas.layout import EXTRA_COLUMN, TypeOptions, table_layout
from schemas.space import Space
from udfs.buffers import arrow_column_function
from udfs.tuples.tuples import decode, decoding_plan

TUPLE_JSON = "tuple_json"
"""The name of the function in SQL."""

_WITHOUT_FORMAT = decoding_plan(
    table_layout([Space(0, 0, TUPLE_JSON, "memtx")], options=TypeOptions(nested="json"))
)
"""All fields of a tuple are past the format, so they become one array."""


def tuple_json(tuples: pa.Array) -> pa.Array:
    """Return each tuple as a JSON array (`udfs.tuples.kernels.json_text`); null if it is no tuple, or empty."""
    return decode(tuples, _WITHOUT_FORMAT).field(EXTRA_COLUMN)


def register_tuple_json(spark: SparkSession) -> None:
    """Register the function in a session's SQL."""
    spark.udf.register(TUPLE_JSON, arrow_column_function(tuple_json, StringType()))

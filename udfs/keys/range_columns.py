"""Spark columns for ranges of keys: the bounds of a DELETE_RANGE, and keys, as comparable bytes.

For queries on one space; batches compute the same in Arrow (`pipeline.reduce.ranges`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BinaryType, StructField, StructType

from schemas.space import Space
from udfs.keys.key_order import Directions, directions_of, key_order, ordered_keys
from udfs.keys.keys import canonical_prefixes, key_plan
from udfs.tuples.row_body import ranges_of

BOUNDS = StructType([StructField("begin", BinaryType()), StructField("end", BinaryType())])


def bound_columns(spaces: Sequence[Space]) -> Callable[[Column, Column], Column]:
    """Return an Arrow UDF `(body binary, space index int) → struct<begin, end>`: the bounds of a range.

    An open bound is empty bytes; a range that cannot be read has nulls.
    """
    plan, order = key_plan(spaces), key_order([directions_of(space) for space in spaces])

    def bounds(body: pa.Array, which: pa.Array) -> pa.Array:
        ranges = ranges_of(body)
        index = which.fill_null(-1).cast(pa.int32())
        numbers = index.to_numpy(zero_copy_only=False)
        ends = [
            ordered_keys(canonical_prefixes(ranges.field(name), plan, index).field("key"), order, numbers)
            for name in ("begin", "end")
        ]
        return pa.StructArray.from_arrays(ends, names=["begin", "end"])

    bounds.__annotations__ = {"body": pa.Array, "which": pa.Array, "return": pa.Array}
    make: Any = arrow_udf
    wrapped: Callable[[Column, Column], Column] = make(bounds, returnType=BOUNDS)
    return wrapped


def place_column(directions: Directions) -> Callable[[Column], Column]:
    """Return an Arrow UDF `(canonical key binary) → binary`: the key as bytes that compare as in its index."""
    order = key_order([directions])

    def place(key: pa.Array) -> pa.Array:
        return ordered_keys(key, order, np.zeros(len(key), np.int32))

    place.__annotations__ = {"key": pa.Array, "return": pa.Array}
    make: Any = arrow_udf
    wrapped: Callable[[Column], Column] = make(place, returnType=BinaryType())
    return wrapped

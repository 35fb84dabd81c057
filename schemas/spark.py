"""Converts the data source's Arrow schemas to Spark schemas; a module of its own, because only this needs PySpark."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_SPARK_TYPES = {
    pa.string(): StringType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.binary(): BinaryType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema with the types of `schemas.xrow`; every column is nullable."""
    return StructType([StructField(f.name, _SPARK_TYPES[f.type], nullable=True) for f in schema])

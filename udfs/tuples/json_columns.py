"""Converts MessagePack to JSON text, for SQL: whole values, tuples and keys, and single fields of tuples."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import ConfigurationError
from schemas.layout import EXTRA_COLUMN, TypeOptions, table_layout
from schemas.space import Field, Space
from udfs.tuples.tuples import DecodingPlan, decode, decoding_plan

_JSON = TypeOptions(nested="json")

_WITHOUT_FORMAT = decoding_plan(table_layout([Space(0, 0, "tuple", "memtx")], options=_JSON))
"""All fields of a tuple are past the format, so they become one array."""

_ARRAY_OF_ONE = b"\x91"

FieldNumbers = Mapping[str, Mapping[str, int]]
"""By table: the index of each field in the tuples of its space, by the field's name."""


def tuple_json(tuples: pa.Array) -> pa.Array:
    """Return each tuple, or key, as a JSON array (`udfs.tuples.kernels.json_text`); null if it is none, or empty."""
    return decode(tuples, _WITHOUT_FORMAT).field(EXTRA_COLUMN)


def msgpack_json(values: pa.Array) -> pa.Array:
    """Return each MessagePack value as JSON; null if it is none."""
    tuples = pc.binary_join_element_wise(pa.scalar(_ARRAY_OF_ONE), values.cast(pa.binary()), pa.scalar(b""))
    return _field(tuples, 0)


def tuple_fields(tuples: pa.Array, tables: pa.Array, fields: pa.Array, numbers: FieldNumbers) -> pa.Array:
    """Return one field of each tuple as JSON; null if the tuple is null, or ends before the field.

    Args:
        tables, fields: For each tuple, the table of its space, and the name of the field.

    Raises:
        ConfigurationError: A table or a field has no such name.
    """
    names = pa.StructArray.from_arrays([tables, fields], ["table", "field"])
    distinct = {(one["table"], one["field"]) for one in names.to_pylist()}
    if len(distinct) == 1:
        return _field(tuples, _number(*distinct.pop(), numbers))
    found = pa.nulls(len(tuples), pa.string())
    for table, field in distinct:
        own = pc.and_(pc.equal(tables, table), pc.equal(fields, field))
        found = pc.if_else(own, _field(tuples, _number(table, field, numbers)), found)
    return found


def _number(table: str | None, field: str | None, numbers: FieldNumbers) -> int:
    known = numbers.get(table or "")
    if known is None:
        raise ConfigurationError(f"no table has the name {table!r}", advice=f"known are {', '.join(numbers)}")
    if field is None or field not in known:
        raise ConfigurationError(
            f"space {table} has no field {field!r}", advice=f"its fields are {', '.join(known)}"
        )
    return known[field]


@lru_cache(maxsize=64)
def _plan_of_field(number: int) -> DecodingPlan:
    fields = tuple(Field(f"f{i}", "any", True) for i in range(number + 1))
    return decoding_plan(table_layout([Space(0, 0, "tuple", "memtx", fields)], options=_JSON))


def _field(tuples: pa.Array, number: int) -> pa.Array:
    decoded = decode(tuples, _plan_of_field(number))
    is_wrong = decoded.field("_error").is_valid().to_numpy(zero_copy_only=False)
    values = decoded.field(f"f{number}")
    return pc.if_else(pa.array(np.logical_not(is_wrong)), values, pa.scalar(None, pa.string()))

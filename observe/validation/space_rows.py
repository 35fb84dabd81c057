"""Computes from rows of spaces' tables the columns that validation checks, the same for all tables.

Uses Arrow, and reads one file at a time. Each tuple is decoded once more by its replicaset's definition, as the engine
does, and must give the typed columns. A row whose replicaset no longer defines the space is not decoded; a column whose
type differs from its field's is not compared: another expectation fails for it. `observe.validation.spaces` has the
tables and the expectations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.encode.columns import TableEncoding, file_column
from schemas.layout import ERROR_COLUMN, MISFITS_COLUMN
from udfs.buffers import as_array
from udfs.tuples.tuples import decode
from warehouse.data_files import opened
from warehouse.place import Place

UNLIKE = "unlike"
"""Columns that differ from `_tuple`, joined by commas, or why it cannot be decoded.

A column whose value does not fit equals `_tuple` if it is null and `_misfits` names it.
"""

NULLS = "nulls"
"""Columns that are null although their fields are not nullable, joined by commas."""

COLUMNS = StructType(
    [
        StructField("table", StringType()),
        StructField("_key", StringType()),
        StructField("_tuple", BooleanType()),
        StructField("_replicaset_id", IntegerType()),
        StructField("_global_id", LongType()),
        StructField("_timestamp", TimestampType()),
        StructField("_created", TimestampType()),
        StructField(UNLIKE, StringType()),
        StructField(NULLS, StringType()),
    ]
)
"""The checked columns of a row: `_key` in hex, and whether there is a `_tuple`."""

ARROW = to_arrow_schema(COLUMNS, timezone="UTC")
"""`COLUMNS` in Arrow."""

_DIGITS = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)

_SHARED = ("_replicaset_id", "_global_id", "_timestamp", "_created")


@dataclass(frozen=True)
class Look:
    """What to check in one table. Picklable.

    Parameters
    ----------
    table : str
        Its name in results.
    held : str
        The table with the exact tuples.
    encoding : TableEncoding or None
        None if no replicaset defines the space.
    compared : tuple of str
        The typed columns whose types are those of their fields.
    present : tuple of str
        The columns whose fields are not nullable.

    """

    table: str
    held: str
    encoding: TableEncoding | None
    compared: tuple[str, ...] = ()
    present: tuple[str, ...] = ()


def looked_at(place: Place, look: Look, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the checked columns of a file's rows, one batch of `ARROW` per row group."""
    with opened(place, look.held, path) as file:
        for number in range(file.metadata.num_row_groups):
            yield row_facts(file.read_row_groups([number]), look)


def row_facts(rows: pa.Table, look: Look) -> pa.RecordBatch:
    """Return the checked columns of some rows.

    Parameters
    ----------
    rows : pyarrow.Table
        Rows of the table with the exact tuples; a column that a file lacks is null.
    look : Look

    Returns
    -------
    pyarrow.RecordBatch
        `ARROW`, one row per input row.

    """
    count = rows.num_rows
    found = {name: as_array(rows[name]) for name in rows.column_names}
    # `UNLIKE` checks columns that are null because their values do not fit.
    fits = _is_null(found, MISFITS_COLUMN, count)
    facts = {
        "table": pa.repeat(pa.scalar(look.table), count),
        "_key": _hex(found["_key"]),
        "_tuple": pa.array(np.ones(count, np.bool_), mask=_nulls(found["_tuple"])),
        **{name: found[name].cast(ARROW.field(name).type) for name in _SHARED},
        UNLIKE: pa.nulls(count, pa.string()),
        NULLS: _named({name: fits & _is_null(found, name, count) for name in look.present}, count),
    }
    if look.encoding is not None and count:
        facts[UNLIKE] = _unlike(found, look.encoding, look.compared)
    return pa.RecordBatch.from_arrays([facts[name] for name in ARROW.names], schema=ARROW)


def _unlike(found: Mapping[str, pa.Array], encoding: TableEncoding, compared: Sequence[str]) -> pa.Array:
    replicasets = pc.fill_null(found["_replicaset_id"], 0).to_numpy()
    formats = encoding.format_of(replicasets.astype(np.int32))
    tuples = pc.if_else(pc.is_valid(formats), found["_tuple"], pa.scalar(None, pa.binary()))
    typed = decode(tuples, encoding.plan, pc.fill_null(formats, 0))
    is_known = pc.is_valid(tuples).to_numpy(zero_copy_only=False)
    differs = {}
    for name in compared:
        said = file_column(typed.field(name))
        differs[name] = is_known & ~_same(found.get(name, pa.nulls(len(said), said.type)), said)
    undecoded = pc.if_else(pc.is_null(typed.field(MISFITS_COLUMN)), typed.field(ERROR_COLUMN), None)
    return pc.coalesce(undecoded, _named(differs, len(tuples)))


def _same(held: pa.Array, said: pa.Array) -> NDArray[np.bool_]:
    """Return where two columns of one type have equal values; null equals null only."""
    nulls, nulls_too = _nulls(held), _nulls(said)
    if pa.types.is_struct(said.type):
        parts = [_same(held.field(part.name), said.field(part.name)) for part in said.type]
        equal = np.logical_and.reduce(parts)
    elif pa.types.is_list(said.type):
        return _same(pc.binary_join(held, ","), pc.binary_join(said, ","))
    else:
        said = said.cast(held.type)
        equal = pc.fill_null(pc.equal(held, said), False).to_numpy(zero_copy_only=False)
        if pa.types.is_floating(held.type):
            both = pc.and_(pc.is_nan(held), pc.is_nan(said))
            equal = equal | pc.fill_null(both, False).to_numpy(zero_copy_only=False)
    same: NDArray[np.bool_] = (nulls & nulls_too) | (equal & ~nulls & ~nulls_too)
    return same


def _nulls(column: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.is_null(column).to_numpy(zero_copy_only=False)
    return found


def _is_null(found: Mapping[str, pa.Array], name: str, count: int) -> NDArray[np.bool_]:
    return _nulls(found[name]) if name in found else np.ones(count, np.bool_)


def _named(flags: Mapping[str, NDArray[np.bool_]], count: int) -> pa.Array:
    """Return the names of the columns whose flag is set in a row, joined by commas; null if none is set."""
    flagged = {name: flag for name, flag in flags.items() if flag.any()}
    if not flagged:
        return pa.nulls(count, pa.string())
    rows = np.flatnonzero(np.logical_or.reduce([*flagged.values()]))
    texts = np.full(count, None, dtype=object)
    for row in rows:
        texts[row] = ",".join(name for name, flag in flagged.items() if flag[row])
    return pa.array(texts, pa.string())


def _hex(keys: pa.Array) -> pa.Array:
    """Return binary keys as hexadecimal text."""
    whole = pc.fill_null(keys, b"").cast(pa.large_binary())
    offsets = np.frombuffer(whole.buffers()[1], np.int64)[whole.offset : whole.offset + len(whole) + 1]
    data = np.frombuffer(whole.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    ends = pa.py_buffer((offsets - offsets[0]) * 2)
    texts = pa.LargeStringArray.from_buffers(len(whole), ends, pa.py_buffer(_DIGITS[data].tobytes()))
    return pc.if_else(pc.is_valid(keys), texts, None).cast(pa.string())

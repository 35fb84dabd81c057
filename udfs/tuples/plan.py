"""Converts a table's layout (`schemas.layout`) to the numbers that `udfs.tuples.kernels.walk` reads.

`schemas.field_types` says which values a field accepts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.field_types import FIELD_TYPES, ColumnStorage, type_family
from schemas.layout import TableLayout
from schemas.types import check_names
from udfs.kernels import values
from udfs.tuples.kernels import field_writers
from udfs.tuples.kernels.columns import COLUMN_BYTES

_STORAGE_NUMBERS: dict[ColumnStorage, int] = {
    ColumnStorage.LONG: field_writers.LONG,
    ColumnStorage.WIDE: field_writers.WIDE,
    ColumnStorage.DOUBLE: field_writers.DOUBLES,
    ColumnStorage.DECIMAL: field_writers.DECIMALS,
    ColumnStorage.DECIMAL_TEXT: field_writers.DECIMAL_TEXT,
    ColumnStorage.BOOLEAN: field_writers.BOOLEANS,
    ColumnStorage.STRING: field_writers.TEXT,
    ColumnStorage.BINARY: field_writers.BYTES,
    ColumnStorage.UUID: field_writers.UUIDS,
    ColumnStorage.TIMESTAMP: field_writers.TIMESTAMPS,
    ColumnStorage.INTERVAL: field_writers.INTERVALS,
    ColumnStorage.VARIANT: field_writers.VARIANTS,
    ColumnStorage.RAW_STRING: field_writers.RAW_TEXT,
}


def accepted(field_type: str, is_nullable: bool) -> int:
    """Return the value classes that a field accepts, as bits; a nullable field also accepts nil and may be absent."""
    bits = sum(1 << kind for kind in FIELD_TYPES[type_family(field_type)].values)
    return bits | (1 << values.NIL | 1 << values.ABSENT if is_nullable else 0)


@dataclass(frozen=True)
class Plan:
    """The arguments of `udfs.tuples.kernels.walk.walk` for a layout.

    Parameters
    ----------
    layout : TableLayout
    storages : tuple of ColumnStorage
        How each column is stored.
    starts, fields : int32 and int64 arrays
        Arguments of the walk.
    arrow_fields : tuple of pyarrow.Field
        The result of `layout.arrow_fields()`.

    """

    layout: TableLayout
    storages: tuple[ColumnStorage, ...]
    starts: NDArray[np.int32]
    fields: NDArray[np.int64]
    arrow_fields: tuple[pa.Field, ...]


def plan_of(layout: TableLayout) -> Plan:
    """Return the plan of a layout; raises like `schemas.types.union_fields` and `schemas.types.column_storage`."""
    for form in layout.formats:
        check_names(layout.space, (field.name for field in form))
    columns = {field.name: index for index, field in enumerate(layout.fields)}
    storages = tuple(layout.storage_of(field) for field in layout.fields)
    words: list[int] = []
    starts = [0]
    for form in layout.formats:
        for field in form:
            column = columns[field.name]
            words.append(
                column * COLUMN_BYTES << field_writers.COLUMN_SHIFT
                | _STORAGE_NUMBERS[storages[column]] << field_writers.STORAGE_SHIFT
                | accepted(field.type, field.is_nullable)
            )
        starts.append(len(words))
        lacking = sorted(set(columns) - {field.name for field in form})
        words += [columns[name] * COLUMN_BYTES << field_writers.COLUMN_SHIFT for name in lacking]
        starts.append(len(words))
    return Plan(
        layout=layout,
        storages=storages,
        starts=np.array(starts, np.int32),
        fields=np.array(words, np.int64),
        arrow_fields=tuple(layout.arrow_fields()),
    )

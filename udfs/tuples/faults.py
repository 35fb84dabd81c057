"""Builds the texts of `_error` and `_inexact`: one per kind of fault, copied to each row with that fault.

Kernels report faults as numbers. A batch has few kinds of faults, so a bad row does not cost a Python object.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.layout import TableLayout
from udfs.kernels import scalars
from udfs.kernels.values import ABSENT, CLASS_NAMES
from udfs.tuples.kernels import walk

_STATUS_TEXTS = {
    scalars.OUT_OF_RANGE: "the value is beyond the range of {type}",
    scalars.TOO_MANY_DIGITS: "the value has more digits than {type}",
    scalars.INVALID: "the content of the extension is not valid",
    scalars.NOT_UTF8: "the string is not UTF-8",
    scalars.TOO_LARGE: "the value is too large for a variant",
}


def texts_of_rows(
    keys: NDArray[np.uint8], rows: NDArray[np.int64], total: int, text: Callable[[bytes], str]
) -> pa.Array:
    """Return a string array of `total` rows with each key's text at its row, and null at all other rows.

    Parameters
    ----------
    keys : uint8 array, (len(rows), width)
        What the text of each of these rows depends on.
    rows : int64 array
        Ascending.
    total : int
    text : callable
        Returns the text of a key; called once per distinct key.

    """
    if len(rows) == 0:
        return pa.nulls(total, pa.string())
    width = keys.shape[1]
    flat = np.ascontiguousarray(keys)
    binary = pa.Array.from_buffers(pa.binary(width), len(rows), [None, pa.py_buffer(flat)])
    coded = binary.dictionary_encode()
    choices = pa.array([text(key.as_py()) for key in coded.dictionary], pa.string())
    index = np.zeros(total, np.int32)
    index[rows] = coded.indices.to_numpy()
    absent = np.ones(total, np.bool_)
    absent[rows] = False
    return choices.take(pa.array(index, mask=absent))


def walk_fault(code: int, position: int, kind: int, format_index: int) -> str:
    """Return why a tuple cannot be split into fields; fields are counted from 1, as in Tarantool's messages."""
    if code == walk.NO_LAYOUT:
        return f"there is no format with index {format_index}"
    if code == walk.NOT_ARRAY:
        return f"the tuple is not an array: {CLASS_NAMES[kind]} found"
    if code == walk.TRAILING:
        return "bytes follow the end of the tuple"
    return f"the tuple is not MessagePack at field {position + 1}"


def column_fault(layout: TableLayout, column: int, status: int, format_index: int) -> str:
    """Return why the value of a column does not fit; the column after the last is `_extra`."""
    if status >= scalars.WRONG_CLASS:
        names = [field.name for field in layout.formats[format_index]]
        position = names.index(layout.fields[column].name)
        field, found = layout.formats[format_index][position], status - scalars.WRONG_CLASS
        where = f"field {position + 1} ({field.name})"
        if found == ABSENT:
            return f"{where} is missing: {field.type} expected"
        return f"{where}: {field.type} expected, {CLASS_NAMES[found]} found"
    if column == len(layout.fields):
        return f"fields past the format: {_STATUS_TEXTS[status].format(type='variant')}"
    kind = layout.spark_schema().fields[column].dataType.simpleString()
    return f"field {layout.fields[column].name}: {_STATUS_TEXTS[status].format(type=kind)}"

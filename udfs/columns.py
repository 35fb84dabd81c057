"""One typed Arrow column from what the walk left of a field: the carriers of `schemas.types`, one builder each.

A builder gives the column's buffers and a status a row (`udfs.kernels.scalars`); which rows are null is decided
later, when all columns have spoken (`udfs.tuples`). Not here: variants (`udfs.variant`).
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.types import Carrier
from udfs.buffers import fixed_array, variable_array
from udfs.kernels import scalars, texts, writers
from udfs.kernels.memory import OVERWRITE

Present = NDArray[np.bool_]
Finish = Callable[[pa.DataType, Present], pa.Array]


@dataclass(frozen=True)
class Cells:
    """One field of many tuples, as `udfs.kernels.walk.walk` leaves it.

    Parameters
    ----------
    data : uint8 array
        The tuples' bytes.
    classes : int8 array, (rows,)
    arguments : int64 array, (rows,)

    """

    data: NDArray[np.uint8]
    classes: NDArray[np.int8]
    arguments: NDArray[np.int64]


@dataclass(frozen=True)
class Built:
    """A column but for its nulls: `finish(type, present)` gives the array; `statuses` is one uint8 a row."""

    finish: Finish
    statuses: NDArray[np.uint8]


def _fixed(values: NDArray[Any], statuses: NDArray[np.uint8]) -> Built:
    return Built(lambda kind, present: fixed_array(kind, values, present), statuses)


def _variable(offsets: NDArray[np.int32], data: NDArray[np.uint8], statuses: NDArray[np.uint8]) -> Built:
    return Built(lambda kind, present: variable_array(kind, offsets, data, present), statuses)


def _statuses(cells: Cells) -> NDArray[np.uint8]:
    return np.zeros(len(cells.classes), np.uint8)


def _long(cells: Cells, _: int) -> Built:
    statuses = _statuses(cells)
    scalars.longs(cells.classes, statuses)
    return _fixed(cells.arguments, statuses)


def _wide(cells: Cells, _: int) -> Built:
    words = np.zeros((len(cells.classes), 2), np.int64)
    scalars.wides(cells.classes, cells.arguments, words)
    return _fixed(words, _statuses(cells))


def _decide(
    cells: Cells, rows: NDArray[np.int64], values: NDArray[np.float64], statuses: NDArray[np.uint8]
) -> None:
    """Fill the doubles of decimals with more digits than a double keeps: Python rounds them correctly."""
    some = Cells(cells.data, cells.classes[rows], cells.arguments[rows])
    offsets, content = (
        np.zeros(len(rows) + 1, np.int32),
        np.empty(writers.DECIMAL_TEXT_MAX * len(rows) + OVERWRITE, np.uint8),
    )
    writers.decimal_texts(some.data, some.classes, some.arguments, content, offsets, _statuses(some))
    for row, first, last in zip(rows, offsets, offsets[1:], strict=False):
        exact = decimal.Decimal(content[first:last].tobytes().decode())
        values[row] = float(exact)
        if math.isinf(values[row]):
            statuses[row] = scalars.OUT_OF_RANGE
        else:
            statuses[row] = scalars.FITS if decimal.Decimal(values[row]) == exact else scalars.INEXACT


def _double(cells: Cells, _: int) -> Built:
    values, statuses = np.zeros(len(cells.classes)), _statuses(cells)
    scalars.doubles(cells.data, cells.classes, cells.arguments, values, statuses)
    rare = np.flatnonzero(statuses == scalars.UNDECIDED)
    if len(rare):
        _decide(cells, rare, values, statuses)
    return _fixed(values, statuses)


def _decimal(cells: Cells, scale: int) -> Built:
    words, statuses = np.zeros((len(cells.classes), 2), np.uint64), _statuses(cells)
    scalars.decimals(cells.data, cells.classes, cells.arguments, scale, words, statuses)
    return _fixed(words, statuses)


def _boolean(cells: Cells, _: int) -> Built:
    return _fixed(np.packbits(cells.arguments != 0, bitorder="little"), _statuses(cells))


def _timestamp(cells: Cells, _: int) -> Built:
    values, statuses = np.zeros(len(cells.classes), np.int64), _statuses(cells)
    scalars.timestamps(cells.data, cells.classes, cells.arguments, values, statuses)
    return _fixed(values, statuses)


def _copied(cells: Cells, check: bool) -> Built:
    offsets, statuses = np.zeros(len(cells.classes) + 1, np.int32), _statuses(cells)
    texts.spans(cells.data, cells.classes, cells.arguments, check, offsets, statuses)
    content = np.empty(int(offsets[-1]) + OVERWRITE, np.uint8)
    texts.gather(cells.data, cells.arguments, offsets, content)
    return _variable(offsets, content[: offsets[-1]], statuses)


def _written(write: Any, width: int) -> Callable[[Cells, int], Built]:
    def build(cells: Cells, _: int) -> Built:
        offsets, statuses = np.zeros(len(cells.classes) + 1, np.int32), _statuses(cells)
        content = np.empty(width * len(cells.classes) + OVERWRITE, np.uint8)
        write(cells.data, cells.classes, cells.arguments, content, offsets, statuses)
        return _variable(offsets, content[: offsets[-1]], statuses)

    return build


BUILDERS: dict[Carrier, Callable[[Cells, int], Built]] = {
    Carrier.LONG: _long,
    Carrier.WIDE: _wide,
    Carrier.DOUBLE: _double,
    Carrier.DECIMAL: _decimal,
    Carrier.DECIMAL_TEXT: _written(writers.decimal_texts, writers.DECIMAL_TEXT_MAX),
    Carrier.BOOLEAN: _boolean,
    Carrier.STRING: lambda cells, _: _copied(cells, check=True),
    Carrier.BINARY: lambda cells, _: _copied(cells, check=False),
    Carrier.UUID: _written(writers.uuids, writers.UUID_TEXT),
    Carrier.TIMESTAMP: _timestamp,
    Carrier.INTERVAL: _written(writers.interval_texts, writers.INTERVAL_TEXT_MAX),
}
"""How each carrier but VARIANT is built from cells and the scale of its decimal."""

"""MessagePack values → an Arrow array that Spark takes as a variant.

Not here: the encoding (`udfs.kernels.variant`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.errors import UnsupportedError
from schemas.types import VARIANT_ARROW
from udfs.buffers import bitmap, flatten, variable_array
from udfs.columns import Built, Cells
from udfs.kernels import values
from udfs.kernels.memory import OVERWRITE
from udfs.kernels.variant import GROWTH, variants

_OFFSET_MAX = 2**31 - 1


def _offsets(ends: NDArray[np.int64]) -> NDArray[np.int32]:
    if ends[-1] > _OFFSET_MAX:
        raise UnsupportedError(
            f"the variants of one batch take {ends[-1]} bytes",
            advice="lower spark.sql.execution.arrow.maxRecordsPerBatch",
        )
    return ends.astype(np.int32)


def _without_any(kind: pa.DataType, present: NDArray[np.bool_]) -> pa.Array:
    """Return nulls only; unlike those of `pyarrow.nulls` their parts are not null, as the type demands."""
    empty = pa.array([b""] * len(present), pa.binary())
    validity, missing = bitmap(np.zeros(len(present), np.bool_))
    return pa.Array.from_buffers(kind, len(present), [validity], missing, children=[empty, empty])


def build_variants(cells: Cells, is_extra: bool) -> Built:
    """Return a column of variants from spans of MessagePack.

    Parameters
    ----------
    cells : Cells
        The spans; each is valid MessagePack.
    is_extra : bool
        Whether a span is the elements of an array rather than one value.

    """
    rows = len(cells.classes)
    statuses = np.zeros(rows, np.uint8)
    sizes = np.where(cells.classes > values.NIL, cells.arguments & 0xFFFFFFFF, 0)
    largest = int(sizes.max(initial=0))
    if largest == 0:
        return Built(_without_any, statuses)
    room = GROWTH * int(sizes.sum()) + 32 * rows + OVERWRITE
    content, metadata = np.empty(room, np.uint8), np.empty(room, np.uint8)
    value_ends, metadata_ends = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
    variants(
        cells.data,
        cells.classes,
        cells.arguments,
        is_extra,
        largest,
        content,
        value_ends,
        metadata,
        metadata_ends,
        statuses,
    )
    everywhere = np.ones(rows, np.bool_)

    def finish(_: pa.DataType, present: NDArray[np.bool_]) -> pa.Array:
        parts = [
            variable_array(pa.binary(), _offsets(value_ends), content[: value_ends[-1]], everywhere),
            variable_array(pa.binary(), _offsets(metadata_ends), metadata[: metadata_ends[-1]], everywhere),
        ]
        validity, missing = bitmap(present)
        return pa.Array.from_buffers(VARIANT_ARROW, rows, [validity], missing, children=parts)

    return Built(finish, statuses)


def to_variants(messages: pa.Array) -> pa.StructArray:
    """Return a variant for each MessagePack value; a null or nil one is null.

    Parameters
    ----------
    messages : pyarrow.BinaryArray
        One valid MessagePack value a row.

    """
    flat = flatten(messages, values.OVERREAD)
    starts = flat.offsets[:-1].astype(np.int64)
    first = flat.data[np.minimum(starts, max(len(flat.data) - 1, 0))] if len(flat.data) else starts
    classes = np.where((flat.nulls == 1) | (first == 0xC0), values.NIL, values.ARRAY).astype(np.int8)
    cells = Cells(flat.data, classes, starts << 32 | np.diff(flat.offsets))
    built = build_variants(cells, is_extra=False)
    return built.finish(VARIANT_ARROW, classes > values.NIL)

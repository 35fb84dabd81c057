"""A table's layout as the numbers that the walk over tuples needs.

Which classes of values a field type takes is Tarantool's (`field_mp_type` and `field_ext_type` in
`src/box/field_def.c`; that a `double` takes any number but a decimal is of later versions, and no log of an
earlier one holds such a tuple). Not here: the walk (`udfs.kernels.walk`), and the layout itself (`schemas.layout`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.layout import TableLayout
from schemas.space import Field
from schemas.types import Carrier, carrier, type_family
from udfs.kernels import values
from udfs.kernels.walk import COLUMN_SHIFT, WHOLE

_INTEGERS = (values.UNSIGNED, values.UNSIGNED_BIG, values.INTEGER)
_REALS = (values.FLOAT, values.DOUBLE)
_CLASSES: dict[str, tuple[int, ...]] = {
    "unsigned": (values.UNSIGNED, values.UNSIGNED_BIG),
    "integer": _INTEGERS,
    "double": _INTEGERS + _REALS,
    "number": (*_INTEGERS, *_REALS, values.DECIMAL),
    "decimal": (values.DECIMAL,),
    "string": (values.STRING,),
    "varbinary": (values.BINARY,),
    "boolean": (values.BOOLEAN,),
    "uuid": (values.UUID,),
    "datetime": (values.DATETIME,),
    "interval": (values.INTERVAL,),
    "array": (values.ARRAY,),
    "map": (values.MAP,),
    "any": tuple(range(values.NIL, values.BAD)),
}
_CLASSES["scalar"] = (
    *_CLASSES["number"],
    values.STRING,
    values.BINARY,
    values.BOOLEAN,
    values.UUID,
    values.DATETIME,
)


def accepted(field_type: str, is_nullable: bool) -> int:
    """Return the classes that a field takes, as bits; a nullable one also takes nil and may be absent."""
    bits = sum(1 << kind for kind in _CLASSES[type_family(field_type)])
    return bits | (1 << values.NIL | 1 << values.ABSENT if is_nullable else 0)


@dataclass(frozen=True)
class Plan:
    """What `udfs.kernels.walk.walk` needs of a layout.

    Parameters
    ----------
    layout : TableLayout
        What it was made of.
    carriers : tuple of Carrier
        How each column is built.
    starts : int32 array
        Where each format starts in `fields`, and where the last ends.
    fields : int64 array
        Of each field of each format: its column, whether it is kept whole, the classes it accepts.

    """

    layout: TableLayout
    carriers: tuple[Carrier, ...]
    starts: NDArray[np.int32]
    fields: NDArray[np.int64]


def plan_of(layout: TableLayout) -> Plan:
    """Return the plan of a layout; errors as of `schemas.types.carrier`."""
    columns = {field.name: index for index, field in enumerate(layout.fields)}
    carriers = tuple(carrier(field.type, layout.options) for field in layout.fields)
    flat: list[Field] = [field for one in layout.formats for field in one]
    words = []
    for field in flat:
        column = columns[field.name]
        whole = WHOLE if carriers[column] is Carrier.VARIANT else 0
        words.append(column << COLUMN_SHIFT | whole | accepted(field.type, field.is_nullable))
    return Plan(
        layout=layout,
        carriers=carriers,
        starts=np.cumsum([0] + [len(one) for one in layout.formats], dtype=np.int32),
        fields=np.array(words, np.int64),
    )

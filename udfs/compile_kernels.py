"""Compiles the kernels of this package ahead of the first batch: `python -m udfs.compile_kernels`.

Numba compiles a kernel at its first call and caches it on disk (`schemas.compiled`); without this, each worker of
the first job compiles them in its first batch. Decoding one key and one tuple with a value of every type runs all
kernels. The tuple's number is a decimal of too many digits for the kernel that converts decimals to doubles, so the
kernel that writes decimals as text runs, too.
"""

import numpy as np
import pyarrow as pa

from schemas.field_types import FIELD_TYPES, ValueClass
from schemas.layout import TypeOptions, table_layout
from schemas.space import Field, KeyPart, Space
from udfs.keys.keys import canonical_keys
from udfs.operations.quick_updates import quick_updates
from udfs.operations.tuple_format import TupleFormat
from udfs.tuples.tuples import decode_tuples

_COLUMN_OPTIONS = (TypeOptions(), TypeOptions(unsigned="long", decimal_scale="string", integer="decimal"))
_VALUES = {
    ValueClass.UNSIGNED_BIG: "cfffffffffffffffff",
    ValueClass.INTEGER: "ff",
    ValueClass.DOUBLE: "cb3ff8000000000000",
    ValueClass.BOOLEAN: "c3",
    ValueClass.STRING: "a161",
    ValueClass.BINARY: "c40100",
    ValueClass.ARRAY: "9101",
    ValueClass.MAP: "81a16101",
    ValueClass.DECIMAL: "c70a011033333333333333333c",
    ValueClass.UUID: "d80264d22e4dac924a23899ae59f34af5479",
    ValueClass.DATETIME: "d7040000000000000000",
    ValueClass.INTERVAL: "c70306010001",
    ValueClass.EXTENSION: "d40701",
}
"""A value of each class that is the last one of a type in `FIELD_TYPES`, in hexadecimal digits."""


def _tuple_of_every_type() -> bytes:
    """Return a tuple with a field of each type, and one past the format."""
    values = [_VALUES[kind.accepted_classes[-1]] for kind in FIELD_TYPES.values()]
    return bytes.fromhex(f"dc{len(values) + 1:04x}{''.join(values)}c0")


def compile_all() -> None:
    """Compile every kernel, by calling each of them."""
    fields = tuple(Field(kind, kind) for kind in FIELD_TYPES)
    space = Space(0, 0, "warm", "memtx", fields, (KeyPart(0, "unsigned"),))
    data = _tuple_of_every_type()
    tuples = pa.array([data], pa.binary())
    for options in _COLUMN_OPTIONS:
        decode_tuples(tuples, table_layout([space], options=options))
    canonical_keys(tuples, [space])
    ones, zeros = np.ones(1, np.int64), np.zeros(1, np.int64)
    quick_updates(tuples, ones == 1, ones, tuples, zeros, zeros, [TupleFormat()], len(data))


if __name__ == "__main__":
    compile_all()

"""Compiles the kernels of this package ahead of the first batch: `python -m udfs.compile_kernels`.

Numba compiles a kernel at its first call and caches it on disk (`schemas.compiled`); without this, each worker of
the first job compiles them in its first batch. Decoding one key and one tuple with a value of every type runs all
kernels. The tuple's number is a decimal of too many digits for the kernel that converts decimals to doubles, so the
kernel that writes decimals as text runs, too.
"""

import numpy as np
import pyarrow as pa

from schemas.layout import TypeOptions, table_layout
from schemas.space import Field, KeyPart, Space
from udfs.keys.keys import canonical_keys
from udfs.operations.quick_updates import quick_updates
from udfs.operations.tuple_format import TupleFormat
from udfs.tuples.tuples import decode_tuples

_TYPES = (
    *("unsigned", "integer", "number", "decimal", "string", "varbinary", "boolean", "uuid", "datetime"),
    *("interval", "any"),
)
_COLUMN_OPTIONS = (TypeOptions(), TypeOptions(unsigned="long", decimal_scale="string", integer="decimal"))
_TUPLE_OF_EVERY_TYPE = bytes.fromhex(
    "9c"  # an array of 12: the eleven types and a field past the format
    "01"
    "ff"
    "c70a011033333333333333333c"
    "d501021c"
    "a161"
    "c40100"
    "c3"
    "d80264d22e4dac924a23899ae59f34af5479"
    "d7040000000000000000"
    "c70306010001"
    "81a16101"
    "c0"
)


def compile_all() -> None:
    """Compile every kernel, by calling each of them."""
    fields = tuple(Field(kind, kind) for kind in _TYPES)
    space = Space(0, 0, "warm", "memtx", fields, (KeyPart(0, "unsigned"),))
    tuples = pa.array([_TUPLE_OF_EVERY_TYPE], pa.binary())
    for options in _COLUMN_OPTIONS:
        decode_tuples(tuples, table_layout([space], options=options))
    canonical_keys(tuples, [space])
    ones, zeros = np.ones(1, np.int64), np.zeros(1, np.int64)
    quick_updates(tuples, ones == 1, ones, tuples, zeros, zeros, [TupleFormat()], len(_TUPLE_OF_EVERY_TYPE))


if __name__ == "__main__":
    compile_all()

"""Compiling ahead: all kernels of a job are compiled once and cached until a source of the package changes."""

import importlib
import pickle
from typing import Any

import pyarrow as pa

from schemas.compiled import digest_of
from schemas.layout import TypeOptions, table_layout
from schemas.space import Field, KeyPart, Space
from tests.udfs.messages import binaries, pack
from udfs.keys.keys import canonical_keys, canonical_keys_with_plan, key_plan
from udfs.tuples.tuples import decode, decode_tuples, decoding_plan

OURS = (
    *(f"udfs.tuples.kernels.{name}" for name in ("walk", "field_writers")),
    *(f"udfs.tuples.kernels.{name}" for name in ("columns", "writers", "variant")),
    *("udfs.kernels.values", "udfs.keys.kernels.keys"),
)
TYPES = (
    *("unsigned", "integer", "number", "decimal", "string", "varbinary", "boolean", "uuid", "datetime"),
    *("interval", "any"),
)
COLUMN_OPTIONS = (TypeOptions(), TypeOptions(unsigned="long", decimal_scale="string", integer="decimal"))
TUPLE_OF_EVERY_TYPE = bytes.fromhex(
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
    """Decode one key and one tuple with a value of every type, which runs all kernels.

    The tuple's number is a decimal of too many digits for the kernel that converts decimals to doubles, so the kernel
    that writes decimals as text runs, too.
    """
    fields = tuple(Field(kind, kind) for kind in TYPES)
    space = Space(0, 0, "warm", "memtx", fields, (KeyPart(0, "unsigned"),))
    tuples = pa.array([TUPLE_OF_EVERY_TYPE], pa.binary())
    for options in COLUMN_OPTIONS:
        decode_tuples(tuples, table_layout([space], options=options))
    canonical_keys(tuples, [space])


def kernels() -> dict[str, Any]:
    """Return the compiled functions of the modules that tuples and keys go through."""
    modules = [importlib.import_module(name) for name in OURS]
    return {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if hasattr(value, "signatures") and value.__module__ == module.__name__
    }


def entries() -> dict[str, Any]:
    return {
        name: kernel
        for name, kernel in kernels().items()
        if not kernel.targetoptions.get("no_cpython_wrapper")
    }


def test_warming_compiles_every_entry_once() -> None:
    compile_all()
    assert {name.rpartition(".")[2] for name in entries()} == {"walk", "write_decimal_texts", "write_keys"}
    assert {name for name, kernel in entries().items() if len(kernel.signatures) != 1} == set()


def test_no_kind_of_input_compiles_a_kernel_again() -> None:
    """Slices, copies, nulls, indexes of any kind and pickled plans have the same types of arrays."""
    compile_all()
    before = {name: list(kernel.signatures) for name, kernel in entries().items()}
    space = Space(
        1, 1, "s", "memtx", (Field("a", "any"), Field("n", "number")), (KeyPart(0, "scalar", ".k"),)
    )
    layout = table_layout([space, space])
    rows = binaries([pack([{"k": "v"}, 1]), None, pack([{"k": 2}, 2, "more"])])
    for tuples in (rows, rows.slice(1), rows.cast(pa.large_binary()), rows.slice(0, 0)):
        for which in (0, pa.array([1] * len(tuples), pa.int32()), pa.array([None] * len(tuples), pa.int64())):
            decode_tuples(tuples, layout, which)
            canonical_keys(tuples, [space, space], which)
            canonical_keys(tuples, [space, space], which, pa.array([True] * len(tuples)))
        decode(tuples, pickle.loads(pickle.dumps(decoding_plan(layout))))
        canonical_keys_with_plan(tuples, pickle.loads(pickle.dumps(key_plan([space]))))
    assert {name: list(kernel.signatures) for name, kernel in entries().items()} == before


def test_every_kernel_is_kept_under_the_digest_of_its_sources() -> None:
    for kernel in entries().values():
        assert kernel._cache._cache_file._stamp == digest_of(kernel.__module__)

"""Small logs as bytes, and short ways to read them; shared by the tests of the format."""

import ctypes
import functools
import mmap
import os
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.iproto import RequestType
from schemas.xrow import XROW_ARROW
from sources.xlog.format.block import EOF_MARKER, encode_block
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import Meta, format_meta
from sources.xlog.format.rows import XROW_PERMISSIVE
from sources.xlog.reader import reader
from tests.bodies import encode_body

INSTANCE = "aaaaaaaa-0000-4000-8000-0000000000a1"
META = Meta("XLOG", "0.13", INSTANCE, {1: 5}, {}, {"Version": "2.6.0"})
HEADER = format_meta(META)
FILE = "00000000000000000005.xlog"


def insert(lsn: int, *fields: object, space_id: int = 512, **header: Any) -> bytes:
    body = encode_body(space_id=space_id, tuple_=msgpack.packb([lsn, *fields]))
    header = {"replica_id": 1, "timestamp": 1.6e9 + lsn / 8, **header}
    return encode_row(RequestType.INSERT, body, lsn=lsn, **header)


def blocks(count: int, rows: int = 2, first: int = 6) -> list[bytes]:
    """Return blocks of rows with running lsns; every third one is compressed."""
    lsns = [range(first + k * rows, first + (k + 1) * rows) for k in range(count)]
    return [
        encode_block(b"".join(insert(lsn, f"row {lsn}") for lsn in part), compress=k % 3 == 2)
        for k, part in enumerate(lsns)
    ]


def log(*parts: bytes, marker: bool = True) -> bytes:
    return HEADER + b"".join(parts) + (EOF_MARKER if marker else b"")


def put(folder: Path, data: bytes, name: str = FILE) -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def table(path: str, *args: Any, **kwargs: Any) -> pa.Table:
    """Return what `read_rows` yields, as one validated table."""
    batches = list(reader.read_rows(*reader.open_fs(path), *args, **kwargs))
    for batch in batches:
        batch.validate(full=True)
    permissive = "PERMISSIVE" in map(str, [*args, *kwargs.values()])
    if not batches:
        return (XROW_PERMISSIVE if permissive else XROW_ARROW).empty_table()
    return pa.Table.from_batches(batches)


def lsns(path: str, *args: Any, **kwargs: Any) -> list[int | None]:
    """Return the lsns that `read_rows` yields; None for a corrupt record."""
    return list(table(path, *args, **kwargs)["lsn"].to_pylist())


@functools.cache
def _guarded_memory(room: int) -> npt.NDArray[np.uint8]:
    """Return memory behind which one page cannot be read."""
    view = np.frombuffer(mmap.mmap(-1, room + mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(view.ctypes.data + room)
    if libc.mprotect(address, ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    return view[:room]


def guarded(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the bytes as an array that ends where memory ends: one byte read behind it kills the process.

    The next call uses the same memory.
    """
    pages = 1 + len(data) // mmap.PAGESIZE
    memory = _guarded_memory((1 << pages.bit_length()) * mmap.PAGESIZE)
    found = memory[memory.size - len(data) :]
    found[:] = np.frombuffer(data, np.uint8)
    return found


def recordings() -> list[Path]:
    """Return all whole log files of the recordings that are here: the repository's, and further ones if present.

    The recording `torn` has a log whose last block its server left out.
    """
    root = Path(__file__).resolve().parents[3]
    named = os.environ.get("AGGREGATOR_RECORDINGS")
    further = Path(named) if named else root.parent / "shared" / "recordings"
    suffixes = ("xlog", "snap", "vylog", "run", "index")
    folders = [root / "tests" / "recordings", further]
    files = [
        file for folder in folders for suffix in suffixes for file in sorted(folder.rglob(f"*.{suffix}"))
    ]
    return [file for file in files if "torn" not in file.parts]

"""A key copy: what a lookup needs of one data file, in a form that is searched where it lies. The format alone.

A copy has the rows of the data file in their order, with the columns that lookups return, and an index of the keys
(`udfs.keys.key_index`). Data files never change, so a copy is never outdated; deleted rows stay in it, and the lookup
leaves them out. A stored copy is mapped into memory, so a lookup reads the pages with its keys alone:

    bytes           content
    8               `MAGIC`
    4               CRC-32C of all that follows, little-endian
    4               length of the header, little-endian
    header          JSON: the name of the copy, the number of rows, the least and the greatest key, the position of each
                    section
    sections        each at a multiple of 64: seeds, starts, hashes, rows (the index), columns (an Arrow IPC file)

A column with one value in all rows is stored once, in the header's `constants` section.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from udfs.buffers import BinaryBuffers, as_array, flatten
from udfs.kernels.keyed_hash import hash_seeds
from udfs.kernels.values import OVERREAD_BYTES
from udfs.keys.key_index import KeyIndex, WantedKeys, build_index, find_in_index

MAGIC = b"KEYCOPY2"

_ALIGNMENT = 64
_START = len(MAGIC) + 8


class CopyError(Exception):
    """A stored copy is damaged, half-written, or not the wanted one: it is made again."""


@dataclass(frozen=True)
class CopyName:
    """Which data file a copy is of, and which columns it has."""

    table: str
    """The URI of the table."""
    path: str
    """The path of the data file, relative to the table's folder."""
    size: int
    key: str
    columns: tuple[str, ...]
    """The columns of the copy, the key's among them."""

    def as_json(self) -> list[Any]:
        """Return the name as it stands in the header."""
        return [self.table, self.path, self.size, self.key, list(self.columns)]


@dataclass(frozen=True)
class KeyCopy:
    """A copy that is open."""

    key: str
    index: KeyIndex
    seeds: NDArray[np.int64]
    columns: pa.Table
    """The columns with several values, one chunk each."""
    constants: pa.Table
    """One row: the columns with one value."""
    row_count: int
    stored_bytes: int
    """The size of the stored copy, or of the one in memory."""
    least: bytes
    greatest: bytes

    @cached_property
    def _keys(self) -> BinaryBuffers:
        return flatten(as_array(self.columns[self.key]), OVERREAD_BYTES)

    @cached_property
    def _arrays(self) -> Mapping[str, pa.Array]:
        return {name: as_array(self.columns[name]) for name in self.columns.column_names}

    @cached_property
    def _values(self) -> Mapping[str, pa.Scalar]:
        return {name: self.constants[name][0] for name in self.constants.column_names}

    def find(self, wanted: WantedKeys) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return (number of the wanted key, row), in the order of the keys; hashes must be by this copy's seeds."""
        return find_in_index(self.index, self._keys, wanted)

    def take(self, rows: NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """Return columns of some rows."""
        places = pa.array(rows)
        arrays = [
            self._arrays[name].take(places)
            if name in self._arrays
            else pa.repeat(self._values[name], len(rows))
            for name in columns
        ]
        return pa.Table.from_arrays(arrays, list(columns))


def copy_of_rows(key: str, rows: pa.Table) -> KeyCopy:
    """Return the copy, in memory, of a data file with these rows."""
    whole = rows.combine_chunks() if rows.num_rows else rows
    constant = [name for name in whole.column_names if name != key and _is_constant(as_array(whole[name]))]
    several = whole.drop_columns(constant)
    seeds = hash_seeds()
    index = build_index(as_array(whole[key]), seeds)
    size = several.nbytes + index.starts.nbytes + index.hashes.nbytes + index.rows.nbytes
    ends = pc.min_max(as_array(whole[key]))
    least, greatest = (ends[name].as_py() or b"" for name in ("min", "max"))
    constants = whole.select(constant).slice(0, 1)
    return KeyCopy(key, index, seeds, several, constants, whole.num_rows, size, least, greatest)


def _is_constant(column: pa.Array) -> bool:
    if not len(column) or column.null_count == len(column):
        return len(column) > 0
    if column.null_count or pa.types.is_nested(column.type):
        return False
    first, last = column[0], column[len(column) - 1]
    # The first and the last row tell apart nearly all columns without a look at all rows.
    return bool(first == last) and bool(pc.all(pc.equal(column, first)).as_py())


def encode_copy(name: CopyName, copy: KeyCopy) -> list[Any]:
    """Return the content of the stored copy, as pieces with the protocol of buffers."""
    sections: dict[str, Any] = {
        "seeds": np.ascontiguousarray(copy.seeds).view(np.uint8),
        "starts": np.ascontiguousarray(copy.index.starts).view(np.uint8),
        "hashes": np.ascontiguousarray(copy.index.hashes).view(np.uint8),
        "rows": np.ascontiguousarray(copy.index.rows).view(np.uint8),
        "constants": memoryview(_as_ipc(copy.constants)),
        "columns": memoryview(_as_ipc(copy.columns)),
    }
    # The header's length must not depend on the positions in it, so these are relative to its end.
    position, places = 0, {}
    for section, content in sections.items():
        places[section] = (position, len(content))
        position += len(content) + -len(content) % _ALIGNMENT
    ends = [copy.least.hex(), copy.greatest.hex()]
    about = {"name": name.as_json(), "rows": copy.row_count, "ends": ends, "sections": places}
    header = json.dumps(about).encode()
    header += b" " * (-(_START + len(header)) % _ALIGNMENT)
    parts: list[Any] = [struct.pack("<I", len(header)), header]
    for content in sections.values():
        parts += [content, b"\0" * (-len(content) % _ALIGNMENT)]
    checksum = 0
    for part in parts:
        if len(part):
            checksum = google_crc32c.extend(checksum, np.frombuffer(memoryview(part).toreadonly(), np.uint8))
    return [MAGIC, struct.pack("<I", checksum), *parts]


def _as_ipc(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=max(rows.num_rows, 1))
    return sink.getvalue()


def open_copy(stored: pa.Buffer, name: CopyName) -> KeyCopy:
    """Return the copy in a stored, perhaps mapped, file.

    Raises:
        CopyError: The file is damaged, or is the copy of something else.
    """
    view = memoryview(stored)
    if len(view) < _START or bytes(view[: len(MAGIC)]) != MAGIC:
        raise CopyError("it is not a key copy")
    checksum, length = struct.unpack_from("<II", view, len(MAGIC))
    if google_crc32c.extend(0, np.frombuffer(view[len(MAGIC) + 4 :], np.uint8)) != checksum:
        raise CopyError("its checksum is wrong")
    header = json.loads(bytes(view[_START : _START + length]))
    if header["name"] != name.as_json():
        raise CopyError(f"it is the copy of {header['name'][:2]}")
    places: Mapping[str, Sequence[int]] = header["sections"]

    def section(which: str) -> pa.Buffer:
        begin, size = places[which]
        return stored.slice(_START + length + begin, size)

    index = KeyIndex(
        np.frombuffer(section("starts"), np.int32),
        np.frombuffer(section("hashes"), np.uint32),
        np.frombuffer(section("rows"), np.int32),
    )
    seeds = np.frombuffer(section("seeds"), np.int64)
    columns, constants = (pa.ipc.open_file(section(which)).read_all() for which in ("columns", "constants"))
    ends = map(bytes.fromhex, header["ends"])
    return KeyCopy(name.key, index, seeds, columns, constants, header["rows"], stored.size, *ends)

"""Deletion vectors: which rows of a data file are deleted. The format alone, without I/O.

A batch that changes rows of a large file does not write the file again: it writes a vector with the numbers of the
deleted rows. The vectors of one commit to a table lie in one file, `deletion_vector_<uuid>.bin` (Delta protocol,
"Deletion Vectors" and "Deletion Vector Format"):

    byte            value
    0               version of the format, 1
    then for each vector, at its descriptor's offset:
    4               length of the data in bytes, big-endian
    length          data: the magic number 1681511377 as 4 bytes little-endian, then the row numbers as a
                    64-bit Roaring bitmap in the portable format
    4               CRC-32 of the data, big-endian

The log names a vector by a *descriptor*, a part of a file's `add` and `remove`. A vector never grows beyond about one
bit for each row of its file.
"""

from __future__ import annotations

import base64
import struct
import uuid as uuids
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from schemas.errors import WarehouseError

FORMAT_VERSION = 1

MAGIC = 1681511377
"""The magic number of a vector's data: "native" and "portable" Roaring bitmaps have other numbers."""

FEATURE = "deletionVectors"
"""The name of the table feature, which the protocol of a table lists for readers and for writers."""

ENABLING_PROPERTY = "delta.enableDeletionVectors"
"""The property of a table that allows writers to make new vectors."""

RELATIVE, INLINE, ABSOLUTE = "u", "i", "p"
"""Where a vector is stored (`storageType`): in a file named by a uuid, in the log itself, in a file named by a path."""

_UUID_CHARACTERS = 20
"""The length of a uuid in Z85. Characters before it name a folder of the table."""

_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)

_FEW_ROWS = 64
"""Up to this many rows are looked up in a bitmap one by one, which is faster than an intersection."""

RowNumbers = NDArray[np.int64]
"""Numbers of rows in a data file, ascending, each once."""

NO_ROWS: RowNumbers = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Descriptor:
    """Where a deletion vector is stored, as the log names it (Delta protocol, "Deletion Vector Descriptor Schema")."""

    storage: str
    """`RELATIVE`, `INLINE` or `ABSOLUTE`."""
    place: str
    """The uuid of the file in Z85, perhaps after a folder; the vector itself in Z85; or the path of the file."""
    size: int
    """The length of the vector's data in bytes."""
    cardinality: int
    """The number of deleted rows."""
    offset: int | None = None
    """Where in the file the vector begins, at its length; None for an inline vector."""

    @property
    def id(self) -> str:
        """The unique id of the vector in its table (Delta protocol, "Derived Fields")."""
        return f"{self.storage}{self.place}" + ("" if self.offset is None else f"@{self.offset}")

    @property
    def path(self) -> str | None:
        """The file that has the vector, relative to the table's folder or absolute; None for an inline vector."""
        if self.storage == INLINE:
            return None
        if self.storage == ABSOLUTE:
            return self.place
        folder, name = self.place[:-_UUID_CHARACTERS], self.place[-_UUID_CHARACTERS:]
        file = file_name(uuids.UUID(bytes=_from_z85(name)))
        return f"{folder}/{file}" if folder else file

    def as_action(self) -> dict[str, Any]:
        """Return the descriptor as a part of an `add` or `remove` of the log."""
        found: dict[str, Any] = {"storageType": self.storage, "pathOrInlineDv": self.place}
        if self.offset is not None:
            found["offset"] = self.offset
        return {**found, "sizeInBytes": self.size, "cardinality": self.cardinality}

    @classmethod
    def of_action(cls, action: Mapping[str, Any]) -> Descriptor | None:
        """Return the descriptor in an `add` or `remove` of the log; None if the file has no vector."""
        found = action.get("deletionVector")
        if not found or found.get("storageType") is None:
            return None
        return cls(
            found["storageType"],
            found["pathOrInlineDv"],
            int(found["sizeInBytes"]),
            int(found["cardinality"]),
            None if found.get("offset") is None else int(found["offset"]),
        )


def file_name(name: uuids.UUID) -> str:
    """Return the name of the file of deletion vectors with a uuid."""
    return f"deletion_vector_{name}.bin"


def encode_file(name: uuids.UUID, vectors: Sequence[BitMap64]) -> tuple[bytes, list[Descriptor]]:
    """Return the content of the file with some vectors, and the descriptor of each of them."""
    place = _to_z85(name.bytes)
    parts, descriptors, offset = [bytes([FORMAT_VERSION])], [], 1
    for rows in vectors:
        data = encode(rows)
        descriptors.append(Descriptor(RELATIVE, place, len(data), len(rows), offset))
        parts += [struct.pack(">i", len(data)), data, struct.pack(">I", zlib.crc32(data))]
        offset += len(data) + 8
    return b"".join(parts), descriptors


def bitmap_of(rows: NDArray[np.integer[Any]]) -> BitMap64:
    """Return a new bitmap with some row numbers, which may be in any order."""
    return BitMap64(np.ascontiguousarray(rows, np.uint64))


def rows_of(bitmap: BitMap64) -> RowNumbers:
    """Return the row numbers in a bitmap."""
    return np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64)


def encode(bitmap: BitMap64) -> bytes:
    """Return row numbers as the data of a vector."""
    bitmap.run_optimize()
    return struct.pack("<i", MAGIC) + bitmap.serialize()


def decode_stored(stored: bytes, descriptor: Descriptor) -> BitMap64:
    """Return the row numbers of a vector from its bytes in the file: length, data, checksum."""
    size = descriptor.size
    if len(stored) < size + 8 or struct.unpack_from(">i", stored)[0] != size:
        raise _damaged(descriptor, "it does not have the length that the log names")
    data = stored[4 : 4 + size]
    if struct.unpack_from(">I", stored, 4 + size)[0] != zlib.crc32(data):
        raise _damaged(descriptor, "its checksum is wrong")
    return decode(data, descriptor)


def decode_inline(descriptor: Descriptor) -> BitMap64:
    """Return the row numbers of a vector that the log itself has; raise WarehouseError if they are damaged."""
    return decode(_from_z85(descriptor.place)[: descriptor.size], descriptor)


def decode(data: bytes, descriptor: Descriptor) -> BitMap64:
    """Return the row numbers in the data of a vector; raise WarehouseError if they are damaged."""
    if len(data) < 4 or struct.unpack_from("<i", data)[0] != MAGIC:
        raise _damaged(descriptor, "it does not begin with the magic number")
    try:
        bitmap = BitMap64.deserialize(data[4:])
    except ValueError as error:
        raise _damaged(descriptor, f"its bitmap cannot be read ({error})") from error
    if len(bitmap) != descriptor.cardinality:
        raise _damaged(descriptor, f"it has {len(bitmap)} rows, not {descriptor.cardinality}")
    return bitmap


def is_deleted(bitmap: BitMap64 | None, asked: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return for each row that is asked for whether a vector has it; None is a vector without rows."""
    if not bitmap or not len(asked):
        return np.zeros(len(asked), np.bool_)
    if len(asked) <= _FEW_ROWS:
        return np.array([row in bitmap for row in asked.tolist()], np.bool_)
    found: NDArray[np.bool_] = np.isin(asked, rows_of(bitmap_of(asked) & bitmap))
    return found


def _damaged(descriptor: Descriptor, reason: str) -> WarehouseError:
    return WarehouseError(
        f"a deletion vector is damaged: {reason}",
        file=descriptor.path,
        offset=descriptor.offset,
        advice="restore the file from a copy, or build the table again (aggregator rebuild)",
    )


def _to_z85(data: bytes) -> str:
    """Return bytes in Z85 (ZeroMQ RFC 32); their number must be a multiple of 4."""
    return base64.b85encode(data).translate(_TO_Z85).decode()


def _from_z85(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_FROM_Z85))

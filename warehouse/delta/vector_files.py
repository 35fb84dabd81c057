"""Writes the files of deletion vectors of a table, and reads vectors, which a process keeps."""

import uuid as uuids
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote, urlparse

from pyroaring import BitMap64

from schemas.errors import WarehouseError
from warehouse.delta.deletion_vectors import (
    ABSOLUTE,
    INLINE,
    Descriptor,
    RowNumbers,
    decode_inline,
    decode_stored,
    encode_file,
    file_name,
    rows_of,
)
from warehouse.delta.location import WarehouseLocation

KEPT_ROWS = 64 << 20
"""The vectors that a process keeps have at most this many rows together, of at most 2 bytes each."""


@dataclass
class VectorReader:
    """Reads deletion vectors, and keeps the newest one of each data file. A vector never changes."""

    location: WarehouseLocation
    _kept: OrderedDict[tuple[str, str], tuple[str, BitMap64]] = field(default_factory=OrderedDict)
    """By table and data file: the id of the vector, and its rows."""
    _kept_rows: int = 0

    def bitmap(self, table: str, file: str, vector: Descriptor) -> BitMap64:
        """Return the rows that the vector of a data file deletes, which the caller must not change."""
        vector_id, found = self._kept.get((table, file), ("", None))
        if found is None or vector_id != vector.id:
            found = read_bitmap(self.location, table, vector)
            self.keep(table, file, vector, found)
        return found

    def keep(self, table: str, file: str, vector: Descriptor, bitmap: BitMap64) -> None:
        """Keep the rows of a vector of a data file, which was just read or written."""
        _, old = self._kept.pop((table, file), ("", ()))
        self._kept[table, file] = vector.id, bitmap
        self._kept_rows += len(bitmap) - len(old)
        while self._kept_rows > KEPT_ROWS and len(self._kept) > 1:
            _, (_, oldest) = self._kept.popitem(last=False)
            self._kept_rows -= len(oldest)


@lru_cache(maxsize=4)
def vector_reader(location: WarehouseLocation) -> VectorReader:
    """Return this process's reader of a warehouse's vectors: the writer leaves there what lookups read next."""
    return VectorReader(location)


def write_vectors(
    location: WarehouseLocation, table: str, vectors: Mapping[str, BitMap64]
) -> dict[str, Descriptor]:
    """Write the vectors of some data files into one new file, and return their descriptors by path of the data file."""
    if not vectors:
        return {}
    name = uuids.uuid4()
    content, descriptors = encode_file(name, list(vectors.values()))
    with location.fs.open_output_stream(location.at(table, file_name(name))) as stream:
        stream.write(content)
    return dict(zip(vectors, descriptors, strict=True))


def read_vector(location: WarehouseLocation, table: str, vector: Descriptor) -> RowNumbers:
    """Return the numbers of the rows that a vector deletes; raise WarehouseError if it cannot be read."""
    return rows_of(read_bitmap(location, table, vector))


def read_bitmap(location: WarehouseLocation, table: str, vector: Descriptor) -> BitMap64:
    """Return the rows that a vector deletes; raise WarehouseError if it cannot be read."""
    if vector.storage == INLINE:
        return decode_inline(vector)
    place = vector.path or ""
    path = urlparse(unquote(place)).path if vector.storage == ABSOLUTE else location.at(table, place)
    try:
        with location.fs.open_input_file(path) as file:
            stored = file.read_at(vector.size + 8, vector.offset or 0)
    except OSError as error:
        raise WarehouseError(
            f"a deletion vector cannot be read: {error}",
            table=table,
            file=path,
            advice="restore the file from a copy, or build the table again (aggregator rebuild)",
        ) from error
    return decode_stored(stored, vector)

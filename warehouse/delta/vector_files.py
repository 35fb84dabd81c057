"""Writes the files of deletion vectors of a table, and reads vectors, which a process keeps."""

from __future__ import annotations

import uuid as uuids
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlparse

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
)
from warehouse.delta.location import WarehouseLocation

KEPT_ROWS = 32 << 20
"""The vectors that a process keeps have at most this many rows together, of 8 bytes each."""


@dataclass
class VectorReader:
    """Reads deletion vectors, and keeps those that were used last. A vector never changes."""

    location: WarehouseLocation
    _vectors: OrderedDict[tuple[str, str], RowNumbers] = field(default_factory=OrderedDict)
    _kept_rows: int = 0

    def rows(self, table: str, vector: Descriptor) -> RowNumbers:
        """Return the numbers of the rows that a vector deletes; raise WarehouseError if it cannot be read."""
        name = (table, vector.id)
        found = self._vectors.get(name)
        if found is None:
            found = read_vector(self.location, table, vector)
            self.keep(table, vector, found)
        else:
            self._vectors.move_to_end(name)
        return found

    def keep(self, table: str, vector: Descriptor, rows: RowNumbers) -> None:
        """Keep the rows of a vector that was just written."""
        self._vectors[table, vector.id] = rows
        self._kept_rows += len(rows)
        while self._kept_rows > KEPT_ROWS and len(self._vectors) > 1:
            self._kept_rows -= len(self._vectors.popitem(last=False)[1])


def write_vectors(
    location: WarehouseLocation, table: str, vectors: Mapping[str, RowNumbers]
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

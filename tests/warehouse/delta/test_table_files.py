"""The door to data files: deleted rows are left out of every read, and row numbers stay physical."""

import uuid as uuids
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from schemas.errors import WarehouseError
from warehouse.delta.data_files import write_file
from warehouse.delta.deletion_vectors import (
    INLINE,
    RELATIVE,
    Descriptor,
    _to_z85,
    bitmap_of,
    encode,
    encode_file,
    file_name,
)
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.table_files import (
    NumberedRows,
    TableFile,
    open_file,
    open_footer,
    read_file,
    read_row_groups,
)

ROWS = 100
GROUP_ROWS = 30
DELETED = np.array([0, 29, 30, 31, 60, 61, 99], np.int64)


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WarehouseLocation:
    monkeypatch.setattr("warehouse.delta.data_files.ROW_GROUP_ROWS", GROUP_ROWS)
    (tmp_path / "aggregator.db" / "s").mkdir(parents=True)
    return location_of(str(tmp_path))


def plain_file(location: WarehouseLocation) -> TableFile:
    rows = pa.table({"_key": [b"%03d" % number for number in range(ROWS)], "n": list(range(ROWS))})
    return write_file(location, "s", rows).as_table_file()


def with_vectors(location: WarehouseLocation, file: TableFile, *vectors: np.ndarray) -> list[TableFile]:
    """Return the file with each of some deletion vectors, which one file has."""
    name = uuids.uuid4()
    content, descriptors = encode_file(name, [bitmap_of(one) for one in vectors])
    Path(location.at("s", file_name(name))).write_bytes(content)
    return [replace(file, vector=one) for one in descriptors]


def joined(parts: list[NumberedRows]) -> dict[int, int]:
    return {
        number: value
        for part in parts
        for number, value in zip(part.numbers.tolist(), part.rows["n"].to_pylist(), strict=True)
    }


def test_deleted_rows_are_left_out_of_every_read(location: WarehouseLocation) -> None:
    _, file = with_vectors(location, plain_file(location), np.arange(5, dtype=np.int64), DELETED)
    live = sorted(set(range(ROWS)) - set(DELETED.tolist()))
    assert read_file(location, "s", file, ["n"])["n"].to_pylist() == live
    assert read_file(location, "s", file).column_names == ["_key", "n"]
    assert joined(list(read_row_groups(location, "s", file))) == {number: number for number in live}
    (second,) = read_row_groups(location, "s", file, ["n"], [1])
    assert joined([second]) == {number: number for number in live if 30 <= number < 60}
    with open_file(location, "s", file) as opened:
        assert opened.row_numbers().tolist() == live
        assert opened.key_ranges("_key").least[1] == b"030", "a bound, although its row is deleted"
    assert open_footer(location, "s", file).num_rows == ROWS
    assert (file.num_records, file.rows) == (ROWS, len(live))


def test_a_file_without_a_vector_is_read_whole(location: WarehouseLocation) -> None:
    file = plain_file(location)
    assert read_file(location, "s", file)["n"].to_pylist() == list(range(ROWS))
    assert joined(list(read_row_groups(location, "s", file))) == {number: number for number in range(ROWS)}
    assert (file.rows, replace(file, num_records=None).rows) == (ROWS, None)


def test_a_file_of_deleted_rows_alone(location: WarehouseLocation) -> None:
    (file,) = with_vectors(location, plain_file(location), np.arange(ROWS, dtype=np.int64))
    assert read_file(location, "s", file).num_rows == file.rows == 0
    assert [len(group.numbers) for group in read_row_groups(location, "s", file)] == [0, 0, 0, 0]


def test_files_are_equal_by_path_and_vector(location: WarehouseLocation) -> None:
    file = plain_file(location)
    one, other = with_vectors(location, file, DELETED, DELETED[:1])
    assert len({file, one, other, replace(one, size=1, num_records=None)}) == 3
    assert len({file.id, one.id, other.id}) == 3


def test_a_vector_in_the_log_itself(location: WarehouseLocation) -> None:
    data = encode(bitmap_of(DELETED))
    padded = data + bytes(-len(data) % 4)
    file = replace(plain_file(location), vector=Descriptor(INLINE, _to_z85(padded), len(data), len(DELETED)))
    assert read_file(location, "s", file).num_rows == ROWS - len(DELETED)


def test_a_damaged_or_missing_vector_is_an_error(location: WarehouseLocation) -> None:
    (file,) = with_vectors(location, plain_file(location), DELETED)
    assert file.vector is not None
    path = Path(location.at("s", str(file.vector.path)))
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(WarehouseError, match="damaged"):
        read_file(location, "s", file)
    path.unlink()
    with pytest.raises(WarehouseError, match="cannot be read"):
        read_file(location, "s", file)
    assert file.vector.storage == RELATIVE

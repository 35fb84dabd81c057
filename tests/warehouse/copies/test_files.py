"""Files on their way: whole and checked, or not there."""

from pathlib import Path

import pytest

from schemas.errors import SyncError
from warehouse.copies import files
from warehouse.delta.location import WarehouseLocation, location_of


@pytest.fixture
def locations(tmp_path: Path) -> tuple[WarehouseLocation, WarehouseLocation]:
    (tmp_path / "a.db" / "t").mkdir(parents=True)
    return location_of(str(tmp_path / "a.db")), location_of(str(tmp_path / "b.db"))


def test_a_file_arrives_as_it_is(locations: tuple[WarehouseLocation, WarehouseLocation]) -> None:
    source, target = locations
    content = bytes(range(256)) * 40_000
    Path(source.at("t", "f")).write_bytes(content)
    assert files.copy(source, target, "t", "f") == len(content) > 2 * files.CHUNK_BYTES
    assert Path(target.at("t", "f")).read_bytes() == content
    assert files.have_same_content(source, target, "t", "f")
    assert files.file_sizes(target, "t") == {"f": len(content)}
    assert list(Path(target.at(files.UNFINISHED_FOLDER)).iterdir()) == []


def test_what_was_there_and_hadoops_checksum_of_it_are_replaced(
    locations: tuple[WarehouseLocation, WarehouseLocation],
) -> None:
    source, target = locations
    Path(source.at("t", "f")).write_text("new")
    Path(target.at("t")).mkdir(parents=True)
    Path(target.at("t", "f")).write_text("old")
    Path(target.at("t", ".f.crc")).write_text("sum of the old one")
    files.copy(source, target, "t", "f")
    assert [(f.name, f.read_text()) for f in Path(target.at("t")).iterdir()] == [("f", "new")]


def test_a_missing_file_is_reported(locations: tuple[WarehouseLocation, WarehouseLocation]) -> None:
    source, target = locations
    with pytest.raises(SyncError, match="vanished while it was copied") as caught:
        files.copy(source, target, "t", "gone")
    assert caught.value.fields["file"] == source.at("t", "gone")


def test_a_file_that_reads_back_otherwise_is_not_put(
    locations: tuple[WarehouseLocation, WarehouseLocation], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = locations
    Path(source.at("t", "f")).write_text("content")

    # A store that loses bytes between writing and reading.
    monkeypatch.setattr(files, "checksum", lambda *_: 0)
    with pytest.raises(SyncError, match="does not read back as it was written"):
        files.copy(source, target, "t", "f")
    assert not Path(target.at("t", "f")).exists()


def test_the_checksum_is_crc_32c(locations: tuple[WarehouseLocation, WarehouseLocation]) -> None:
    source, _ = locations
    Path(source.at("t", "f")).write_bytes(b"123456789")
    # The check value of CRC-32C (RFC 3720, appendix B.4, and every catalogue of CRCs).
    assert files.checksum(source, "t", "f") == 0xE3069283


def test_notes_are_kept_until_they_are_removed(
    locations: tuple[WarehouseLocation, WarehouseLocation],
) -> None:
    _, target = locations
    assert files.recorded_discarded_table_names(target) == set()
    files.record_discarded_table_names(target, ["one", "two"])
    files.record_discarded_table_names(target, ["three"])
    assert files.recorded_discarded_table_names(target) == {"three"}
    files.remove_unfinished_files(target)
    assert files.recorded_discarded_table_names(target) == {"three"}
    files.remove(target, files.DISCARDED_FILE)
    assert files.recorded_discarded_table_names(target) == set()


def test_hadoops_checksum_is_next_to_the_file() -> None:
    assert files.hadoop_checksum_path("/w/t/part-0.parquet") == "/w/t/.part-0.parquet.crc"
    assert files.hadoop_checksum_path("part-0.parquet") == ".part-0.parquet.crc"

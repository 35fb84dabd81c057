"""What a task yields: columns, selections, whitelists of instances, lenient modes."""

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from schemas.errors import (
    ConfigurationError,
    SourceError,
    XlogChecksumError,
    XlogMissingError,
    XlogTruncatedError,
)
from schemas.xrow import CORRUPT_COLUMN, SOURCES_ARROW, XROW_ARROW
from sources.xlog.datasource import XlogDataSource, schema_of
from sources.xlog.directory.offset import to_text
from sources.xlog.format.block import FIXED_HEADER_SIZE, MAGIC_PLAIN
from sources.xlog.options import parse_options
from sources.xlog.spark_readers import XlogReader, XlogStreamReader
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.read import read_range
from tests.sources.xlog.logs import BLOCK, SPACE, A, Server, lsns, rows_between, uuid_of


def table(path: Path, **given: str) -> pa.Table:
    """Return what a batch read gives, without Spark."""
    options = parse_options({"path": str(path)} | given)
    reader = XlogReader(options)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return pa.Table.from_batches(batches, schema_of(options))


def read_all(reader: XlogReader) -> None:
    for partition in reader.partitions():
        for _ in reader.read(partition):
            pass


def read_lsns(path: Path, **given: str) -> list[int]:
    rows = table(path, **given)
    found: list[int] = rows.filter(pa.compute.equal(rows["space_id"], SPACE))["lsn"].to_pylist()
    return found


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Two files: 6 rows of instance a1 and 4 of a2, alternately, then a local row."""
    server = Server(tmp_path / "a1")
    server.snapshot(cluster={1: "a1", 2: "a2"})
    for _ in range(4):
        server.write(1).write(2)
    server.rotate().write(1, rows=2).write(0)
    return server.path


def test_columns_are_those_of_the_schema(written: Path) -> None:
    rows = table(written)
    assert rows.schema == XROW_ARROW
    assert rows["instance_uuid"].unique().to_pylist() == [uuid_of("a1")]
    named = LogStream(parse_options({"sources": json.dumps([{"name": "a1", "path": str(written)}])}))
    start = named.initial()
    task = tasks_of(named, segments_between(named, start, named.latest(start)))[0]
    batches = [batch for piece in task for batch in read_range(piece, named.options)]
    assert all(batch.schema == SOURCES_ARROW for batch in batches)
    rows = pa.Table.from_batches(batches)
    assert rows["replicaset_uuid"].unique().to_pylist() == [A]
    assert rows["source"].unique().to_pylist() == ["a1"]
    assert rows.group_by("segment").aggregate([("file", "count_distinct")])[
        "file_count_distinct"
    ].to_pylist() == [1, 1]


def test_spaces_are_chosen_by_id(written: Path) -> None:
    assert table(written, spaces="320").num_rows == 0
    assert table(written, spaces="320", includeSnapshot="true").num_rows == 2
    assert table(written, spaces=f"[{SPACE}, 320]").num_rows == 11


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"fromVclock": '{"1": 3, "2": 4}'}, [(1, 4), (1, 5), (1, 6), (0, 1)]),
        ({"fromVclock": '{"0": 1, "1": 5}', "toVclock": '{"1": 6, "2": 2}'}, [(2, 1), (2, 2), (1, 6)]),
        ({"toVclock": '{"1": 1}'}, [(1, 1)]),
        ({"fromTimestamp": "3", "toTimestamp": "5"}, [(1, 3), (2, 3), (1, 4), (2, 4)]),
        ({"fromTimestamp": "6"}, [(1, 6)]),
        ({"toTimestamp": "1"}, []),
    ],
)
def test_vclocks_and_times_bound_a_batch(
    written: Path, given: dict[str, str], expected: list[tuple[int, int]]
) -> None:
    rows = table(written, **given)
    assert [
        (row["replica_id"] or 0, row["lsn"]) for row in rows.select(["replica_id", "lsn"]).to_pylist()
    ] == expected


def test_bounds_do_not_touch_a_snapshot(written: Path) -> None:
    rows = table(written, includeSnapshot="true", fromTimestamp="6", toVclock='{"1": 6}')
    assert rows.filter(pa.compute.is_null(rows["replica_id"])).num_rows == 5
    assert rows.filter(pa.compute.is_valid(rows["replica_id"]))["lsn"].to_pylist() == [6]


def test_a_batch_is_bounded_by_offsets(tmp_path: Path) -> None:
    server = Server(tmp_path).write(rows=4)
    stream = XlogStreamReader(parse_options({"path": str(tmp_path)}))
    begun = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    first = json.dumps(stream.latestOffset(begun, stream.getDefaultReadLimit()))
    server.write(rows=3)
    second = json.dumps(stream.latestOffset(json.loads(first), stream.getDefaultReadLimit()))
    server.write(rows=3)
    assert read_lsns(tmp_path, startOffset=first, endOffset=second) == [5, 6, 7]
    assert read_lsns(tmp_path, endOffset=second) == list(range(1, 8))
    assert read_lsns(tmp_path, startOffset=second) == [8, 9, 10]


def test_origins_keep_the_rows_of_those_instances(written: Path) -> None:
    rows = table(written, origins=uuid_of("a2"))
    assert set(rows["replica_id"].to_pylist()) == {2}
    assert rows.num_rows == 4
    rows = table(written, origins=uuid_of("a1"))
    assert [(row["replica_id"], row["group_id"]) for row in rows.to_pylist()][-1] == (None, 1), (
        "its local row too"
    )
    assert rows.num_rows == 7
    assert table(written, origins=uuid_of("a1"), includeSnapshot="true").num_rows == 5 + 7
    assert table(written, origins=uuid_of("b1")).num_rows == 0


def test_an_id_means_an_instance_from_its_registration_on(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.snapshot(cluster={1: "a1"})
    server.write(1, rows=2).system(320, [2, uuid_of("a2")]).write(2, rows=3).rotate()
    server.write(2, rows=2)
    server.system(320, [2, uuid_of("a3")])  # id 2 has a new instance, which continues from lsn 5
    server.write(2, rows=4)
    assert read_lsns(tmp_path, origins=uuid_of("a2")) == [1, 2, 3, 4, 5]
    assert read_lsns(tmp_path, origins=uuid_of("a3")) == [6, 7, 8, 9]
    assert read_lsns(tmp_path, origins=f"{uuid_of('a2')},{uuid_of('a3')}") == list(range(1, 10))


def test_a_snapshot_says_nothing_about_the_logs_before_it(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.snapshot(cluster={1: "a1", 2: "a2"})
    server.write(2, rows=3).system(320, [2, uuid_of("a3")]).write(2, rows=2)
    server.snapshot(cluster={1: "a1", 2: "a3"})
    server.write(2, rows=2)
    assert read_lsns(tmp_path, origins=uuid_of("a2")) == [1, 2, 3]
    assert read_lsns(tmp_path, origins=uuid_of("a3")) == [4, 5, 6, 7]


def test_a_stream_knows_ids_from_files_that_are_passed(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.snapshot(cluster={1: "a1"})
    server.system(320, [2, uuid_of("a2")]).write(2, rows=2)
    options = parse_options({"path": str(tmp_path), "origins": uuid_of("a2")})
    at = LogStream(options).latest(LogStream(options).initial())
    server.write(2, rows=2).rotate().write(2, rows=2)
    asked = LogStream(options)  # restarted
    assert lsns(rows_between(asked, at, asked.latest(at)), 2) == [3, 4, 5, 6]


def test_a_row_of_an_unknown_instance_is_neither_taken_nor_left(tmp_path: Path) -> None:
    Server(tmp_path).write(3)
    with pytest.raises(SourceError, match="replica id 3"):
        table(tmp_path, origins=uuid_of("a1"))


def test_a_source_has_a_whitelist_of_its_own(written: Path) -> None:
    named = [{"name": "a1", "path": str(written), "origins": [uuid_of("a2")]}]
    asked = LogStream(parse_options({"sources": json.dumps(named), "origins": uuid_of("a1")}))
    start = asked.initial()
    assert {id_ for _, id_, _ in rows_between(asked, start, asked.latest(start))} == {2}


def damaged(tmp_path: Path) -> Path:
    Server(tmp_path).write(rows=5).rotate()
    path = tmp_path / "00000000000000000000.xlog"
    data = bytearray(path.read_bytes())
    data[-4 - 2 * BLOCK - 3] ^= 1
    path.write_bytes(data)
    return tmp_path


def test_a_wrong_checksum_is_an_error_with_its_position(tmp_path: Path) -> None:
    with pytest.raises(XlogChecksumError) as caught:
        table(damaged(tmp_path))
    assert caught.value.fields["file"] == "00000000000000000000.xlog"
    assert caught.value.fields["offset"] > 0


def test_lenient_modes_leave_out_one_block_and_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_lsns(damaged(tmp_path), mode="DROPMALFORMED") == [1, 2, 4, 5]
    assert "1 damaged parts" in caplog.text
    rows = table(tmp_path, mode="PERMISSIVE")
    assert rows.schema.names[-1] == CORRUPT_COLUMN
    corrupt = [row for row in rows.to_pylist() if row[CORRUPT_COLUMN] is not None]
    assert len(corrupt) == 1
    assert "checksum" in corrupt[0][CORRUPT_COLUMN]
    assert corrupt[0]["file"] == "00000000000000000000.xlog"


@pytest.mark.parametrize("filler", ["", "x" * 5000])
@pytest.mark.parametrize("split", [7, BLOCK, 3 * BLOCK, 1000, 12_000])
def test_any_split_gives_the_same_rows(tmp_path: Path, split: int, filler: str) -> None:
    server = Server(tmp_path, filler=filler)
    for _ in range(3):
        server.write(rows=20).rotate()
    options = parse_options({"path": str(tmp_path), "splitBytes": str(split)})
    partitions = XlogReader(options).partitions()
    known = {piece.at_block_starts for partition in partitions for piece in partition.ranges}
    assert known == {filler != "" or split >= 20 * BLOCK}, "headers of small blocks are not walked"
    assert len(partitions) > 3 or split > 20 * BLOCK
    read = [pickle.loads(pickle.dumps(p)) for p in partitions]
    batches = [batch for partition in read for batch in XlogReader(options).read(partition)]
    assert pa.Table.from_batches(batches)["lsn"].to_pylist() == list(range(1, 61))


@pytest.mark.parametrize("filler", ["", "x" * 5000])
def test_damage_is_found_whatever_the_split(tmp_path: Path, filler: str) -> None:
    """A block that claims to be longer than its file would hide all behind it, if it were taken for a torn tail."""
    Server(tmp_path, filler=filler).write(rows=20).rotate().write(rows=1)
    path = tmp_path / "00000000000000000000.xlog"
    data = path.read_bytes()
    blocks = [at for at in range(len(data)) if data.startswith(MAGIC_PLAIN.to_bytes(4, "big"), at)]
    # Length, checksum of the block before (0), checksum, padding: 19 bytes with the magic, as in a sound header.
    claim = b"\xce\x00\x0f\xff\xff" + b"\x00" + b"\xce\x00\x00\x00\x00" + b"\xa3\x00\x00\x00"
    path.write_bytes(data[: blocks[10] + 4] + claim + data[blocks[10] + FIXED_HEADER_SIZE :])
    for split in (len(data) // 7, len(data) // 3, len(data)):
        reader = XlogReader(
            parse_options({"path": str(tmp_path), "splitBytes": str(split), "gaps": "report"})
        )
        with pytest.raises(XlogTruncatedError):
            read_all(reader)


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
@pytest.mark.parametrize("split", ["1", "500", "32m"])
@pytest.mark.parametrize("torn", [0, 3, 10, 30])
def test_what_a_killed_server_left_of_a_block_is_no_damage_whatever_the_split(
    tmp_path: Path, torn: int, split: str, mode: str
) -> None:
    server, rows = Server(tmp_path), 20 if split == "1" else 100
    server.write(rows=rows).crash(torn).write(rows=3)
    assert read_lsns(tmp_path, splitBytes=split, mode=mode) == list(range(1, rows + 4))
    corrupt = table(tmp_path, splitBytes=split, mode="PERMISSIVE")[CORRUPT_COLUMN]
    assert corrupt.null_count == len(corrupt)


def test_a_file_that_goes_after_planning_is_named(tmp_path: Path) -> None:
    Server(tmp_path).write()
    reader = XlogReader(parse_options({"path": str(tmp_path)}))
    partition = reader.partitions()[0]
    (tmp_path / "00000000000000000000.xlog").unlink()
    with pytest.raises(XlogMissingError, match=r"00000000000000000000\.xlog"):
        list(reader.read(partition))


def test_a_file_truncated_after_planning_is_an_error(tmp_path: Path) -> None:
    Server(tmp_path).write(rows=3)
    reader = XlogReader(parse_options({"path": str(tmp_path)}))
    partition = reader.partitions()[0]
    path = tmp_path / "00000000000000000000.xlog"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(XlogTruncatedError):
        list(reader.read(partition))


def test_the_stream_reader_travels_without_what_it_remembers(tmp_path: Path) -> None:
    Server(tmp_path).write(rows=3)
    stream = XlogStreamReader(parse_options({"path": str(tmp_path)}))
    assert stream.reportLatestOffset() is None
    start = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert end != start
    assert stream.reportLatestOffset() == end
    copy = pickle.loads(pickle.dumps(stream))
    assert copy.partitions(start, end) == stream.partitions(start, end)


def test_the_first_offset_depends_on_nothing(tmp_path: Path) -> None:
    """Spark asks for it again when it repeats the first batch, whose end it has logged."""
    server = Server(tmp_path).write(rows=3)
    options = parse_options({"path": str(tmp_path)})
    first = XlogStreamReader(options).initialOffset()
    end = XlogStreamReader(options).latestOffset(first, ReadAllAvailable())
    server.rotate()
    server.snapshot()
    server.write()
    (tmp_path / "00000000000000000000.xlog").unlink()
    assert XlogStreamReader(options).initialOffset() == first
    assert XlogStreamReader(options).partitions(first, end) == []


@pytest.mark.parametrize(
    ("name", "value"), [("fromVclock", "{}"), ("toTimestamp", "5"), ("startOffset", to_text({}))]
)
def test_a_stream_refuses_what_bounds_a_batch(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        XlogStreamReader(parse_options({"path": "/x", name: value}))


def test_filters_are_not_pushed() -> None:
    assert "pushFilters" not in vars(XlogReader), "defining it breaks reads while pushdown is off"
    assert XlogDataSource.name() == "xlog"

"""Each file, glob and list by itself as a batch and as a stream, in every mode."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from schemas.errors import AggregatorError
from sources.xlog.format.block import encode_block
from sources.xlog.options import parse_options
from sources.xlog.spark_readers import XlogStreamReader
from tests.soaked import IS_SOAK
from tests.sources.xlog import files, samples
from tests.sources.xlog.logs import Server
from tests.truth import own

MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
START: dict[str, Any] = {"replicasets": {}, "version": 1}
Rows = list[dict[str, Any]]
Read = Callable[..., Rows]


@pytest.fixture(params=["batch", "stream"])
def read(request: pytest.FixtureRequest) -> Read:
    """Return a function that reads a path as a batch or as a stream."""

    def _read(path: Path | str | list[str], **options: str) -> Rows:
        given = path if isinstance(path, list) else str(path)
        if request.param == "batch":
            return files.batch(given, **options)
        return files.stream(given, START, **options)[0]

    return _read


def recorded(*suffixes: str) -> list[Path]:
    return [path for suffix in suffixes for path in sorted(own().directory("a1").rglob(f"*.{suffix}"))]


@pytest.mark.parametrize("mode", MODES)
def test_every_single_file_of_a_server_is_a_table_of_its_rows(read: Read, mode: str) -> None:
    paths = [paths[-1] for suffix in ("snap", "xlog", "vylog", "run", "index") if (paths := recorded(suffix))]
    assert len(paths) == 5
    for path in paths:
        assert files.positions(read(path, mode=mode)) == files.expected([path]), path


def test_rows_of_vinyl_have_the_names_of_tarantool(read: Read) -> None:
    (run,), (index,) = recorded("run"), recorded("index")
    assert {row["type"] for row in read(run)} >= {"ROWINDEX", "REPLACE"}
    assert {row["type"] for row in read(index)} == {"RUNINFO", "PAGEINFO"}
    assert all(row["body"] is not None for row in read(index))


def test_what_bounds_logs_does_not_bound_files_without_time_and_origin() -> None:
    for path in recorded("snap", "vylog", "run", "index"):
        bounded = files.batch(str(path), toTimestamp="1", fromVclock='{"1": 1000000}', toVclock="{}")
        assert files.positions(bounded) == files.expected([path]), path


@pytest.mark.parametrize("kind", files.HEADERS)
def test_a_header_of_any_version_is_read(read: Read, tmp_path: Path, kind: str) -> None:
    data = files.made(files.HEADERS[kind], *files.BLOCKS)
    suffix = kind.split(maxsplit=1)[0].lower()
    for name in (f"00000000000000000005.{suffix}", "crc.ok", f"{suffix}.{suffix}.inprogress"):
        path = tmp_path / name
        path.write_bytes(data)
        rows = read(path)
        assert files.positions(rows) == files.expected([path])
        assert [row["lsn"] for row in sorted(rows, key=lambda row: row["lsn"])] == files.TWELVE


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["XLOG", "SNAP", "VYLOG", "RUN", "INDEX"])
def test_a_file_without_rows_has_none(read: Read, tmp_path: Path, kind: str, mode: str) -> None:
    header = f"{kind}\n0.13\nInstance: {files.UUID}\nVClock: {{}}\n\n"
    contents = {
        "closed": files.made(header),
        "open": files.made(header, marker=False),
        "its header is not written wholly": header.encode()[:-1],
        "nothing is written": b"",
    }
    for number, (name, data) in enumerate(contents.items()):
        path = tmp_path / f"{number:020}.{kind.lower()}"
        path.write_bytes(data)
        assert read(path, mode=mode) == [], name


def test_a_glob_and_a_list_read_each_file(read: Read) -> None:
    folder = own().directory("a1")
    logs, snapshots = recorded("xlog"), recorded("snap")
    assert files.positions(read(f"{folder}/*.xlog")) == files.expected(logs)
    assert files.positions(read(f"{folder}/*.snap")) == files.expected(snapshots)
    assert files.positions(read(f"{folder}/0000000000000000[01]*.{{snap,vylog}}")) == files.expected(
        recorded("snap", "vylog")
    )
    assert files.positions(read([str(path) for path in (*logs, *snapshots)])) == files.expected(
        logs + snapshots
    )
    assert files.positions(read([str(folder / "*.snap"), str(logs[0])])) == files.expected(
        [*snapshots, logs[0]]
    )


def test_a_glob_matches_directories_and_their_files(read: Read, tmp_path: Path) -> None:
    for name in ("a1", "b1"):
        Server(tmp_path / "data" / name, name).write(rows=2).rotate().write(rows=1)
    (tmp_path / "data" / "512").mkdir()
    (tmp_path / "data" / "tarantool.log").write_text("I> ready to accept requests\n")
    logs = sorted((tmp_path / "data").rglob("*.xlog"))
    for pattern in ("*", "[ab]1", "?1/*.xlog", "*/*", "{a1,b1}"):
        assert files.positions(read(f"{tmp_path}/data/{pattern}")) == files.expected(logs), pattern
    assert files.positions(read(f"{tmp_path}/data/a*")) == (
        files.expected(log for log in logs if log.parent.name == "a1")
    )


def test_a_path_that_exists_is_no_glob(read: Read, tmp_path: Path) -> None:
    server = Server(tmp_path / "a[1]").write(rows=2)
    assert len(read(server.path)) == 2


def test_nothing_that_matches_is_an_error_of_a_batch_and_waited_for_by_a_stream(tmp_path: Path) -> None:
    with pytest.raises(AggregatorError, match=r"nothing matches the path .*\*\.xlog"):
        files.batch(f"{tmp_path}/*.xlog")
    assert files.stream(f"{tmp_path}/*.xlog", START) == ([], START)


def test_a_stream_of_a_glob_continues_with_new_files_and_without_read_ones(tmp_path: Path) -> None:
    server = Server(tmp_path / "a1")
    at = START

    def lsns(**options: str) -> list[int]:
        nonlocal at
        rows, at = files.stream(f"{server.path}/*.xlog", at, **options)
        return sorted(row["lsn"] for row in rows)

    server.write(rows=2)
    first = server.open()
    assert lsns() == [1, 2]
    server.write(rows=1).rotate().write(rows=2)
    second = server.open()
    assert lsns() == [3, 4, 5]
    first.unlink()
    server.write(rows=1)
    assert lsns() == [6], "the first one was read to its end marker"
    assert len(at["replicasets"]) == 1
    second.unlink()
    with pytest.raises(AggregatorError, match=rf"not read to its end marker .*{second.name}"):
        lsns()
    assert lsns(on_source_error="skip") == []


def test_a_file_without_rows_may_go_before_it_has_any(tmp_path: Path) -> None:
    server = Server(tmp_path / "a1").write().rotate()
    _, at = files.stream(f"{server.path}/*.xlog", START)
    empty = server.open()
    rows, after = files.stream(f"{server.path}/*.xlog", at)
    assert (rows, after) == ([], at), "it is not in the offset"
    empty.unlink()
    assert files.stream(f"{server.path}/*.xlog", at) == ([], at)


@pytest.mark.parametrize("mode", MODES)
def test_a_directory_with_only_snapshots_is_the_newest_complete_one(
    read: Read, tmp_path: Path, mode: str
) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for path in recorded("snap"):
        shutil.copy(path, folder)
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) > 1
    assert files.positions(read(folder, mode=mode)) == files.expected([folder / names[-1]])
    data = (folder / names[-1]).read_bytes()
    (folder / names[-1]).write_bytes(data[:-4])  # its copy is under way
    assert files.positions(read(folder, mode=mode)) == files.expected([folder / names[-2]])


def test_a_snapshot_is_read_to_its_end_though_a_newer_one_appears(tmp_path: Path) -> None:
    server = Server(tmp_path / "a1", vclock={1: 1})
    first = server.snapshot(rows=3)
    at: dict[str, Any] = XlogStreamReader(parse_options({"path": str(server.path)})).latestOffset(
        START, ReadAllAvailable()
    )
    server.vclock = {1: 2}
    server.snapshot(rows=1)
    rows, _ = files.stream(str(server.path), at)
    assert files.positions(rows) == files.expected([first])


DAMAGED = {
    "SNOP": files.made("SNOP\n0.13\nVClock: {}\n\n", *files.BLOCKS),
    "0.14": files.made("XLOG\n0.14\nVClock: {}\n\n", *files.BLOCKS),
    "not a vclock": files.made("XLOG\n0.13\nVClock: {1}\n\n", *files.BLOCKS),
    "no end": files.made("SNOP\n0.13\n", *files.BLOCKS, marker=False),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_header_costs_nothing_else_in_the_lenient_modes(
    read: Read, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "00000000000000000005.xlog"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(AggregatorError, match=rf"file {path.name}"):
        read(path)
    assert sorted(row["lsn"] for row in read(path, mode="DROPMALFORMED")) == files.TWELVE
    rows = read(path, mode="PERMISSIVE")
    assert sorted(row["lsn"] for row in rows if row["lsn"] is not None) == files.TWELVE
    (corrupt,) = (row for row in rows if row["lsn"] is None)
    assert (corrupt["file"], corrupt["position"]) == (path.name, 0)
    assert path.name in corrupt["_corrupt_record"]


def test_a_file_that_is_no_log_is_named(read: Read, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a log at all\n" * 1000)
    with pytest.raises(AggregatorError, match="not a log file: it begins with"):
        read(path)
    assert read(path, mode="DROPMALFORMED") == []
    (corrupt,) = read(path, mode="PERMISSIVE")
    assert "not a log file" in corrupt["_corrupt_record"]


@pytest.mark.parametrize("name", ["00000000000000000005.xlog", "00000000000000000005.snap", "5.vylog"])
def test_one_bad_row_is_one_row(read: Read, tmp_path: Path, name: str) -> None:
    bad = samples.insert(9, space_id=512).replace(b"\x21\x91", b"\x21\x81", 1)[:-1] + b"\x01\x02"
    rows = [samples.insert(lsn) for lsn in range(6, 395)]
    block = encode_block(b"".join([*rows[:100], bad, *rows[100:]]))
    path = tmp_path / name
    kind = {"xlog": "XLOG", "snap": "SNAP", "vylog": "VYLOG"}[name.rpartition(".")[2]]
    path.write_bytes(files.made(f"{kind}\n0.13\nVClock: {{}}\n\n", block, files.INSERT))
    with pytest.raises(AggregatorError, match="row 100"):
        read(path)
    assert len(read(path, mode="DROPMALFORMED")) == 390
    found = read(path, mode="PERMISSIVE")
    assert len(found) == 391
    (corrupt,) = (row for row in found if row["_corrupt_record"] is not None)
    assert corrupt["row"] == 100


def test_a_truncated_snapshot_is_an_error_of_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000005.snap"
    whole = files.made("SNAP\n0.13\nVClock: {1: 5}\n\n", *files.BLOCKS)
    path.write_bytes(whole[:-10])
    with pytest.raises(AggregatorError, match="ends inside a block"):
        files.batch(str(path))
    rows = files.batch(str(path), mode="PERMISSIVE")
    assert sorted(row["lsn"] or 0 for row in rows) == [0, *range(6, 14)]
    growing, at = files.stream(str(path), START)
    assert sorted(row["lsn"] for row in growing) == list(range(6, 14))
    path.write_bytes(whole)
    rest, _ = files.stream(str(path), at)
    assert sorted(row["lsn"] for row in rest) == list(range(14, 18)), "a copy that was under way"


def test_logs_without_vclock_are_read_from_the_first_one_and_not_chosen_among(
    read: Read, tmp_path: Path
) -> None:
    folder = tmp_path / "1.6.1"
    folder.mkdir()
    for kind, signature, lsns in (("xlog", 0, (1, 3)), ("snap", 2, (0, 0)), ("xlog", 2, (3, 5))):
        header = f"{kind.upper()}\n0.12\n\n"
        blocks = [encode_block(samples.insert(lsn)) for lsn in range(*lsns)]
        (folder / f"{signature:020}.{kind}").write_bytes(files.made(header, *blocks))
    assert sorted(row["lsn"] for row in read(folder)) == [1, 2, 3, 4]
    with pytest.raises(AggregatorError, match="the header has no VClock"):
        read(folder, includeSnapshot="true")


@pytest.mark.parametrize("mode", MODES)
def test_the_longest_block_is_an_option_and_the_error_names_it(read: Read, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "00000000000000000005.xlog"
    path.write_bytes(samples.log(*files.BLOCKS, encode_block(samples.insert(50, "x" * 5000), compress=True)))
    assert len(read(path, mode=mode, maxBlockBytes="6k")) == 13
    if mode == "FAILFAST":
        with pytest.raises(AggregatorError, match=r"raise the option maxBlockBytes .* max_block_bytes"):
            read(path, mode=mode, maxBlockBytes="4k")
    else:
        assert [row["lsn"] for row in read(path, mode=mode, maxBlockBytes="4k") if row["lsn"] == 50] == []


@pytest.mark.parametrize("trigger", ["1", "400"])
def test_a_trigger_limit_splits_files_that_are_read_by_themselves(
    read: Read, tmp_path: Path, trigger: str
) -> None:
    for number in range(3):
        (tmp_path / f"{number:020}.xlog").write_bytes(samples.log(*files.BLOCKS))
    rows = read(f"{tmp_path}/*.xlog", maxBytesPerTrigger=trigger)
    assert sorted(row["lsn"] for row in rows) == sorted(files.TWELVE * 3)


@pytest.mark.spark
def test_spark_loads_them(spark: SparkSession, tmp_path: Path) -> None:
    (snapshot, *_), (run,), (log, *_) = recorded("snap"), recorded("run"), recorded("xlog")
    empty, broken = tmp_path / "00000000000000000005.xlog", tmp_path / "broken.snap"
    empty.write_bytes(samples.log())
    broken.write_bytes(DAMAGED["SNOP"])
    everything = [str(path) for path in (run, log)] + [f"{snapshot.parent}/*.snap"]
    loads: dict[str, tuple[str | list[str], list[Path]]] = {
        "snapshot": (str(snapshot), [snapshot]),
        "run": (str(run), [run]),
        "no rows": (str(empty), []),
        "glob": (f"{snapshot.parent}/*.{{snap,vylog}}", recorded("snap", "vylog")),
        "list": (everything, [run, log, *recorded("snap")]),
    }
    # A stream's start takes seconds: the suite streams the list, which has files of three kinds.
    for name, (path, read_from) in loads.items():
        expected = files.expected(read_from)
        assert files.positions(files.spark_batch(spark, path)) == expected, name
        if name in (("snapshot", "no rows", "list") if IS_SOAK else ("list",)):
            assert files.positions(files.spark_stream(spark, tmp_path / name, path)) == expected, name
    for rows in (
        files.spark_batch(spark, str(broken), mode="PERMISSIVE"),
        files.spark_stream(spark, tmp_path / "broken", str(broken), mode="PERMISSIVE"),
    ):
        assert sorted(row["lsn"] or 0 for row in rows) == [0, *files.TWELVE]
    with pytest.raises(PySparkException, match=r"XlogMetaError: .*'SNOP'"):
        files.spark_batch(spark, str(broken))

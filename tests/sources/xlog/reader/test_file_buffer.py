"""A part of a file in memory: the right bytes wherever it is moved, and where files are."""

import threading
from pathlib import Path

import pyarrow.fs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.errors import XlogMissingError, XlogTruncatedError
from sources.xlog.reader.file_buffer import FileBuffer, arrow_uri, base_name, open_fs

DATA = bytes(k * k % 251 for k in range(5000))


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "data"
    file.write_bytes(DATA)
    return str(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 700), st.lists(st.tuples(st.integers(0, 4999), st.integers(0, 3000)), max_size=12))
def test_every_load_shows_the_files_bytes(path: str, capacity: int, loads: list[tuple[int, int]]) -> None:
    with FileBuffer(*open_fs(path), capacity) as window:
        for position, need in loads:
            offset = window.load(position, need)
            assert window.base + offset == position
            shown = window.bytes[offset : window.filled].tobytes()
            assert shown == DATA[position : position + len(shown)]
            assert len(shown) >= min(need or capacity, len(DATA) - position)
            assert window.bytes.size <= max(capacity, need, 3000)


def test_a_window_grows_for_a_long_block_and_shrinks_again(path: str) -> None:
    with FileBuffer(*open_fs(path), 100) as window:
        window.load(0, 4000)
        assert window.bytes.size == 4000
        window.load(4000, 10)
        assert window.bytes.size == 100


def test_what_is_there_is_not_read_again(path: str) -> None:
    with FileBuffer(*open_fs(path), 1000) as window:
        window.load(0)
        buffer = window.bytes
        buffer[:1000] = 7
        assert window.load(500, 400) == 500
        assert window.load(600) == 0
        assert (buffer[:400] == 7).all()
        assert buffer[400:1000].tobytes() == DATA[1000:1600]


def test_what_is_appended_after_opening_is_not_seen(path: str) -> None:
    with FileBuffer(*open_fs(path), 10_000) as window:
        with Path(path).open("ab") as file:
            file.write(b"more")
        window.load(0)
        assert window.filled == window.size == len(DATA)


def test_a_file_that_became_shorter_is_an_error(path: str) -> None:
    with FileBuffer(*open_fs(path), 1000) as window:
        with Path(path).open("r+b") as file:
            file.truncate(1500)
        with pytest.raises(XlogTruncatedError, match="became shorter") as raised:
            window.load(1000)
    assert raised.value.fields["offset"] == 1500


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(XlogMissingError, match="gone"):
        FileBuffer(*open_fs(str(tmp_path / "none.xlog")), 10)


def test_a_file_system_of_a_uri(path: str) -> None:
    fs, inner = open_fs(f"file://{path}")
    assert isinstance(fs, pyarrow.fs.LocalFileSystem)
    assert inner == path


def test_a_relative_path_is_made_absolute(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(path).parent)
    assert open_fs("data")[1] == path


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("s3a://b/k", "s3://b/k"),
        ("s3n://b/k", "s3://b/k"),
        ("s3://b/k", "s3://b/k"),
        ("hdfs://n/p", "hdfs://n/p"),
    ],
)
def test_hadoops_names_of_s3(path: str, uri: str) -> None:
    assert arrow_uri(path) == uri


def test_the_column_file_is_the_base_name() -> None:
    assert base_name("/a/b/00000000000000000000.xlog") == "00000000000000000000.xlog"


def test_windows_of_threads_do_not_meet(path: str) -> None:
    shown: list[bool] = []

    def read(step: int) -> None:
        with FileBuffer(*open_fs(path), 64) as window:
            for position in range(0, 4900, step):
                offset = window.load(position, 50)
                shown.append(window.bytes[offset : offset + 50].tobytes() == DATA[position : position + 50])

    threads = [threading.Thread(target=read, args=(step,)) for step in (7, 11, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(shown)
    assert len(shown) > 1000

"""What is said of an error: one line with what, where and what to do, also where another error hides the first."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError

from jobs.runtime.command_line import FAILED, print_error
from jobs.runtime.error_text import error_text
from schemas.errors import RidStateError, SourceError, WarehouseError
from tests.incidents.machine import fill, make_room
from warehouse.delta.data_files import write_file
from warehouse.delta.fence import take_writer_number
from warehouse.delta.location import location_of


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder on a file system of one MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/warehouse/part-1.parquet")


def full_in_rust() -> None:
    raise RuntimeError(
        "Failed to parse parquet: /data/w/t/part-0.parquet: No space left on device (os error 28)"
    )


def full_in_spark() -> None:
    raise ValueError(
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error: Traceback (most recent call last):\n"
        '  File "/opt/lib/python3.11/site-packages/x.py", line 3\n'
        "OSError: [Errno 28] No space left on device: '/data/w/t/part-0.parquet'\n"
        "During handling of the above exception, another exception occurred:\nValueError: I/O on closed file"
    )


def raised_by(act: Callable[[], object]) -> Exception:
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def read_only() -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/w/_epochs")


@pytest.mark.parametrize(
    ("cause", "what", "where"),
    [
        (full, "there is no room on the disk", "/data/warehouse/part-1.parquet"),
        (full_in_rust, "there is no room on the disk", "/data/w/t/part-0.parquet"),
        (full_in_spark, "there is no room on the disk", "/data/w/t/part-0.parquet"),
        (read_only, "the disk is read-only", "/data/w/_epochs"),
    ],
)
def test_an_error_of_a_disk_is_one_line(
    cause: Callable[[], None], what: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_error(raised_by(cause)) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {what} ({where}): ")
    assert "start again" in line


def test_an_error_of_cleaning_up_does_not_hide_the_first_one() -> None:
    def clean_up() -> None:
        try:
            raise WarehouseError("the batch failed")
        finally:
            raise RidStateError("the mark cannot be removed")

    def explain() -> None:
        try:
            raise ValueError("a detail")
        except ValueError as error:
            raise SourceError("what it means") from error

    assert error_text(raised_by(clean_up)) == "the batch failed"
    assert error_text(raised_by(explain)) == "what it means"


def test_a_file_of_a_table_on_a_full_disk(small: Path) -> None:
    location = location_of(str(small))
    (small / "aggregator.db" / "t").mkdir(parents=True)
    rows = pa.table({"a": [os.urandom(1 << 16) for _ in range(64)]})
    # Arrow's own error of closing the file hides the disk's.
    text = error_text(raised_by(lambda: write_file(location, "t", rows)))
    assert text is not None
    assert text.startswith("there is no room on the disk")


def test_a_start_on_a_full_disk_does_not_blame_other_writers(small: Path) -> None:
    location = location_of(str(small))
    take_writer_number(location, lambda: None)
    fill(small)
    text = error_text(raised_by(lambda: take_writer_number(location, lambda: None)))
    make_room(small)
    assert text is not None
    assert text.startswith("there is no room on the disk")
    assert take_writer_number(location, lambda: None).writer == 2


def test_the_end_of_java_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def answer() -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    assert print_error(raised_by(answer)) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "Java process has ended" in line

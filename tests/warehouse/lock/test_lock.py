"""The writer lock on a local file system, between real processes: one holds it, and it ends with that one."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from schemas.errors import LockError
from warehouse.lock.lock import LOCK_NAME, WriterLock, local_folder
from warehouse.warehouse import Warehouse


def warehouse(location: Path) -> Warehouse:
    """Return a warehouse whose lock needs no session."""
    return Warehouse(cast("SparkSession", None), str(location))


@contextlib.contextmanager
def holder(location: Path) -> Iterator[int]:
    """Yield the id of another process that holds the lock; it is killed at the end."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        with WriterLock(warehouse(location), "the first writer"):
            os.write(write_end, b"held")
            while True:
                signal.pause()
    try:
        assert os.read(read_end, 4) == b"held"
        yield child
    finally:
        os.close(read_end)
        os.close(write_end)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_second_process_is_refused_and_learns_who_writes(tmp_path: Path) -> None:
    with holder(tmp_path) as pid:
        with pytest.raises(LockError) as caught, WriterLock(warehouse(tmp_path), "the second writer"):
            pytest.fail("two writers")
        assert f"the first writer (pid {pid} on " in caught.value.reason
        assert caught.value.fields["warehouse"] == str(tmp_path / "aggregator.db")
        assert "nothing was written" in caught.value.fields["advice"]
        held_by = (tmp_path / "aggregator.db" / LOCK_NAME).read_text()
        assert "the first writer" in held_by


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    with holder(tmp_path):
        pass
    with WriterLock(warehouse(tmp_path), "the second writer") as lock:
        lock.check()
        held_by = (tmp_path / "aggregator.db" / LOCK_NAME).read_text()
        assert "the second writer" in held_by
        assert "the first writer" not in held_by


def test_the_lock_is_free_when_its_block_ends(tmp_path: Path) -> None:
    one, other = (WriterLock(warehouse(tmp_path), name) for name in ("one", "other"))
    with one, pytest.raises(LockError, match=r"written by one \(pid"), other:
        pytest.fail("two writers")
    with other, pytest.raises(LockError, match=r"written by other \(pid"), one:
        pytest.fail("two writers")


def test_a_lock_that_says_nothing_is_an_unknown_writers(tmp_path: Path) -> None:
    with WriterLock(warehouse(tmp_path), "one"):
        (tmp_path / "aggregator.db" / LOCK_NAME).write_text("")
        with pytest.raises(LockError, match="an unknown writer"), WriterLock(warehouse(tmp_path), "other"):
            pytest.fail("two writers")


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("/data/w.db", Path("/data/w.db")),
        ("file:///data/w.db", Path("/data/w.db")),
        ("data/w.db", Path("data/w.db")),
        ("s3a://bucket/w.db", None),
        ("hdfs://name:8020/w.db", None),
    ],
)
def test_only_local_folders_are_locked_by_file(location: str, folder: Path | None) -> None:
    assert local_folder(location) == folder

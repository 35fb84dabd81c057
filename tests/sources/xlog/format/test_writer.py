"""Files that the writer makes: their bytes, their names, what is left when something goes wrong."""

import os
from pathlib import Path

import pytest

from sources.xlog.format.block import EOF_MARKER, FLUSH_THRESHOLD, encode_block
from sources.xlog.format.meta import Meta
from sources.xlog.format.writer import INPROGRESS, Fsync, XlogWriter
from sources.xlog.reader import reader
from tests.sources.xlog import samples

SNAP = Meta("SNAP", "0.13", samples.INSTANCE, {1: 5}, None, {"Version": "2.6.0"})
ROWS = [samples.insert(lsn) for lsn in range(6, 12)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / samples.FILE


def test_a_file_is_header_blocks_and_marker(path: Path) -> None:
    with XlogWriter(path, samples.META) as log:
        log.write(ROWS[:2])
        log.write(ROWS[2:3])
        log.flush()
        log.write(ROWS[3:])
    expected = samples.log(encode_block(b"".join(ROWS[:3])), encode_block(b"".join(ROWS[3:])))
    assert path.read_bytes() == expected


def test_rows_can_be_read_as_soon_as_they_are_flushed(path: Path) -> None:
    with XlogWriter(path, samples.META, Fsync.BLOCK) as log:
        assert samples.lsns(str(path)) == []
        log.write(ROWS[:2])
        assert samples.lsns(str(path)) == []
        log.flush()
        assert samples.lsns(str(path)) == [6, 7]
        assert reader.end_of_complete_blocks(*reader.open_fs(str(path))) == (log.position, False)
    assert reader.end_of_complete_blocks(*reader.open_fs(str(path))) == (log.position - 4, True)


def test_a_log_is_there_at_once_and_a_snapshot_when_it_is_complete(tmp_path: Path) -> None:
    log, snap = tmp_path / "00000000000000000005.xlog", tmp_path / "00000000000000000005.snap"
    first, second = XlogWriter(log, samples.META), XlogWriter(snap, SNAP)
    assert sorted(file.name for file in tmp_path.iterdir()) == [snap.name + INPROGRESS, log.name]
    second.write(ROWS)
    first.close()
    second.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == [snap.name, log.name]
    assert samples.lsns(str(snap), closed=True) == list(range(6, 12))


def test_a_block_is_written_when_it_is_large_enough(path: Path) -> None:
    with XlogWriter(path, samples.META) as log:
        before = log.position
        log.write([samples.insert(6, "x" * (FLUSH_THRESHOLD - 100))])
        assert log.position == before
        log.write([samples.insert(7, "x" * 100)])
        assert log.position > before
    assert samples.lsns(str(path)) == [6, 7]


@pytest.mark.parametrize(("compress", "magic"), [(None, "d5ba0bab"), (True, "d5ba0bba"), (False, "d5ba0bab")])
def test_compression_is_tarantools_unless_said(path: Path, compress: bool | None, magic: str) -> None:
    with XlogWriter(path, samples.META, compress=compress) as log:
        log.write(ROWS)
    assert path.read_bytes()[len(samples.HEADER) :].startswith(bytes.fromhex(magic))


def test_an_existing_log_is_never_written_over(path: Path) -> None:
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        XlogWriter(path, samples.META)
    assert path.read_bytes() == b"precious"


def test_a_leftover_in_progress_is_written_over(tmp_path: Path) -> None:
    snap = tmp_path / "5.snap"
    (tmp_path / ("5.snap" + INPROGRESS)).write_bytes(b"x" * 10_000)
    with XlogWriter(snap, SNAP) as log:
        log.write(ROWS)
    assert samples.lsns(str(snap), closed=True) == list(range(6, 12))


def _fail_in_the_middle(path: Path, meta: Meta) -> None:
    with XlogWriter(path, meta) as log:
        log.write(ROWS[:1])
        log.flush()
        log.write(ROWS[1:])
        raise RuntimeError


def test_an_exception_leaves_no_end_marker_and_no_snapshot(tmp_path: Path) -> None:
    log, snap = tmp_path / "5.xlog", tmp_path / "5.snap"
    for path, meta in ((log, samples.META), (snap, SNAP)):
        with pytest.raises(RuntimeError):
            _fail_in_the_middle(path, meta)
    assert samples.lsns(str(log)) == [6]
    assert not log.read_bytes().endswith(EOF_MARKER)
    assert not snap.exists()


def test_a_partial_write_is_rolled_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def full_disk(file: int, data: memoryview) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return real(file, data[: len(data) // 2])

    with XlogWriter(path, samples.META) as log:
        log.write(ROWS[:2])
        log.flush()
        whole = path.read_bytes()
        log.write(ROWS[2:])
        monkeypatch.setattr(os, "write", full_disk)
        with pytest.raises(OSError, match="No space"):
            log.flush()
        assert path.read_bytes() == whole
        monkeypatch.undo()
    assert samples.lsns(str(path), closed=True) == list(range(6, 12))


@pytest.mark.parametrize(
    ("policy", "flushed", "closed"), [(Fsync.NEVER, 0, 0), (Fsync.CLOSE, 0, 1), (Fsync.BLOCK, 2, 3)]
)
def test_bytes_are_forced_to_the_disk_as_fsync_says(
    path: Path, monkeypatch: pytest.MonkeyPatch, policy: Fsync, flushed: int, closed: int
) -> None:
    calls: list[int] = []
    log = XlogWriter(path, samples.META, policy)
    real = os.fsync

    def counted(file: int) -> None:
        calls.append(file)
        real(file)

    monkeypatch.setattr(os, "fsync", counted)
    for row in ROWS[:2]:
        log.write([row])
        log.flush()
    assert len(calls) == flushed
    log.close()
    assert len(calls) == closed


def test_an_empty_flush_writes_no_block(path: Path) -> None:
    with XlogWriter(path, samples.META) as log:
        log.flush()
        log.flush()
    assert path.read_bytes() == samples.log()

"""A snapshot that does not fit on the disk is refused, before it is fetched if its size can be estimated."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.errors import SpoolFullError
from sources.spool.disk_space import DiskSpace
from sources.spool.options import SpoolOptions
from sources.subscribe.daemon import replicaset_status
from tests.live.mesh import mesh
from tests.sources.subscribe.following import await_until, following, options
from tests.sources.subscribe.test_following import addresses, await_all, check, write

SIZE = 2 << 20
LARGE = "for i = 1, 60 do box.space.load:replace{i, require('digest').urandom(65536)} end"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder on a file system of two MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_the_size_of_the_next_snapshot_is_estimated_from_the_newest(small: Path) -> None:
    room = DiskSpace(small, SIZE // 4)
    room.check_snapshot_fits()
    (small / "00000000000000000005.xlog").touch()
    with pytest.raises(SpoolFullError, match="after 4096 bytes: no space"):
        raise room.full_error(4096, "no space")
    room.check_snapshot_fits()
    with pytest.raises(SpoolFullError):
        raise room.full_error(SIZE, "no space")
    with pytest.raises(SpoolFullError, match="bytes are free"):
        room.check_snapshot_fits()
    room.check_snapshot_fits(written_bytes=SIZE)


@pytest.mark.live
def test_no_snapshot_is_requested_without_disk_space(tmp_path: Path) -> None:
    with mesh(tmp_path, 1) as masters:
        how = options(tmp_path / "spool", *addresses(masters), spool=SpoolOptions(min_free_bytes=1 << 60))
        with following(how) as replicaset:
            await_until(lambda: isinstance(replicaset.error, SpoolFullError), "the refusal")
            assert "there is no room for a snapshot" in replicaset_status(replicaset)["error"]
        assert [path.name for path in (tmp_path / "spool").iterdir()] == ["lock"]


@pytest.mark.live
def test_a_snapshot_that_fills_the_disk_is_abandoned_and_retried_only_with_space(
    small: Path, tmp_path: Path
) -> None:
    with mesh(tmp_path, 1) as masters:
        masters[1].eval(LARGE)
        how = options(small, *addresses(masters), spool=SpoolOptions(min_free_bytes=SIZE // 8))
        with following(how) as replicaset:
            await_until(lambda: " are needed" in str(replicaset.error), "the refusal")
            await_until(lambda: not list(small.glob("*.inprogress")), "the end of the attempt")
            subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
            await_until(lambda: bool(replicaset.feeds), "a stream")
            write(masters, 1, 100, 3)
            await_all(masters, replicaset)
            assert replicaset.progress.fetched_snapshots == 1
        check(masters, small)

"""Tests of the server fixture: it fails loudly, and never leaves a process behind."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live import Tarantool
from tests.oracle.log import EOF_MAGIC

pytestmark = pytest.mark.live

END_SECONDS = 20.0


def is_running(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def await_end(pid: int) -> None:
    """Wait until a process that is not our child has ended: its descriptor becomes readable then."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], END_SECONDS)
    finally:
        os.close(descriptor)


def test_a_stop_is_clean_and_a_restart_finds_the_rows(tmp_path: Path) -> None:
    directory = tmp_path / "one"
    with Tarantool(directory, lua="box.schema.space.create('s'):create_index('primary')") as server:
        pid = server.pid
        server.eval("box.space.s:insert({1})")
    assert not is_running(pid)
    assert all(path.read_bytes().endswith(EOF_MAGIC) for path in directory.glob("*.xlog"))
    with Tarantool(directory) as server:
        assert server.eval("return box.space.s:select()") == [[1]]


def test_a_kill_leaves_a_log_without_its_end_marker(tmp_path: Path) -> None:
    with Tarantool(tmp_path / "one") as server:
        pid = server.pid
        server.kill()
        assert not is_running(pid)
    assert not max((tmp_path / "one").glob("*.xlog")).read_bytes().endswith(EOF_MAGIC)


def test_an_error_in_the_block_stops_the_server(tmp_path: Path) -> None:
    started = Tarantool(tmp_path / "one")
    pids = []

    def fail() -> None:
        with started as server:
            pids.append(server.pid)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not is_running(pids[0])


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the reason stands here"):
        Tarantool(tmp_path / "one", lua="error('the reason stands here')").start()


def test_the_server_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.live import Tarantool\n"
        f"server = Tarantool(Path({str(tmp_path / 'one')!r})).start()\n"
        "print(server.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    await_end(pid)
    assert not is_running(pid)

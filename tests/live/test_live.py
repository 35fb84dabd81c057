"""Tests of the server fixture: it starts, answers, fails loudly, and never leaves a process behind."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live import Connection, Tarantool, TarantoolError
from tests.live import server as server_module
from tests.live.client import pack
from tests.oracle.log import EOF_MAGIC

pytestmark = pytest.mark.live

INSERT, SPACE_ID, TUPLE = 2, 0x10, 0x21
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


def test_eval_returns_what_lua_returns(tarantool: Tarantool) -> None:
    assert tarantool.eval("return ...", 1, "два", None, [{}, 1.5]) == [1, "два", None, [{}, 1.5]]
    assert tarantool.eval("return 1") == 1
    assert tarantool.eval("local nothing") is None


def test_strings_that_are_not_utf8_come_back_unchanged(tarantool: Tarantool) -> None:
    assert tarantool.eval("return (...):byte(1, -1)", "\udcff\udcfe") == [0xFF, 0xFE]
    assert tarantool.eval("return '\\xff\\xfe'") == "\udcff\udcfe"


def test_an_error_of_lua_is_raised_and_the_connection_stays_usable(tarantool: Tarantool) -> None:
    with pytest.raises(TarantoolError, match="Space 'none' does not exist") as raised:
        tarantool.eval("box.error(box.error.NO_SUCH_SPACE, 'none')")
    assert raised.value.code == 36
    assert tarantool.eval("return 'still there'") == "still there"


def test_several_requests_are_answered_in_their_order(tarantool: Tarantool) -> None:
    with tarantool.connect() as connection:
        for number in range(5):
            connection.send("return ...", number)
        assert [connection.receive() for _ in range(5)] == list(range(5))


def test_a_hand_made_request_keeps_its_bytes(tarantool: Tarantool) -> None:
    space_id = tarantool.eval("local s = box.schema.space.create('s') s:create_index('primary') return s.id")
    body = b"\x82" + pack(SPACE_ID) + pack(space_id) + pack(TUPLE) + b"\x91\xcd\x00\x05"
    tarantool.connection.request(INSERT, body)
    packed = "return string.hex(require('msgpack').encode(box.space.s:select()[1]))"
    assert tarantool.eval(packed) == "91cd0005"


def test_a_large_answer_is_complete(tarantool: Tarantool) -> None:
    assert tarantool.eval("return ('x'):rep(...)", 5_000_000) == "x" * 5_000_000


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


def test_a_missing_tarantool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "find_tarantool", lambda: None)
    with pytest.raises(RuntimeError, match="no tarantool on PATH"):
        Tarantool(tmp_path / "one").start()


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


def test_a_connection_to_nothing_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Connection(str(tmp_path / "nobody"))


def test_a_server_that_goes_away_is_noticed(tarantool: Tarantool) -> None:
    with pytest.raises(ConnectionError):
        tarantool.eval("os.exit(0)")

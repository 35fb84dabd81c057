"""The script that records: it makes again what is committed, a large one on demand, and leaves nothing running."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracle import fold_directory, mp
from tests.recordings import record
from tests.sources.subscribe.following import await_until
from tests.truth import Recording, own

live = pytest.mark.live
of_2_6 = pytest.mark.of_2_6


def servers_of(directory: Path) -> list[str]:
    """Return the processes whose working directory lies below one of ours."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            working = str((process / "cwd").readlink())
        except OSError:
            continue
        if working.startswith(str(directory)):
            found.append(process.name)
    return found


@live
@of_2_6
def test_it_records_what_is_committed(tmp_path: Path) -> None:
    """Timestamps differ from run to run; what the servers hold at the end does not."""
    record.record(tmp_path / "again")
    again = Recording("again", tmp_path / "again")
    assert again.nodes == own().nodes
    for node in (*again.nodes, "hot/a1", "hot/b1"):
        assert again.spaces(node) == own().spaces(node)
        for space in again.spaces(node):
            assert again.tuples(node, space) == own().tuples(node, space), (node, space)
        assert again.info(node).cluster == own().info(node).cluster
    assert again.conflicts() == own().conflicts()
    assert servers_of(tmp_path) == []


@live
@of_2_6
def test_it_records_a_large_one(tmp_path: Path) -> None:
    assert record.main(["--out", str(tmp_path / "large"), "--rows", "3000", "--serial", "40"]) == 0
    large = Recording("large", tmp_path / "large")
    for node in large.nodes:
        assert sum(large.info(node).vclock.values()) >= 1500
        folded = fold_directory(large.directory(node)).by_name()
        for space in large.spaces(node):
            assert sorted(folded[space].tuples()) == sorted(large.tuples(node, space)), (node, space)
    assert large.spaces("a1").keys() ^ large.spaces("b1").keys() == {"own_a", "own_b", "shift"}
    shared = [{mp.decode(one)[0] for one in large.tuples(node, "shared")} for node in ("a1", "b1")]
    assert 0.2 < len(shared[0] & shared[1]) / len(shared[0]) < 1


@live
def test_a_stopped_recording_leaves_no_server(tmp_path: Path) -> None:
    out = tmp_path / "stopped"
    command = [sys.executable, "-m", "tests.recordings.record", "--out", str(out), "--rows", "50000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)}) as run:
        assert run.stderr is not None
        while len(servers_of(out)) < 4:
            assert run.poll() is None, run.stderr.read()
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 143
    # One that was just being started dies with its parent, a moment later.
    await_until(lambda: not servers_of(tmp_path), "the end of the servers")


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        record.record(tmp_path)


def test_without_a_tarantool_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "find_tarantool", lambda: None)
    assert record.main(["--out", str(tmp_path)]) == 2
    assert "no tarantool on PATH" in capsys.readouterr().err

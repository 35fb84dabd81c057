"""Files of another replicaset in a source's folder are refused; those of another member are not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import SourceError
from sources.xlog.format.meta import REPLICASET_KEY, Meta, format_meta
from sources.xlog.options import parse_options
from sources.xlog.stream.log_stream import LogStream
from tests.sources.xlog.logs import A, B, Server, lsns, rows_between, uuid_of


def log_stream(path: Path, **given: str) -> LogStream:
    return LogStream(parse_options({"sources": json.dumps([{"name": "a1", "path": str(path)}])} | given))


def server(path: Path, name: str = "a1", rows: int = 3, cluster: dict[int, str] | None = None) -> Server:
    one = Server(path, name)
    one.snapshot(cluster=cluster or {1: name})
    one.write(rows=rows)
    return one


def other(path: Path, suffix: str, rows: int = 7) -> Path:
    """Return a file of another replicaset, whose name no file of `server` has."""
    one = server(path / "other", "b1", rows)
    one.rotate()
    one.snapshot(cluster={1: "b1"})
    one.write()
    return sorted((path / "other").glob(f"*.{suffix}"))[-1]


@pytest.mark.parametrize("suffix", ["snap", "xlog"])
def test_a_folder_with_a_file_of_another_replicaset_is_refused_at_the_start(
    tmp_path: Path, suffix: str
) -> None:
    server(tmp_path / "a")
    file = Path(shutil.copy(other(tmp_path, suffix), tmp_path / "a"))
    with pytest.raises(SourceError, match="several replicasets") as caught:
        log_stream(tmp_path / "a").initial()
    text = str(caught.value)
    assert file.name in text
    assert f"{0:020}.snap" in text
    assert uuid_of("a1") in text
    assert uuid_of("b1") in text


def test_a_folder_without_files_is_a_spool_that_has_not_begun(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no snapshot and no log yet") as caught:
        log_stream(tmp_path).initial()
    assert "aggregator subscribe" in str(caught.value)


@pytest.mark.parametrize("suffix", ["snap", "xlog"])
def test_such_a_file_is_refused_when_it_appears_later(tmp_path: Path, suffix: str) -> None:
    server(tmp_path / "a")
    asked = log_stream(tmp_path / "a")
    start = asked.initial()
    at = asked.latest(start)
    file = Path(shutil.copy(other(tmp_path, suffix), tmp_path / "a"))
    with pytest.raises(SourceError, match=file.name):
        asked.latest(at)


def test_a_source_that_is_skipped_waits_until_the_file_is_gone(tmp_path: Path) -> None:
    one = server(tmp_path / "a")
    asked = log_stream(tmp_path / "a", on_source_error="skip")
    start = asked.initial()
    at = asked.latest(start)
    file = Path(shutil.copy(other(tmp_path, "xlog"), tmp_path / "a"))
    one.write()
    assert asked.latest(at) == at
    assert "several replicasets" in asked.unreadable_sources["a1"]
    file.unlink()
    end = asked.latest(at)
    assert lsns(rows_between(asked, at, end)) == [4]
    assert not asked.unreadable_sources


def rejoined(one: Server) -> None:
    """Continue a server's files under a new uuid, by a snapshot of its own."""
    one.rotate()
    one.name = "a9"
    one.snapshot(cluster={1: "a9"})


def registered_in_the_snapshot(one: Server) -> None:
    one.rotate()
    one.name = "a2"


def registered_in_a_log(one: Server) -> None:
    one.system(320, [3, uuid_of("a3")]).rotate()
    one.name = "a3"


@pytest.mark.parametrize("change", [rejoined, registered_in_the_snapshot, registered_in_a_log])
def test_files_of_another_member_are_read(tmp_path: Path, change: Callable[[Server], None]) -> None:
    one = server(tmp_path / "a", cluster={1: "a1", 2: "a2"})
    asked = log_stream(tmp_path / "a")
    at = asked.initial()
    change(one)
    one.write(rows=2)
    wanted = {i for i in range(1, one.vclock[1] + 1) if i != 4 or change is not registered_in_a_log}
    assert set(lsns(rows_between(asked, at, asked.latest(at)))) == wanted


def test_a_file_is_not_judged_before_the_snapshot_of_its_instance_is_whole(tmp_path: Path) -> None:
    one = server(tmp_path / "a")
    asked = log_stream(tmp_path / "a")
    at = asked.latest(asked.initial())
    rejoined(one)
    snapshot = sorted((tmp_path / "a").glob("*.snap"))[-1]
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[:-10])
    one.write()
    assert lsns(rows_between(asked, at, asked.latest(at))) == [4]
    snapshot.write_bytes(whole)
    assert lsns(rows_between(asked, at, asked.latest(at))) == [4]


def test_headers_of_spools_decide(tmp_path: Path) -> None:
    for signature, replicaset in ((0, A), (5, B)):
        meta = Meta(
            "XLOG",
            "0.13",
            uuid_of("a1"),
            {1: signature} if signature else {},
            None,
            {REPLICASET_KEY: replicaset},
        )
        (tmp_path / f"{signature:020}.xlog").write_bytes(format_meta(meta))
    with pytest.raises(SourceError, match=f"{A}.*{B}|{B}.*{A}"):
        log_stream(tmp_path).initial()

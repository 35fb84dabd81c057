"""A directory whose server writes snapshots and no logs (`wal_mode = none`): the stream waits and reports it."""

import json
import logging
from pathlib import Path

import pytest

from sources.xlog.directory.offset import OffsetEntry
from sources.xlog.options import parse_options
from sources.xlog.stream.log_stream import LogStream
from tests.jobs.written import Node, replicasets_of

S = 600


def log_stream(node: Node) -> LogStream:
    sources = json.dumps([{"name": "a1", "path": str(node.path), "replicaset": replicasets_of("a1")["a1"]}])
    return LogStream(parse_options({"sources": sources, "gaps": "report", "start": "snapshot"}))


def at_the_end(asked: LogStream) -> dict[str, OffsetEntry]:
    at = asked.initial()
    while (end := asked.latest(at)) != at:
        at = end
    return at


def begun(folder: Path) -> Node:
    node = Node(folder, "a1").define(S, "s").put(S, 1, "first", 1, 1)
    node.snapshot({S: [(1, "first", 1, 1)]})
    return node


def newer(node: Node) -> None:
    node.put(S, 2, "second", 1, 1)
    node.snapshot({S: [(1, "first", 1, 1), (2, "second", 1, 1)]})


@pytest.mark.parametrize("has_log", [False, True])
def test_a_snapshot_ahead_of_the_logs_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_log: bool
) -> None:
    node = begun(tmp_path)
    if has_log:
        node.close()
    asked = log_stream(node)
    at = at_the_end(asked)
    assert asked.unreadable_sources == {}
    newer(node)
    with caplog.at_level(logging.WARNING):
        assert asked.latest(at) == at
        assert asked.latest(at) == at
    assert "00000000000000000005.snap" in asked.unreadable_sources["a1"]
    assert "wal_mode" in asked.unreadable_sources["a1"]
    (record,) = [record for record in caplog.records if "wal_mode" in record.getMessage()]
    assert record.levelno == logging.WARNING


def test_it_is_over_when_the_logs_come(tmp_path: Path) -> None:
    node = begun(tmp_path)
    node.close()
    asked = log_stream(node)
    at = at_the_end(asked)
    newer(node)
    asked.latest(at)
    assert "a1" in asked.unreadable_sources
    node.close()
    assert asked.latest(at) != at
    assert asked.unreadable_sources == {}
    at = at_the_end(asked)
    assert asked.latest(at) == at
    assert asked.unreadable_sources == {}, (
        "an idle server whose snapshot is newer than its last log is no fault"
    )


def test_a_snapshot_that_is_still_written_says_nothing(tmp_path: Path) -> None:
    node = begun(tmp_path)
    asked = log_stream(node)
    at = at_the_end(asked)
    newer(node)
    newest = node.path / "00000000000000000005.snap"
    newest.write_bytes(newest.read_bytes()[:-8])
    asked.latest(at)
    assert asked.unreadable_sources == {}

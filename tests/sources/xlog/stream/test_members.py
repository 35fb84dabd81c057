"""Several members of a replicaset as sources: one leads, another takes over, none is read twice or left out."""

import json
import logging
import os
from pathlib import Path
from typing import Self

import pytest

from schemas.errors import SourceError, XlogMissingError
from sources.xlog.directory.offset import Offset, OffsetEntry, to_text
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.log_stream import LogStream
from tests.sources.xlog.logs import A, B, Server, rows_between

HOUR = 3600.0


def log_stream(*paths: Path, **given: str) -> LogStream:
    named = [{"name": path.name, "path": str(path)} for path in paths]
    return LogStream(parse_options({"sources": json.dumps(named)} | given))


class Replicaset:
    """Two masters that write alternately, each row to both logs; a2 rotates more often."""

    def __init__(self, path: Path) -> None:
        self.a1, self.a2 = Server(path / "a1", "a1"), Server(path / "a2", "a2")
        for server in (self.a1, self.a2):
            server.snapshot(cluster={1: "a1", 2: "a2"})

    def write(self, rows: int = 1, only: Server | None = None) -> Self:
        for server in (self.a1, self.a2) if only is None else (only,):
            for _ in range(rows):
                server.write(1).write(2)
        return self


@pytest.fixture
def pair(tmp_path: Path) -> Replicaset:
    return Replicaset(tmp_path)


def drain(asked: LogStream, at: Offset) -> tuple[set[tuple[int, int]], list[str], Offset]:
    """Read until nothing is left: (replica id, lsn) seen, sources read, where that was."""
    rows: set[tuple[int, int]] = set()
    read: list[str] = []
    while (end := asked.latest(at, 200)) != at:
        read += [segment.source for segment in segments_between(asked, at, end)]
        rows |= {(id_, lsn) for _, id_, lsn in rows_between(asked, at, end)}
        at = end
    return rows, list(dict.fromkeys(read)), at


def everything(upto: int) -> set[tuple[int, int]]:
    return {(id_, lsn) for id_ in (1, 2) for lsn in range(1, upto + 1)}


def test_one_member_leads_and_the_other_is_not_read(pair: Replicaset) -> None:
    pair.write(10)
    asked = log_stream(pair.a1.path, pair.a2.path)
    rows, read, at = drain(asked, asked.initial())
    assert rows == everything(10)
    assert read == ["a1"]
    assert set(at) == {A}


@pytest.mark.parametrize("rotations", [0, 1, 3])
def test_a_successor_continues_for_a_leader_whose_source_was_removed(
    pair: Replicaset, rotations: int
) -> None:
    pair.write(5)
    both = log_stream(pair.a1.path, pair.a2.path)
    before, _, at = drain(both, both.initial())
    pair.write(3)
    for _ in range(rotations):
        pair.a2.rotate()
        pair.write(2)
    pair.a1.rotate()
    pair.write(1)
    after, read, end = drain(log_stream(pair.a2.path), at)
    assert read == ["a2"]
    assert before | after == everything(5 + 3 + 2 * rotations + 1)
    assert end[A].leader == "a2"


def test_the_batch_of_a_failover_reads_nothing(pair: Replicaset) -> None:
    pair.write(5)
    both = log_stream(pair.a1.path, pair.a2.path)
    at = both.latest(both.initial())
    alone = log_stream(pair.a2.path)
    over = alone.latest(at)
    assert over[A] == OffsetEntry("a2", "00000000000000000000.xlog", 0, {})
    assert segments_between(alone, at, over) == ()
    assert alone.latest(over)[A].position > 0


def test_a_successor_takes_over_from_a_directory_that_cannot_be_read(
    pair: Replicaset, caplog: pytest.LogCaptureFixture
) -> None:
    pair.write(5)
    asked = log_stream(pair.a1.path, pair.a2.path)
    before, _, at = drain(asked, asked.initial())
    pair.a1.path.rename(pair.a1.path.with_name("gone"))
    pair.write(5, only=pair.a2)
    with caplog.at_level(logging.WARNING, "sources.xlog"):
        after, read, _ = drain(asked, at)
    assert before | after == everything(10)
    assert read == ["a2"]
    assert "a2 takes over" in caplog.text
    assert "a1" in asked.unreadable_sources, "and it is reported for as long as it is gone"


def test_a_leader_that_is_gone_when_the_query_starts_is_known_from_the_offset(pair: Replicaset) -> None:
    pair.write(5)
    asked = log_stream(pair.a1.path, pair.a2.path)
    _, _, at = drain(asked, asked.initial())
    gone = pair.a1.path.with_name("nowhere") / "a1"
    over = log_stream(gone, pair.a2.path).latest(at)
    assert over[A].leader == "a2"
    with pytest.raises(SourceError, match=r"a1.*on_source_error"):
        log_stream(gone, pair.a2.path).latest(over)
    rows, read, _ = drain(log_stream(gone, pair.a2.path, on_source_error="skip"), over)
    assert (read, rows) == (["a2"], everything(5))


def test_a_leader_that_lost_the_file_it_was_in_is_replaced_by_a_successor(pair: Replicaset) -> None:
    pair.write(5)
    asked = log_stream(pair.a1.path, pair.a2.path)
    before, _, at = drain(asked, asked.initial())
    pair.a1.rotate()
    pair.write(2)
    (pair.a1.path / at[A].file).unlink()
    after, read, _ = drain(asked, at)
    assert before | after == everything(7)
    assert read == ["a2"]
    with pytest.raises(XlogMissingError, match=at[A].file):
        log_stream(pair.a1.path).latest(at)


def test_a_leader_stays_even_if_it_is_not_the_first(pair: Replicaset) -> None:
    pair.write(5)
    asked = log_stream(pair.a2.path, pair.a1.path)
    _, read, at = drain(asked, asked.initial())
    assert read == ["a2"]
    pair.write(5)
    _, read, _ = drain(log_stream(pair.a1.path, pair.a2.path), at)
    assert read == ["a2"]


def aged(server: Server, seconds: float) -> None:
    """Make the directory look as if it had been written that long ago."""
    for path in server.path.iterdir():
        moment = path.stat().st_mtime - seconds
        os.utime(path, (moment, moment))


def test_a_leader_that_is_behind_is_replaced(pair: Replicaset) -> None:
    pair.write(5)
    asked = log_stream(pair.a1.path, pair.a2.path)
    before, _, at = drain(asked, asked.initial())
    pair.write(4, only=pair.a2)
    assert drain(asked, at)[2] == at, "it may catch up yet"
    aged(pair.a1, HOUR)
    after, read, _ = drain(asked, at)
    assert read == ["a2"]
    assert before | after == everything(9)


def test_a_leader_is_not_behind_for_another_members_local_rows(pair: Replicaset) -> None:
    pair.write(5)
    asked = log_stream(pair.a1.path, pair.a2.path)
    _, _, at = drain(asked, asked.initial())
    pair.a2.write(0, rows=50)
    aged(pair.a1, HOUR)
    assert drain(asked, at)[2] == at


def test_a_leader_that_still_has_rows_to_read_is_read_to_its_end_first(pair: Replicaset) -> None:
    pair.write(5)
    asked = log_stream(pair.a1.path, pair.a2.path)
    pair.write(4, only=pair.a2)
    aged(pair.a1, HOUR)
    rows, read, _ = drain(asked, asked.initial())
    assert read == ["a1", "a2"]
    assert rows == everything(9)


def test_available_now_does_not_change_leaders_for_being_behind(pair: Replicaset) -> None:
    pair.write(5).write(4, only=pair.a2)
    aged(pair.a1, HOUR)
    asked = log_stream(pair.a1.path, pair.a2.path)
    asked.fix_end()
    rows, read, _ = drain(asked, asked.initial())
    assert (read, rows) == (["a1"], everything(5))


def test_available_now_leaves_out_what_could_not_be_read_when_it_began(
    tmp_path: Path, pair: Replicaset
) -> None:
    pair.write(2)
    asked = log_stream(pair.a1.path, tmp_path / "b1", on_source_error="skip")
    asked.fix_end()
    late = Server(tmp_path / "b1", "b1")
    late.snapshot()
    late.write(rows=3)
    _, read, at = drain(asked, asked.initial())
    assert read == ["a1"]
    assert at[B].position == 0, "it begins, and continues the next time"


def test_a_member_whose_logs_do_not_reach_back_cannot_lead(pair: Replicaset) -> None:
    pair.write(5)
    asked = log_stream(pair.a1.path, pair.a2.path)
    _, _, at = drain(asked, asked.initial())
    pair.a2.rotate()
    pair.write(1)
    for path in sorted(pair.a2.path.glob("*.xlog"))[:-1]:
        path.unlink()
    with pytest.raises(SourceError, match="removed") as caught:
        log_stream(pair.a2.path).latest(at)
    assert caught.value.fields["source"] == "a1"


def test_an_unreadable_source_is_an_error_that_names_it(tmp_path: Path, pair: Replicaset) -> None:
    with pytest.raises(SourceError, match="b1"):
        log_stream(pair.a1.path, tmp_path / "b1").initial()


def test_skipping_an_unreadable_source_lets_the_others_continue(
    tmp_path: Path, pair: Replicaset, caplog: pytest.LogCaptureFixture
) -> None:
    pair.write(3)
    asked = log_stream(pair.a1.path, tmp_path / "b1", on_source_error="skip")
    with caplog.at_level(logging.WARNING, "sources.xlog"):
        rows, _, at = drain(asked, asked.initial())
        asked.latest(at)
    assert rows == everything(3)
    assert "does not exist" in asked.unreadable_sources["b1"]
    assert caplog.text.count("b1 is not followed") == 1, "said once"
    late = Server(tmp_path / "b1", "b1")
    late.snapshot()
    late.write(rows=4)
    joined = asked.latest(at)
    assert segments_between(asked, at, joined) == (), "it begins without rows"
    rows, read, _ = drain(asked, joined)
    assert (rows, read) == ({(1, lsn) for lsn in range(1, 5)}, ["b1"])
    assert asked.unreadable_sources == {}


def test_a_damaged_source_is_skipped_too(tmp_path: Path, pair: Replicaset) -> None:
    other = Server(tmp_path / "b1", "b1")
    other.snapshot()
    other.write(rows=4)
    asked = log_stream(pair.a1.path, other.path, on_source_error="skip")
    at = asked.initial()
    log = other.path / "00000000000000000000.xlog"
    log.write_bytes(log.read_bytes().replace(b"\xd5\xba\x0b\xab", b"XXXX", 1))
    pair.write(3)
    rows, _, _ = drain(asked, at)
    assert rows == everything(3)
    assert "no block starts here" in asked.unreadable_sources["b1"]


def test_a_removed_source_stays_in_the_offset_and_continues_when_it_is_back(
    tmp_path: Path, pair: Replicaset
) -> None:
    other = Server(tmp_path / "b1", "b1")
    other.snapshot()
    other.write(rows=4)
    pair.write(2)
    asked = log_stream(pair.a1.path, other.path)
    _, _, at = drain(asked, asked.initial())
    other.write(rows=3)
    pair.write(2)
    rows, read, without = drain(log_stream(pair.a1.path), at)
    assert read == ["a1"]
    assert without[B] == at[B]
    rows, read, _ = drain(log_stream(pair.a1.path, other.path), without)
    assert (rows, read) == ({(1, lsn) for lsn in range(5, 8)}, ["b1"])


def test_a_moved_source_continues_at_its_new_path(tmp_path: Path, pair: Replicaset) -> None:
    pair.write(2)
    asked = log_stream(pair.a1.path)
    _, _, at = drain(asked, asked.initial())
    moved = pair.a1.path.rename(tmp_path / "moved")
    pair.a1.path, pair.a1.log = moved, moved / "00000000000000000000.xlog"
    pair.write(2, only=pair.a1)
    named = json.dumps([{"name": "a1", "path": str(moved)}])
    rows, _, _ = drain(LogStream(parse_options({"sources": named})), at)
    assert rows == everything(4) - everything(2)


def test_a_planned_batch_of_a_removed_source_says_so(pair: Replicaset) -> None:
    pair.write(2)
    asked = log_stream(pair.a1.path)
    start = asked.initial()
    end = asked.latest(start)
    with pytest.raises(SourceError, match="not configured any more"):
        segments_between(log_stream(pair.a2.path), start, end)


def test_a_start_vclock_begins_behind_what_is_settled(pair: Replicaset) -> None:
    pair.write(5)
    for server in (pair.a1, pair.a2):
        server.rotate()
    pair.write(5)
    asked = log_stream(pair.a1.path, startVclock=json.dumps({A: {"1": 7, "2": 6}}))
    rows, _, _ = drain(asked, asked.initial())
    assert rows == everything(10) - everything(5)


def test_offsets_of_members_are_canonical(pair: Replicaset) -> None:
    pair.write(5)
    one, other = log_stream(pair.a1.path, pair.a2.path), log_stream(pair.a1.path, pair.a2.path)
    at = one.latest(one.initial())
    assert to_text(other.latest(other.latest(other.initial(), 50))) == to_text(at)

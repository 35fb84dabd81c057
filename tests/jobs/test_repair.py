"""Repair of gaps: which sources are read and when it ends; another member of the replicaset fills a gap."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobs.repair import repair, repair_warehouse, replicaset_ids_by_source, sources_to_read
from pipeline.source_options import stream_options
from pipeline.state import State
from sources.xlog.options import parse_options
from sources.xlog.stream.log_stream import LogStream
from tests.jobs.deployment import Deployment
from tests.truth import own
from warehouse.system_tables.gaps import Gap, open_gaps


def gap(replicaset: int, source: str, first: int = 5, state: str = "open") -> Gap:
    return Gap(replicaset, source, 1, first, first + 2, "missing", state, "7.xlog")


SOURCES = {"a1": 1, "a2": 1, "b1": 2, "lost": None}


class Tables:
    """Gaps that are closed when one of the sources is read."""

    def __init__(self, gaps: Sequence[Gap], cures: dict[int, str]) -> None:
        self.gaps, self.cures, self.read_names = list(gaps), cures, list[str]()

    def look(self) -> list[Gap]:
        return list(self.gaps)

    def read(self, name: str) -> str | None:
        self.read_names.append(name)
        self.gaps = [one for one in self.gaps if self.cures.get(one.replicaset_id) != name]
        return "it is gone" if name == "lost" else None


def test_own_sources_come_before_other_members_and_no_other_replicaset() -> None:
    assert list(sources_to_read([gap(1, "a2"), gap(1, "a2", 9)], SOURCES)) == ["a2", "a1"]
    assert list(sources_to_read([gap(1, "gone")], SOURCES)) == ["a1", "a2"]
    assert list(sources_to_read([gap(9, "gone")], SOURCES)) == []
    assert list(sources_to_read([gap(3, "lost")], SOURCES)) == ["lost"]


def test_reading_ends_when_the_gaps_of_a_replicaset_are_closed() -> None:
    tables = Tables([gap(1, "a1"), gap(1, "a1", 20), gap(2, "b1")], {1: "a2", 2: "b1"})
    done = repair(tables.look, SOURCES, tables.read)
    assert tables.read_names == ["a1", "a2", "b1"]
    assert done.left_gaps == ()
    assert len(done.closed_gaps) == 3


def test_a_gap_that_no_source_fills_stays_open(capsys: pytest.CaptureFixture[str]) -> None:
    tables = Tables([gap(1, "a1"), gap(3, "lost")], {})
    done = repair(tables.look, SOURCES, tables.read)
    assert done.read_sources == ("a1", "a2", "lost")
    assert done.left_gaps == (gap(1, "a1"), gap(3, "lost"))
    assert "lost could not be read again: it is gone" in capsys.readouterr().out


def test_the_replicaset_of_a_source_comes_from_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = {name: own().directory(name) for name in ("a1", "a2", "b1")}
    config = Deployment(tmp_path, {**nodes, "lost": tmp_path / "nowhere"}).config()
    log_stream = LogStream(parse_options(stream_options(config, State(), 2)))
    known = {f"{letter}0000000-0000-4000-8000-000000000000": number for number, letter in enumerate("ab", 1)}
    assert replicaset_ids_by_source(log_stream, known) == {"a1": 1, "a2": 1, "b1": 2, "lost": None}
    assert "the replicaset of source lost is unknown" in capsys.readouterr().out


def test_without_gaps_nothing_is_read() -> None:
    tables = Tables([], {})
    assert repair(tables.look, SOURCES, tables.read).read_sources == ()


def test_the_newest_row_of_a_gap_counts() -> None:
    rows = [{"epoch": 2, **vars(gap(1, "a1", state="filled"))}, {"epoch": 1, **vars(gap(1, "a1"))}]
    assert open_gaps(rows) == ()
    assert open_gaps(rows[1:]) == (gap(1, "a1"),)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_another_member_fills_a_gap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = own()
    damaged = tmp_path / "a1"
    shutil.copytree(recording.directory("a1"), damaged)
    logs = sorted(damaged.glob("*.xlog"))
    logs[len(logs) // 2].unlink()
    deployment = Deployment(tmp_path, {"a1": damaged}, spaces={"include": ["accounts"]})
    deployment.run()
    assert [row["state"] for row in deployment.rows("_gaps")].count("open") > 0
    assert deployment.rows("_pending")
    assert repair_warehouse(deployment.config()) == 1
    assert "still open: missing: replicaset 1, source a1" in capsys.readouterr().out
    deployment.sources["a2"] = recording.directory("a2")
    assert repair_warehouse(deployment.config()) == 0
    shown = capsys.readouterr().out
    assert "read a1 again\nread a2 again\nclosed: missing" in shown
    assert not deployment.rows("_pending")
    assert open_gaps(deployment.rows("_gaps")) == ()
    whole = Deployment(
        tmp_path / "whole", {"a1": recording.directory("a1")}, spaces={"include": ["accounts"]}
    )
    whole.write()
    assert deployment.tuples("accounts") == whole.tuples("accounts") != []
    assert repair_warehouse(deployment.config()) == 0
    assert "0 gaps closed, 0 still open" in capsys.readouterr().out

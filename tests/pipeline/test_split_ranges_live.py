"""Vinyl spaces whose ranges are split, on real servers: a table that begins from a snapshot has the server's tuples."""

from __future__ import annotations

from pathlib import Path

import pytest

from sources.xlog.directory.directory import Directory
from sources.xlog.directory.source import Source
from sources.xlog.format.vylog import ALL_KEYS
from sources.xlog.stream import vinyl
from tests.live.server import find_servers
from tests.pipeline.deployment import Deployment
from tests.pipeline.test_recorded_runs import expected, held, with_snapshots
from tests.recordings.scripted import SPLIT, Truth

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not find_servers(), reason="no tarantool on PATH: apt-get install tarantool"),
]


@pytest.fixture(scope="module", params=find_servers(), ids=lambda path: Path(path).name)
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Truth]]:
    folder = tmp_path_factory.mktemp("split")
    return folder, SPLIT.record(folder, request.param)


def table_at(folder: Path, played: tuple[Path, list[Truth]], number: int) -> tuple[Truth, Truth, int]:
    """Return what tables have that begin at a checkpoint, what the server had, and how many of its runs are cut."""
    recorded, truths = played
    source = with_snapshots(folder / "a1", recorded, [number], [])
    directory = Directory(Source("a1", str(source)))
    trees = vinyl.vinyl_spaces_of(directory, next(source.glob("*.snap")).name, is_strict=True).trees
    deployment = Deployment(folder, {"a1": source}, start="snapshot")
    deployment.run()
    truth = truths[number - 1]
    cut = sum(run.intervals != ALL_KEYS for tree in trees for run in tree.runs)
    return held(deployment, truth), expected(truth), cut


def test_a_table_begins_with_what_the_server_held(tmp_path: Path, played: tuple[Path, list[Truth]]) -> None:
    cuts = 0
    for number in range(len(played[1]) - 1, 0, -2):
        found, wanted, cut = table_at(tmp_path / str(number), played, number)
        assert found == wanted, number
        cuts += cut
    assert cuts > 5, "the server has split no ranges"


def test_whole_runs_would_bring_deleted_keys_back(
    tmp_path: Path, played: tuple[Path, list[Truth]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vinyl, "_slices_of", lambda *_: None)
    outcomes = (table_at(tmp_path / str(n), played, n) for n in range(len(played[1]) - 1, 0, -1))
    assert any(found != wanted for found, wanted, _ in outcomes)

"""A server that lost the end of its log after it was read: `tests/recordings/lost_tail`, a real 3.9.

`before` is the directory as it was read, `after` the same directory later: the server has lost its last log and has
written another one of the same name. The lost rows and the new ones are equally long.
"""

import shutil
from pathlib import Path

import pytest

from pipeline.requests.snapshots import heal
from tests.pipeline.deployment import Deployment
from tests.truth import REPOSITORY, rows_of_truth

RECORDING = REPOSITORY / "tests" / "recordings" / "lost_tail"


def copy(name: str, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(RECORDING / name, path)


def divergences(deployment: Deployment) -> dict[tuple[int, int], str]:
    """Return the newest state of each divergence, by its lsns."""
    rows = sorted(deployment.rows("_gaps"), key=lambda row: int(row["epoch"]))
    assert {row["kind"] for row in rows} <= {"divergence"}
    return {(row["first_lsn"], row["last_lsn"]): row["state"] for row in rows}


@pytest.mark.parametrize(
    ("start", "batches", "lost"),
    [
        *(("logs", 12, 0), ("logs", 14, 1), ("logs", 15, 4), ("logs", 17, 10), ("logs", None, 10)),
        *(("snapshot", 2, 0), ("snapshot", 3, 3), ("snapshot", None, 10)),
    ],
)
def test_it_is_named_and_healed_wherever_the_stream_was(
    tmp_path: Path, start: str, batches: int | None, lost: int
) -> None:
    """The stream has read some of the lost rows, in batches of about 100 bytes."""
    copy("before", tmp_path / "s")
    deployment = Deployment(tmp_path, {"s": tmp_path / "s"}, start=start)
    deployment.run(100 if batches is not None else None, batches)
    copy("after", tmp_path / "s")
    deployment.run()
    found = divergences(deployment)
    assert list(found) == ([(34, 33 + lost)] if lost else [])
    with deployment.writer() as (warehouse, writer):
        message = heal(deployment.config(), warehouse, writer, "s", "heal")
    assert "STILL OPEN" not in message
    assert set(divergences(deployment).values()) <= {"healed"}
    assert deployment.tuples("kv") == rows_of_truth(RECORDING)
    assert deployment.run() == 0


def test_rows_of_an_older_state_are_read_again_and_none_is_wrong(tmp_path: Path) -> None:
    """A directory from a backup: what it has is what was read, so there is no divergence, and nothing is lost."""
    copy("after", tmp_path / "s")
    deployment = Deployment(tmp_path, {"s": tmp_path / "s"})
    deployment.run()
    for path in (tmp_path / "s").glob("*48.*"):
        path.unlink()
    deployment.run()
    copy("after", tmp_path / "s")
    deployment.run()
    assert divergences(deployment) == {}
    assert deployment.tuples("kv") == rows_of_truth(RECORDING)


def test_the_other_history_may_come_first(tmp_path: Path) -> None:
    """The longer history was read, the shorter one is there: its rows are divergences too."""
    copy("after", tmp_path / "s")
    deployment = Deployment(tmp_path, {"s": tmp_path / "s"})
    deployment.run()
    copy("before", tmp_path / "s")
    deployment.run()
    assert divergences(deployment) == {(34, 43): "open"}

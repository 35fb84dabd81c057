"""Logs that a server collected while nobody read them: a directory continues from a snapshot, with the loss named."""

from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from schemas.errors import XlogMissingError
from schemas.iproto import RequestType
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.jobs.written import BEGAN, Node
from tests.pipeline.deployment import Deployment

S = 600


def gaps(deployment: Deployment) -> list[tuple[int, int, str]]:
    rows = deployment.rows("_gaps", ["first_lsn", "last_lsn", "state"])
    return sorted((row["first_lsn"], row["last_lsn"], row["state"]) for row in rows)


class Case:
    """A job that has read a log which is gone when it comes back; the server continued, and left a snapshot."""

    def __init__(self, folder: Path, *, behind: bool = True, local: bool = False) -> None:
        self.node = Node(folder, "a1").define(S, "s")
        if local:
            body = encode_body(space_id=S + 1, tuple_=msgpack.packb([1]))
            self.node.add(encode_row(RequestType.REPLACE, body, group_id=1, lsn=1, timestamp=BEGAN))
        self.node.put(S, 1, "first", 1, 1).put(S, 2, "first", 1, 1)
        self.deployment = Deployment.of(folder, self.node)
        first = self.node.close()
        self.deployment.run()
        self.read = [[1, "first", 1, 1], [2, "first", 1, 1]]
        assert self.deployment.fields() == self.read
        self.node.put(S, 3, "lost", 1, 1).delete(S, 2)
        lost = self.node.close()
        self.node.snapshot({S: [(1, "first", 1, 1), (3, "lost", 1, 1)]})
        self.holds: list[list[object]] = [[1, "first", 1, 1], [3, "lost", 1, 1]]
        if behind:
            self.node.put(S, 4, "behind", 1, 1).close()
            self.holds.append([4, "behind", 1, 1])
        first.unlink()
        lost.unlink()


def new_checkpoint(deployment: Deployment) -> None:
    deployment.offset = {}


@pytest.mark.parametrize("start", ["logs", "snapshot"])
@pytest.mark.parametrize("before", [None, new_checkpoint], ids=["same checkpoint", "new checkpoint"])
@pytest.mark.parametrize(("budget", "local"), [(None, False), (1, False), (1, True)])
def test_a_directory_continues_from_its_snapshot(
    tmp_path: Path, before: Callable[[Deployment], None] | None, start: str, budget: int | None, local: bool
) -> None:
    """A snapshot does not say how far rows of local spaces are: they do not hold it up."""
    case = Case(tmp_path, local=local)
    case.deployment.settings["start"] = start
    created = {row["id"]: row["_created"] for row in case.deployment.rows("s", ["id", "_created"])}
    if before is not None:
        before(case.deployment)
    case.deployment.run(budget)
    assert case.deployment.fields() == case.holds
    assert gaps(case.deployment) == [(6, 7, "bridged")]
    now = {row["id"]: row["_created"] for row in case.deployment.rows("s", ["id", "_created"])}
    assert now[1] == created[1], "what the snapshot has as it was keeps its time"
    case.node.put(S, 5, "later", 1, 1).close()
    case.deployment.run()
    assert case.deployment.fields() == [*case.holds, [5, "later", 1, 1]]
    assert len(gaps(case.deployment)) == 1


def test_a_snapshot_alone_is_enough(tmp_path: Path) -> None:
    case = Case(tmp_path, behind=False)
    case.deployment.run()
    assert case.deployment.fields() == case.holds
    assert gaps(case.deployment) == [(6, 7, "bridged")]
    case.node.put(S, 4, "behind", 1, 1).close()
    case.deployment.run()
    assert case.deployment.fields() == [*case.holds, [4, "behind", 1, 1]]


def test_nothing_is_lost_where_only_files_that_were_read_are_gone(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(S, "s").put(S, 1, "x", 1, 1)
    deployment = Deployment.of(tmp_path, node)
    read = node.close()
    deployment.run()
    node.snapshot({S: [(1, "x", 1, 1)]})
    node.put(S, 2, "x", 1, 1).close()
    read.unlink()
    deployment.run()
    assert deployment.fields() == [[1, "x", 1, 1], [2, "x", 1, 1]]
    assert gaps(deployment) == []
    assert sum(1 for row in deployment.rows("_changelog", ["file"]) if row["file"].endswith(".snap")) == 0


def test_a_snapshot_that_is_not_ahead_is_no_way_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path, "a1").define(S, "s").put(S, 1, "x", 1, 1)
    node.close()
    node.snapshot({S: [(1, "x", 1, 1)]})
    node.put(S, 2, "x", 1, 1)
    deployment = Deployment.of(tmp_path, node)
    last = node.close()
    deployment.run()
    last.unlink()
    deployment.run()
    assert "the file that the stream is in is gone" in caplog.text
    assert deployment.fields() == [[1, "x", 1, 1], [2, "x", 1, 1]]


def test_a_snapshot_that_is_still_copied_is_waited_for(tmp_path: Path) -> None:
    case = Case(tmp_path)
    (snapshot,) = case.node.path.glob("*.snap")
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[:-8])
    with pytest.raises(XlogMissingError, match="is gone"):
        case.deployment.run()
    snapshot.write_bytes(whole)
    case.deployment.run()
    assert case.deployment.fields() == case.holds

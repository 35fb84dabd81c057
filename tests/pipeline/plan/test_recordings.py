"""A real server's log: each cut, transaction by transaction, against the log in one piece and another opinion."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sources.xlog.reader import reader
from tests import oracle
from tests.oracle.log import rolled_back
from tests.pipeline.logs import A, batch_of
from tests.pipeline.plan.planner import Piece, Planner
from tests.truth import OWN_ROOT

ROOT = OWN_ROOT / "2.6.0"
NODES = ["a1", "a2", "b1", "b2"]


@cache
def pieces(node: str, start: str = "0" * 20) -> tuple[Piece, ...]:
    """Return the snapshot `start` and the logs from there, each file as one piece."""
    found = []
    for path in [ROOT / node / f"{start}.snap", *sorted((ROOT / node).glob("*.xlog"))]:
        if path.stem >= start:
            found.append(piece(path))
    return tuple(found)


def piece(path: Path) -> Piece:
    where = reader.open_fs(str(path))
    meta = reader.read_meta(*where)
    rows = pa.concat_batches([batch_of([]), *reader.read_rows(*where)])
    snapshot = path.suffix == ".snap"
    return Piece(rows, A, meta.instance_uuid, path.name, snapshot, dict(meta.vclock))


def first_start(node: str) -> str:
    return min((ROOT / node).glob("*.snap")).stem


def last_start(node: str) -> str:
    return max((ROOT / node).glob("*.snap")).stem


@cache
def in_one(node: str) -> Planner:
    planner = Planner()
    planner.batch(*pieces(node, first_start(node)))
    return planner


def ends(one: Piece) -> list[int]:
    return [i + 1 for i, ends in enumerate(one.rows.column("is_commit").to_pylist()) if ends]


def same(cut: Planner, whole: Planner) -> None:
    """Check that all became of the rows that became of them in one batch."""
    assert cut.snapshot == whole.snapshot
    assert cut.fates == whole.fates
    assert cut.truncations == whole.truncations
    # The last file has no rows, so a batch of its own does not take note of it.
    assert replace(cut.state.replicasets[A], last_file=None) == replace(
        whole.state.replicasets[A], last_file=None
    )
    assert cut.state.replicasets[A].refused == {}


@pytest.mark.parametrize("node", NODES)
def test_what_was_rolled_back_is_what_another_reader_finds(node: str) -> None:
    rows = [row for path in sorted((ROOT / node).glob("*.xlog")) for row in oracle.read_log(path)]
    log = list(oracle.transactions(rows))
    expected = {(row.replica_id, row.lsn) for at in rolled_back(log) for row in log[at].rows}
    planner = in_one(node)
    assert {name for name, state in planner.states().items() if state == "rolled back"} == expected != set()
    assert planner.waiting == []
    assert set(planner.states()) == {(row.replica_id, row.lsn) for row in rows}


@pytest.mark.parametrize("node", NODES)
def test_a_start_from_the_last_snapshot_waits_for_nothing(node: str) -> None:
    whole, planner = in_one(node), Planner()
    planner.batch(*pieces(node, last_start(node)))
    assert planner.waiting == []
    mine, theirs = planner.state.replicasets[A], whole.state.replicasets[A]
    assert mine.spaces == theirs.spaces
    assert mine.cluster == theirs.cluster
    assert mine.settled == theirs.settled
    later = {name: fate.state for name, fate in whole.fates.items() if name in planner.fates}
    assert later == {name: fate.state for name, fate in planner.fates.items()}


def test_every_transaction_in_a_batch_of_its_own() -> None:
    whole, planner = in_one("a1"), Planner()
    for one in pieces("a1"):
        if one.is_snapshot:
            planner.batch(one)
            continue
        indices = [0, *ends(one)]
        for a, b in pairwise(indices):
            planner.batch(one.part(a, b))
    same(planner, whole)


@settings(deadline=None, max_examples=15, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.data())
def test_any_cut(data: st.DataObject) -> None:
    whole, planner = in_one("b1"), Planner()
    for one in pieces("b1"):
        indices = [
            0,
            *sorted(data.draw(st.lists(st.sampled_from([0, *ends(one)]), max_size=2))),
            one.rows.num_rows,
        ]
        for a, b in pairwise(indices):
            planner.batch(one.part(a, b))
    same(planner, whole)


def test_two_members_tell_each_row_once() -> None:
    """The second member's whole log behind the first's adds its own local rows only."""
    first, planner = in_one("a1"), Planner()
    planner.batch(*pieces("a1"))
    planner.batch(*pieces("a2", first_start("a2"))[1:])
    known = {name: fate.state for name, fate in first.fates.items()}
    assert {name: fate.state for name, fate in planner.fates.items() if name in known} == known
    more = planner.fates.keys() - known.keys()
    assert {(name[0], name[1]) for name in more} == {(pieces("a2", first_start("a2"))[0].instance, 0)}

"""A sync that dies after any step: the target is never complete with wrong content, and the next sync completes it.

A step is every chunk written, every file put or removed, and every change of a RID: so a death in the middle of a
file is among them. What the tests see of a target is what a reader of its newest epoch sees.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.warehouse.copies.standby import Killed, Pair
from tests.warehouse.warehouses import Made
from udfs.rid.value import EMPTY_ULID, Rid
from warehouse.copies import files, switch
from warehouse.copies.rid import RidTable
from warehouse.delta.newest_epoch import last_epoch


def empty(_pair: Pair) -> None:
    """Leave the target as a location with nothing in it."""


def behind(pair: Pair) -> None:
    """Make the target a copy of two epochs ago; a table is new since, and its log was cleaned."""
    pair.sync(check_all=False)
    pair.batch_a("fourth", "accounts")
    pair.batch_a("fifth", "accounts", "new_one")


def split(pair: Pair) -> None:
    """Make the target one half of a split brain, with a table and with checkpoints that only it has."""
    pair.sync(check_all=False)
    switch.promote(pair.b.location)
    pair.b.resume()
    pair.batch_b("only b", "accounts", "only_b")
    pair.batch_b("only b again", "accounts")
    for table in ("_epochs", "accounts"):
        DeltaTable(pair.b.location.uri(table)).create_checkpoint()
    switch.demote(pair.b.location)
    pair.batch_a("fourth", "accounts")


def rid_of(pair: Pair) -> Rid:
    return RidTable(pair.b.location).last().node.rid


def content(pair: Pair) -> dict[str, list[str]] | None:
    """Return what a reader sees of the target; None where there is no epoch."""
    return None if last_epoch(pair.b.location) < 0 else pair.b.read_cut()


def allowed_states(pair: Pair) -> list[dict[str, list[str]] | None]:
    """Return what the target may show while it is incomplete: an epoch of the source, or one that it had before."""
    return [None, *epochs_of(pair.a), *epochs_of(pair.b)]


def epochs_of(made: Made) -> list[dict[str, list[str]]]:
    """Return what a reader of each epoch sees."""
    table = made.location.open("_epochs")
    rows = [] if table is None else table.to_pyarrow_table().to_pylist()
    return [{name: made.values(name, version) for name, version in row["versions"]} for row in rows]


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("state", [empty, behind, split], ids=lambda state: state.__name__)
def test_a_sync_may_die_after_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Callable[[Pair], None], stride: int
) -> None:
    pair = Pair(tmp_path)
    state(pair)
    discard = rid_of(pair) if state is split else None
    allowed, expected = allowed_states(pair), pair.a.read_cut()
    kept = tmp_path / "kept"
    shutil.copytree(pair.b.folder, kept) if pair.b.folder.exists() else kept.mkdir()
    died = []
    for number in range(1, 1000, stride):
        shutil.rmtree(pair.b.folder, ignore_errors=True)
        shutil.copytree(kept, pair.b.folder)
        steps = kill(monkeypatch, number)
        try:
            pair.sync(discard_rid=discard, threads=1, check_all=False)
            break
        except Killed as killed:
            died.append(str(killed))
        incomplete = rid_of(pair).incoming != EMPTY_ULID
        assert incomplete or died[-1] == "end"
        if incomplete:
            assert not rid_of(pair).consistency
            assert content(pair) in allowed
        else:
            assert content(pair) == expected
        if number % 8 == 1:
            steps.clear()
            kill(monkeypatch, 1_000_000)
            pair.sync(discard_rid=discard if rid_of(pair).incoming == EMPTY_ULID else None, check_all=True)
            assert content(pair) == expected
            assert rid_of(pair).consistency
    if stride == 1:
        kinds = {step.partition(" ")[0] for step in died}
        assert kinds >= {"start", "write", "put", "check", "end"} | (
            {"note", "remove", "drop"} if state is split else set()
        )
    assert content(pair) == expected


def kill(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Make a sync die when so many steps are done; return the list in which they are noted."""
    passed: list[str] = []

    def reached(step: str) -> None:
        passed.append(step)
        if len(passed) == number:
            raise Killed(step)

    monkeypatch.setattr(files, "log_step_done", reached)
    return passed


def test_it_may_die_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt gets a little further, although it dies early: what was put is not copied again."""
    pair = Pair(tmp_path)
    attempts = 0
    while True:
        attempts += 1
        kill(monkeypatch, 9)
        try:
            pair.sync(threads=1)
            break
        except Killed:
            assert attempts < 100
    assert attempts > 3
    assert pair.b.read_cut() == pair.a.read_cut()


def test_a_target_that_died_is_completed_from_a_source_that_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path)
    kill(monkeypatch, 12)
    with pytest.raises(Killed):
        pair.sync(threads=1)
    pair.batch_a("meanwhile", "accounts")
    kill(monkeypatch, 1_000_000)
    pair.sync()
    assert pair.b.read_cut() == pair.a.read_cut()
    assert rid_of(pair).generations[0] == RidTable(pair.a.location).last().node.rid.head


COPIER = """
import os, signal, sys
from warehouse.copies import files
from warehouse.copies.sync import sync
from warehouse.delta.location import location_of

count = 0
def reached(step):
    global count
    count += 1
    if count == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

files.log_step_done = reached
sync(location_of(sys.argv[1]), location_of(sys.argv[2]))
"""


def test_a_process_that_is_killed_leaves_no_lock_and_an_incomplete_target(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    folders = [str(made.folder.parent) for made in (pair.a, pair.b)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", COPIER, *folders, "11"], env=environment, check=False, timeout=120
    )
    assert done.returncode == -signal.SIGKILL
    assert rid_of(pair).incoming != EMPTY_ULID
    assert list((pair.b.folder / files.UNFINISHED_FOLDER).iterdir()) or content(pair) is None
    pair.sync()
    assert pair.b.read_cut() == pair.a.read_cut()
    assert not rid_of(pair).crashed_primary

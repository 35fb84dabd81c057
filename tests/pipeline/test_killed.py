"""A writer that is killed before or after any of its commits: the next one continues, and no row is lost or doubled."""

import random
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.deployment import Deployment, rows_of_tables
from tests.pipeline.test_deletion_vectors import MODES, cuts, sources
from tests.pipeline.test_executors import POLICIES
from tests.soaked import IS_SOAK, partly_soaked
from warehouse.delta import vector_files
from warehouse.delta.commits import OpenTables
from warehouse.delta.log_commit import put_commit
from warehouse.delta.table_log import Action

POLICY = "by time, made tuples, masks"
MOST_KILLS = 40 if IS_SOAK else 16


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


class Killer:
    """Kills the writer at some of its commits, before or after they are made."""

    def __init__(self, seed: int) -> None:
        self.draw, self.kills, self.places = random.Random(seed), 0, Counter[str]()

    def may_kill(self, place: str) -> None:
        """Kill at about one place in 12."""
        if self.kills < MOST_KILLS and self.draw.random() < 1 / 12:
            self.kills += 1
            self.places[place] += 1
            raise Killed(place)

    def put(self, location: Any, table: str, version: int, actions: Iterable[Action]) -> None:
        """Commit as `put_commit` does, if the writer survives."""
        self.may_kill("before a commit")
        put_commit(location, table, version, actions)
        self.may_kill("after a commit")

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Have each writer of this process call this one."""
        make, write = OpenTables.__init__, vector_files.write_vectors

        def init(tables: OpenTables, *arguments: Any, **named: Any) -> None:
            make(tables, *arguments, **{"put": self.put, **named})

        def write_vectors(*arguments: Any) -> Any:
            found = write(*arguments)
            self.may_kill("between vectors and commit")
            return found

        patch.setattr(OpenTables, "__init__", init)
        patch.setattr("warehouse.delta.commits.write_vectors", write_vectors)


def _without_epochs_of_ids(rows: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Leave out the epochs in `_applier_map`: its rows stay when a batch is killed, with the epoch of that batch."""
    ids = Counter({re.sub(r"\('epoch', \d+\), ", "", row): n for row, n in rows["_applier_map"].items()})
    assert sum(ids.values()) == sum(rows["_applier_map"].values())
    return {**rows, "_applier_map": ids}


@pytest.mark.parametrize("mode", ["always", pytest.param("never", marks=pytest.mark.soak)])
@pytest.mark.parametrize("seed", partly_soaked(range(1), range(1, 10)))
def test_a_killed_writer_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, seed: int
) -> None:
    monkeypatch.setenv("MASK_KEY", "0123456789abcdef0123")
    sizes = [*cuts(random.Random(seed)), *[30_000] * 12]
    alone, killed = (
        Deployment(tmp_path / name, sources(), **POLICIES[POLICY], **MODES[mode])
        for name in ("alone", "killed")
    )
    alone.run(sizes)
    killer = Killer(seed)
    with monkeypatch.context() as patch:
        killer.install(patch)
        while True:
            before = killer.kills
            try:
                # The size of a batch is drawn again after a kill: another cut must not matter.
                killed.run(sizes[killed.batches :])
            except Killed:
                continue
            if killer.kills == before:
                break
    wanted, found = (_without_epochs_of_ids(rows_of_tables(one)) for one in (alone, killed))
    for table in wanted:
        assert found[table] == wanted[table], (table, killer.places)
    assert killer.places["before a commit"] > MOST_KILLS // 8
    assert killer.places["after a commit"] > MOST_KILLS // 8

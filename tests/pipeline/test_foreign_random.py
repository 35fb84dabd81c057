"""Random interleavings of batches with commits of others: a table equals its servers, or the job says why not."""

import random
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from observe.deployment_problems import deployment_problems
from pipeline.requests.mend import mend_tables, tables_to_mend
from tests.pipeline.test_foreign_commits import disturbed
from tests.pipeline.test_set_aside import HARMFUL, HIT, OTHER, UNCHANGED, Two
from tests.soaked import partly_soaked

SPACES = {"hit": HIT, "other": OTHER}
STEPS = 6
MOMENTS = ("before", "in", "after", "stopped", "never")
ACTS = {**UNCHANGED, **HARMFUL}
NAMES = [*UNCHANGED, *UNCHANGED, *HARMFUL]
"""Commits that change no rows are drawn twice as often."""


class Disturbed:
    """A deployment whose tables somebody else changes, too. Its job runs for several batches, or is started again."""

    def __init__(self, folder: Path, draw: random.Random, **settings: Any) -> None:
        vectors = draw.choice(["always", "never"])
        self.two, self.draw = Two(folder, deletion_vectors=vectors, **settings), draw
        self.done: list[str] = []
        self.job = ExitStack()
        self.start()

    def start(self) -> None:
        """Stop the job and start it again."""
        self.job.close()
        self.warehouse, self.writer = self.job.enter_context(self.two.tables.writer())

    def act(self, table: str) -> None:
        """Do something to a table, if it is there."""
        path = self.two.path.parent / table
        if not (path / "_delta_log").is_dir():
            return
        name = self.draw.choice(NAMES)
        self.done.append(f"{name} on {table}")
        try:
            ACTS[name](DeltaTable(str(path)))
        except Exception as error:  # such as a second constraint of the same name
            self.done.append(f"refused: {type(error).__name__}")

    def batch(self) -> None:
        """Read all rows that are in the logs now."""
        while self.two.tables.batch(self.writer) is not None:
            pass

    def step(self, number: int, patch: pytest.MonkeyPatch) -> None:
        """Commit as somebody else between batches, within one, or while the job is stopped, or not at all."""
        self.two.write(range(number, number + 4), number + 2)
        moment, hit = self.draw.choice(MOMENTS), self.draw.choice(list(SPACES))
        self.done.append(moment)
        if moment == "stopped":
            self.job.close()
        if moment in ("stopped", "before"):
            self.act(hit)
        if moment == "stopped":
            self.start()
        if moment == "in":
            acted: list[str] = []

            def once(table: str, _opened: DeltaTable) -> None:
                if table == hit and not acted:
                    acted.append(table)
                    self.act(hit)

            with disturbed(patch, once):
                self.batch()
        else:
            self.batch()
        if moment == "after":
            self.act(hit)

    def check(self) -> None:
        """Compare the tables with the servers; what is needed to name a difference is read only if there is one."""
        other = [name for name, space in SPACES.items() if self.rows(name) != self.two.winners(space)]
        if other:
            named = {one.subject.partition(" ")[2] for one in deployment_problems(self.two.tables.config())}
            assert set(other) <= named, self.done

    def rows(self, table: str) -> list[list[Any]]:
        """Return the tuples in a table, sorted; a doubled key is there twice."""
        return self.two.tables.fields(table)

    def mend(self) -> None:
        """Rebuild what is set aside, after a snapshot that the tables have reached."""
        self.two.snapshot()
        self.two.write(range(20, 22), 50)
        self.batch()
        config = self.two.tables.config()
        for name in SPACES:
            if tables_to_mend(self.writer.state, config, name):
                self.done.append(f"rebuild {name}")
                mend_tables(config, self.warehouse, self.writer, name, f"mend {len(self.done)}")


def disturb(one: Disturbed, patch: pytest.MonkeyPatch) -> None:
    with one.job:
        one.batch()
        for number in range(STEPS):
            one.step(number, patch)
            one.check()
        one.mend()
        one.two.write(range(15, 23), 60)
        one.batch()
    assert deployment_problems(one.two.tables.config()) == [], one.done
    for name, space in SPACES.items():
        assert one.rows(name) == one.two.winners(space), (name, one.done)


@pytest.mark.parametrize("seed", partly_soaked(range(2), range(2, 400)))
def test_interleavings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    disturb(Disturbed(tmp_path, random.Random(seed)), monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(400, 500))
def test_interleavings_with_distributed_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    from pipeline.executors.distributed import DistributedExecutor

    executor = partial(DistributedExecutor, spark)
    disturb(Disturbed(tmp_path, random.Random(seed), distributed=executor, local_bytes=1), monkeypatch)

"""Two writers of one warehouse on S3; one sleeps before any of its commits for longer than its lease."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from pipeline.commit.epoch import ROLLED_BACK_QUERY_ID
from tests.jobs.deployment import Deployment
from tests.jobs.sleeper import OVERTAKEN
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment as Undisturbed
from tests.sources.s3 import Store, installed
from tests.warehouse.contents import contents, differences
from warehouse.delta.location import location_of
from warehouse.delta.read import rows_of

pytestmark = [pytest.mark.soak, installed]

ROOT = Path(__file__).resolve().parents[2]
WAREHOUSE = "s3a://lake/warehouse"
USERS, COUNTERS = 600, 601


class Pair:
    """Two replicasets' logs, a warehouse on S3, and processes that write it."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store
        self.nodes = {
            name: Node(folder / "logs", name).define(USERS, "users").define(COUNTERS, "counters")
            for name in ("a1", "b1")
        }
        self.sources = {name: node.path for name, node in self.nodes.items()}
        self.ids = replicasets_of(*self.nodes)
        self.deployment = Deployment(folder, self.sources, self.ids)
        self.deployment.database = "aggregator"
        self.file = folder / "config.yaml"
        self.file.write_text(self.deployment.config(warehouse=WAREHOUSE).model_dump_json(), encoding="utf-8")

    def append(self, batch: int) -> None:
        """Write one more log of each replicaset: new keys, and one that both change."""
        for number, (name, node) in enumerate(self.nodes.items()):
            at = 10 * batch + number
            node.put(USERS, 100 * batch + number, name, batch, at, at=at).put(
                USERS, 1, name, batch, at, at=at
            )
            node.put(COUNTERS, batch, name, 1, at, at=at).close()

    def start(self, step: int, *, with_spark: bool = False) -> subprocess.Popen[str]:
        """Start a writer that stops itself before a commit."""
        words = ["--config", str(self.file), "--once"] if with_spark else [str(self.file)]
        inherited = {name: value for name, value in os.environ.items() if "SPARK" not in name}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.sleeper", str(step), *words],
            env={**inherited, **self.store.environment, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"},
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *, with_spark: bool = False) -> None:
        """Run a writer that does not stop itself."""
        with self.start(0, with_spark=with_spark) as writer:
            _, said = writer.communicate(timeout=300)
        assert writer.returncode == 0, said[-3000:]

    def overtaken(self, step: int, *, with_spark: bool = False) -> str | None:
        """Start a writer that stops itself, let another one write, and return the first one's output afterwards.

        None where it has ended without stopping.
        """
        writer = self.start(step, with_spark=with_spark)
        try:
            _, status = os.waitpid(writer.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                assert os.waitstatus_to_exitcode(status) == 0
                return None
            print(f"step {step}: stopped", flush=True)
            self.run(with_spark=with_spark)
            writer.send_signal(signal.SIGCONT)
            _, said = writer.communicate(timeout=120)
        finally:
            writer.kill()
            writer.communicate()
        assert writer.returncode != 0
        assert with_spark or writer.returncode == OVERTAKEN, said[-3000:]
        return said

    def check(self) -> int:
        """Check that there is one history, equal to a single writer's; return the number of epochs."""
        location = location_of(WAREHOUSE)
        epochs = location.open("_epochs")
        assert epochs is not None
        rows = rows_of(epochs, ["epoch", "query_id"])
        ended = {row["epoch"]: row["query_id"] == ROLLED_BACK_QUERY_ID for row in rows}
        numbers = sorted(row["epoch"] for row in rows)
        # The number of a batch that was rolled back is left out.
        assert numbers == sorted(
            {*range(numbers[-1] + 1)} - {number - 1 for number in ended if ended[number]}
        )
        one = Undisturbed(self.folder / "undisturbed", self.sources, self.ids)
        one.run()
        exact = contents(location_of(str(one.folder / "warehouse")))
        found = contents(location)
        # How the rows fell into batches is another matter.
        for table in ("users", "counters", "_cluster", "_applier_map"):
            assert not differences({table: exact[table]}, {table: found[table]}), table
        for table in ("_changelog", "_vclock"):
            names = [
                n
                for n in ("replicaset_id", "global_id", "lsn", "key", "tuple")
                if n in exact[table].column_names
            ]
            selected = [{table: each[table].select(names)} for each in (exact, found)]
            if table == "_changelog":
                assert not differences(*selected), table
        return len(numbers)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with Store(tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield Pair(tmp_path, store)


def test_a_writer_may_sleep_before_any_commit(pair: Pair) -> None:
    said = []
    for step in count(1):
        pair.append(step)
        last = pair.overtaken(step)
        if last is None:
            break
        said.append(last)
    assert len(said) > 5, "a number, the changelog, two tables, the vclock, the epoch"
    assert all(re.search("writer lock was lost|has committed to|cannot be written", one) for one in said)
    assert pair.check() == len(said) + 1


@pytest.mark.spark
@pytest.mark.parametrize("step", [1, 3, 6])
def test_a_job_may_sleep_before_a_commit(pair: Pair, step: int) -> None:
    pair.append(1)
    pair.run(with_spark=True)
    pair.append(2)
    assert pair.overtaken(step, with_spark=True) is not None
    pair.append(3)
    pair.run(with_spark=True)
    assert pair.check() == 3

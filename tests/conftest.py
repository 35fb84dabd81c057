"""What tests of every folder share: one Spark session, made as the jobs make theirs."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import shutil
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.soaked import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.workermanage import WorkerController

if not hasattr(sys.modules["__main__"], "__file__"):
    # PySpark takes a main module without a file, as pytest-xdist's processes have, for a run of doctests, and exits.
    sys.modules["__main__"].__file__ = __file__

pytest_plugins = ("tests.live.fixtures",)

# No deadline, since a kernel's first call compiles it.
settings.register_profile("tests", deadline=None, max_examples=examples(100))
settings.load_profile("tests")

SPARK = "spark session"

# Spark compiles Java for each query, which takes longer than to interpret it over the few rows of a test.
INTERPRETED = "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN"

# Delta's VACUUM lists the files of a table in so many tasks; by default 10,000, which take half a minute.
FEW_TASKS = "--conf spark.sql.sources.parallelPartitionDiscovery.parallelism=2"

# Two tasks, one after the other: each that runs has a Python of its own, which imports for more than a second.
ONE_AT_A_TIME = "--master local[1] --conf spark.default.parallelism=2"

LOCAL_SPARK = f"{ONE_AT_A_TIME} --conf spark.ui.enabled=false {FEW_TASKS} {INTERPRETED} pyspark-shell"

# A JVM of a test lives for a minute: the second compiler's work takes half of its processor time and never pays.
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_options, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# delta-rs opens a table with a third less processor time if it has one thread: several wake each other at each file.
os.environ.setdefault("TOKIO_WORKER_THREADS", "1")

# The heap of a test process holds a million objects of libraries: to search it for cycles as often as Python does
# takes a quarter of the time in which tests are collected, and some percent of the others'.
gc.set_threshold(20_000, 20, 20)

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 6 << 30
"""Room that the folders of a run surely find in it: those of tests that passed are removed at once."""

COROUTINE_SECONDS = 60
"""A test that is a coroutine is cancelled after so long."""


def _keep_folders_in_memory() -> None:
    """Have pytest make its temporary folders in memory if there is room, since they are files of kilobytes.

    A run over tests of the pipeline has tens of thousands of them, which take long to write, and ten seconds to remove.
    """
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


_keep_folders_in_memory()


LONG = [
    "tests/jobs/test_stop.py",
    "tests/jobs/test_spark_submit.py",
    "tests/test_wheel.py",
    "tests/test_extensions.py",
    "tests/sources/subscribe/test_limit.py",
    "tests/pipeline/test_killed.py",
    "tests/pipeline/test_update_chains.py",
    "tests/pipeline/test_checkpoint_fit.py",
    "tests/incidents/test_tables.py",
    "tests/schemas/test_compiled.py",
]
"""Modules whose few tests take half a minute or more together.

pytest-xdist begins with the modules of most tests, so the run would end with these, in one process each.
"""


class ModuleScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process whole modules, and all that share a Spark session to two of them, which begin with these.

    Each more Java costs seconds; with one alone the others end long before it, since it mostly uses one thread.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if not _uses_spark(self.config.rootpath / module):
            return module
        return f"{SPARK} of jobs" if module.startswith("tests/jobs/") else SPARK

    def _assign_work_unit(self, node: WorkerController) -> None:
        long = [module for module in LONG if module in self.workqueue]
        if long:
            self.workqueue.move_to_end(long[0], last=False)
        sessions = [scope for scope in self.workqueue if scope.startswith(SPARK)]
        if sessions and not any(scope.startswith(SPARK) for scope in self.assigned_work[node]):
            self.workqueue.move_to_end(sessions[0], last=False)
        super()._assign_work_unit(node)


@lru_cache
def _uses_spark(module: Path) -> bool:
    """Whether a module's tests run in the shared session."""
    text = module.read_text(encoding="utf-8")
    return "spark: SparkSession" in text or 'usefixtures("spark")' in text


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:  # noqa: ARG001
    """Return one process more than there are cores: many tests wait, for a server or for Spark's Java."""
    return (os.cpu_count() or 1) + 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ModuleScheduling:
    """Tell pytest-xdist who does what."""
    return ModuleScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of properties, which `make soak` repeats with all of their generated cases."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.property)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines in an event loop of their own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def limited() -> None:
        async with asyncio.timeout(COROUTINE_SECONDS):
            await pyfuncitem.obj(
                **{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
            )

    asyncio.run(limited())
    return True


def pytest_collection_finish() -> None:
    """Exclude what all tests share from the search for cycles."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter free everything at its end; libraries report what it leaves."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a session with Delta whose databases lie in a folder of this run."""
    from config.deployment import Config
    from jobs.runtime.session import spark_session

    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", LOCAL_SPARK)
    folder = tmp_path_factory.mktemp("spark")
    config = Config.model_validate(
        {
            "warehouse": str(folder / "warehouse"),
            "checkpoint": str(folder / "checkpoint"),
            "sources": [{"name": "none", "path": str(folder)}],
        }
    )
    session = spark_session(config, "tests")
    yield session
    session.stop()
